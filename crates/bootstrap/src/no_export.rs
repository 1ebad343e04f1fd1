//! Without the feature `otlp` nothing is exported, and [`TracingSettings::problems`] tells whoever wants it.

use std::io;

use crate::{TracingSettings, logs::LogLayer};

/// There is none.
#[derive(Debug)]
pub enum Exporting {}

pub(crate) fn export(
    _settings: &TracingSettings,
    _program: &'static str,
) -> io::Result<Option<(LogLayer, Exporting)>> {
    Ok(None)
}
