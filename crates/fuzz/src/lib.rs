//! Fuzz targets as ordinary tests of the crates whose private functions they call.
//!
//! A target is a test in a module `fuzz` that calls [`target`] with its own name. A test run replays all inputs of
//! `fuzz/corpus/<name>.tar.gz` as regression tests. `hack/fuzz` builds the same tests with `--cfg fuzzing` and the
//! compiler's coverage counters, and libFuzzer searches for new inputs. Both need only stable Rust.
#![deny(missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::exit,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this is test code: a failure is a panic at its place"
)]

#[cfg(fuzzing)]
mod engine;
#[cfg(not(fuzzing))]
mod replay;

use std::{path::Path, str};

use bootstrap::{ConfigError, parse_config};
use serde::de::DeserializeOwned;

/// Longest error sentence of a configuration, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// Runs the target `name`. `check` panics for an input that is handled wrongly.
///
/// # Panics
/// If `check` panics, or the target has no corpus.
pub fn target(name: &str, check: fn(&[u8])) {
    #[cfg(fuzzing)]
    engine::seek(name, check);
    #[cfg(not(fuzzing))]
    replay::all(name, check);
}

/// Parses a configuration file. `None`: it is invalid, and the error has its place in a readable sentence.
///
/// # Panics
/// If the error has another form.
#[must_use]
pub fn configuration<T: DeserializeOwned>(input: &[u8]) -> Option<T> {
    let text = str::from_utf8(input).ok()?;
    match parse_config(text, Path::new("a.toml")) {
        Ok(config) => Some(config),
        Err(ConfigError::Invalid { line, column, message, .. }) => {
            assert!((1..=text.lines().count() + 1).contains(&line), "line {line}: {message}");
            assert!((1..=text.len() + 1).contains(&column), "column {column}: {message}");
            assert!(message.len() <= LONGEST_MESSAGE, "{} bytes: {message}", message.len());
            None
        }
        Err(other) => panic!("{other}"),
    }
}
