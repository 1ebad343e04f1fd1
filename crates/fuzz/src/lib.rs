//! Fuzz targets, as ordinary tests of the crates whose private functions they reach.
//!
//! A target is a test in a module `fuzz` that calls [`target`] with its own name. In a test run it
//! is given all inputs of `fuzz/corpus/<name>`: what was once worth keeping never breaks again.
//! `hack/fuzz` builds the same tests with `--cfg fuzzing` and the compiler's coverage counters, and
//! lets libFuzzer look for more. Both need nothing but stable Rust.
#![deny(missing_docs)]
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::exit,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this is test code: a failure is a panic at its place"
)]

#[cfg(fuzzing)]
mod engine;
#[cfg(not(fuzzing))]
mod replay;

/// Runs the target `name`: `check` panics if anything but what should happens to an input.
///
/// # Panics
/// If `check` does, or the target has no corpus.
pub fn target(name: &str, check: fn(&[u8])) {
    #[cfg(fuzzing)]
    engine::seek(name, check);
    #[cfg(not(fuzzing))]
    replay::all(name, check);
}
