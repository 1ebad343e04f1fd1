//! Commands that run to their end.

use std::process::{Command, Output, Stdio};

/// Runs a command to its end.
///
/// # Panics
/// When it can't be started.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
