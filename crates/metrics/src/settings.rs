use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize};

/// The `[metrics]` table of every configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// The address and port that metrics are read from. `None`: from nowhere.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
}

/// Reads the value of a key such as [`MetricsSettings::listen`].
///
/// # Errors
/// It is no address with a port.
pub fn listen_address<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    bootstrap::socket_address_like(input, "\"127.0.0.1:9464\" or \"[::1]:9464\"").map(Some)
}
