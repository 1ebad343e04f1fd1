//! The type of the layers that receive log messages and spans.

use tracing_subscriber::{Layer, Registry};

/// A destination of log events or spans.
pub(crate) type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;
