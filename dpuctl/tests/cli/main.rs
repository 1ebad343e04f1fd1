//! The program against a fake service with given answers, over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod bundle;
mod calls;
mod pki;
mod service;
