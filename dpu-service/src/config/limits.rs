//! `[limits]`

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::section::{out_of_range, section};

section! {
    /// Limits on what clients can make the service do. Where one is reached, the call or connection is
    /// refused; nothing that runs is harmed.
    pub struct Limits {
        /// Connections with a verified certificate.
        pub connections: usize = 1024, 1..=65536;
        /// Of these, of one identity.
        pub connections_per_identity: usize = 16, 1..=65536;
        /// TLS handshakes under way. One more drops the oldest.
        pub handshakes: usize = 256, 1..=65536;
        /// How long a handshake may take, in seconds.
        pub handshake_timeout_s: u64 = 5, 1..=60;
        /// Calls under way on one connection.
        pub streams_per_connection: u32 = 256, 1..=65536;
        /// Calls under way on all connections, each until its answer was taken. Streams that stay open do not
        /// count: there may be as many of them as connections.
        pub in_flight: usize = 512, 1..=65536;
        /// Request headers of one call, in bytes.
        pub header_bytes: u32 = 16 * 1024, 1024..=1_048_576;
        /// Open `Watch` streams.
        pub watchers: usize = 64, 1..=4096;
        /// Attachments of all hosts.
        pub attachments: usize = 4096, 1..=65536;
        /// Networks, from this file and through the API.
        pub networks: usize = 1024, 1..=4096;
        /// How often an agent sends its heartbeat, in milliseconds. Three missed ones end its session.
        pub heartbeat_ms: u32 = 2000, 100..=60_000;
        /// How often an idle connection is checked, in seconds. A stream whose peer takes nothing for twice as long is
        /// reset.
        pub keepalive_s: u64 = 20, 1..=3600;
        /// How long calls under way may take to finish when the service stops, in seconds.
        pub shutdown_s: u64 = 10, 0..=300;
    }
}

impl Limits {
    /// How long a peer may take nothing of what it is sent.
    pub(crate) const fn unread(&self) -> Duration {
        Duration::from_secs(2 * self.keepalive_s)
    }
}
