//! Commands that run to completion.

use std::{
    io::{self, Write},
    process::{Command, Output, Stdio},
};

/// Runs a command to completion.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command to completion with this standard input, which it need not read.
///
/// # Panics
/// If it cannot be started, or its input cannot be written.
#[must_use]
pub fn run_with(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let is_unread = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    assert!(written.is_ok() || written.as_ref().is_err_and(is_unread), "{written:?}");
    output
}
