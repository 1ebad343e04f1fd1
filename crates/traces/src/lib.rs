//! Distributed traces: the spans of a program's work, and the context that passes from one program to the next.
//!
//! A call from outside is an [`entry`], which continues its caller's trace or begins one. Within it, work is a
//! [`step`], and a call to another program is a [`call`], which passes on the [`current`] context. Steps and calls
//! outside an entry create no spans. Work after the answer runs [`afterwards`].
//!
//! The export of spans is set up elsewhere. Without it no spans are created, and a received context is passed on
//! unchanged.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod context;
mod parent;
mod spans;

pub use context::{afterwards, current, follow};
pub use parent::{HEADER, TraceParent, VARIABLE, lenient};
pub use spans::{ENTRY, TARGET, call, entry, fail, in_span, step, undo};
pub use tracing::Instrument;
