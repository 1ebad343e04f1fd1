//! Identities, certificates and connections, with real files and sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod chains;
mod channel;
mod credentials;
mod handshake;
mod reload;
mod support;
