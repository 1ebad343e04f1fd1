//! The program against a service that answers what the tests tell it, over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod bundle;
mod calls;
mod pki;
mod service;
