//! The section `[limits]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::section::{out_of_range, section};

section! {
    /// Limits on what clients can make the service do. Above a limit the service refuses the call or connection;
    /// running ones are not affected.
    pub struct Limits {
        /// Connections with a verified certificate.
        pub connections: usize = 1024, 1..=65536;
        /// Connections of one identity.
        pub connections_per_identity: usize = 16, 1..=65536;
        /// TLS handshakes in progress. One more drops the oldest.
        pub handshakes: usize = 256, 1..=65536;
        /// The timeout of a handshake, in seconds.
        pub handshake_timeout_s: u64 = 5, 1..=60;
        /// Calls in progress on one connection.
        pub streams_per_connection: u32 = 256, 1..=65536;
        /// Calls in progress on all connections, each until its answer was taken. Open streams do not count;
        /// `connections` bounds their number.
        pub in_flight: usize = 512, 1..=65536;
        /// The size of a call's request headers, in bytes.
        pub header_bytes: u32 = 16 * 1024, 1024..=1_048_576;
        /// Open `Watch` streams.
        pub watchers: usize = 64, 1..=4096;
        /// Attachments of all hosts.
        pub attachments: usize = 4096, 1..=65536;
        /// Networks, from this file and through the API.
        pub networks: usize = 1024, 1..=4096;
        /// The interval of an agent's heartbeats, in milliseconds. Three missed ones end its session.
        pub heartbeat_ms: u32 = 2000, 100..=60_000;
        /// The interval of checks on an idle connection, in seconds. A stream whose peer reads nothing for twice as
        /// long is reset.
        pub keepalive_s: u64 = 20, 1..=3600;
        /// How long calls in progress may take to finish when the service stops, in seconds.
        pub shutdown_s: u64 = 10, 0..=300;
    }
}

impl Limits {
    /// How long a peer may read nothing before its stream is reset.
    pub(crate) const fn unread(&self) -> Duration {
        Duration::from_secs(2 * self.keepalive_s)
    }
}
