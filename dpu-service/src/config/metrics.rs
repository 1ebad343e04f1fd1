//! The section `[metrics]`.

use std::net::{Ipv4Addr, SocketAddr};

use metrics::listen_address;
use serde::{Deserialize, Serialize};

/// The default port on loopback.
const PORT: u16 = 9464;

/// The metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// The address and port of the endpoint. `None`: it is off.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
    /// Whether there are metrics of each attachment's traffic, with the names of its pod.
    pub attachments: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: Some((Ipv4Addr::LOCALHOST, PORT).into()), attachments: false }
    }
}
