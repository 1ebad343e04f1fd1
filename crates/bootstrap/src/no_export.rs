//! Replaces the export in builds without the feature `otlp`. [`TracingSettings::problems`] refuses a configured
//! collector.

use std::io;

use crate::{TracingSettings, log_layer::LogLayer};

/// Uninhabited: this build exports nothing.
#[derive(Debug)]
pub enum Exporting {}

pub(crate) fn export(
    _settings: &TracingSettings,
    _program: &'static str,
) -> io::Result<Option<(LogLayer, Exporting)>> {
    Ok(None)
}
