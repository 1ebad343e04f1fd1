//! `[metrics]`

use std::net::{Ipv4Addr, SocketAddr};

use metrics::listen_address;
use serde::{Deserialize, Serialize};

/// The port on loopback.
const PORT: u16 = 9464;

/// What monitoring reads, and where.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// The address and port that metrics are read from. `None`: they are off.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
    /// Whether it is told of each attachment what it sends and receives, with the names of its pod.
    pub attachments: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: Some((Ipv4Addr::LOCALHOST, PORT).into()), attachments: false }
    }
}
