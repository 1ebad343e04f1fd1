//! `[metrics]`

use std::net::{Ipv4Addr, SocketAddr};

use metrics::listen_address;
use serde::Deserialize;

/// The default port, on loopback: next to that of the service, which may run on the same machine.
const PORT: u16 = 9465;

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// The address and port. `None`: metrics are off.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self { listen: Some((Ipv4Addr::LOCALHOST, PORT).into()) }
    }
}
