//! Output for programs: protobuf's JSON form, and the same as YAML.

use serde::Serialize;

use crate::{arguments::Format, console::Console, error::CallError};

/// Prints `message` if the format is one for programs. Otherwise returns that a person expects text.
pub(crate) fn print_encoded<M: Serialize>(
    message: &M,
    format: Format,
    console: &mut Console<'_>,
) -> Result<Audience, CallError> {
    let text = match format {
        Format::Table => return Ok(Audience::People { wide: false }),
        Format::Wide => return Ok(Audience::People { wide: true }),
        Format::Json => json(message)?,
        Format::Yaml => yaml(message)?,
    };
    console.print(&text)?;
    Ok(Audience::Programs)
}

/// The reader of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// People, for whom nothing was printed yet.
    People { wide: bool },
    /// Programs, for which the answer was printed.
    Programs,
}

pub(crate) fn json<M: Serialize>(message: &M) -> Result<String, CallError> {
    Ok(serde_json::to_string_pretty(message)? + "\n")
}

pub(crate) fn json_line<M: Serialize>(message: &M) -> Result<String, CallError> {
    Ok(serde_json::to_string(message)?)
}

pub(crate) fn yaml<M: Serialize>(message: &M) -> Result<String, CallError> {
    serde_norway::to_string(message).map_err(|error| CallError::Encode(error.to_string()))
}

/// A document of a YAML stream, without a line break at its end.
pub(crate) fn yaml_document<M: Serialize>(message: &M) -> Result<String, CallError> {
    Ok(format!("---\n{}", yaml(message)?.trim_end()))
}
