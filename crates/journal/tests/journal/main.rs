//! The journal on real files and on a faulty disk.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod commits;
mod failures;
mod migrations;
mod opening;
mod support;
mod unsynced;
