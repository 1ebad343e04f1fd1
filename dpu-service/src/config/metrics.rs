//! `[metrics]`

use std::net::SocketAddr;

use metrics::{MetricsSettings, listen_address};
use serde::{Deserialize, Serialize};

/// What monitoring reads, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// The address and port that metrics are read from. `None`: from nowhere.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
    /// Whether it is told of each attachment what it sends and receives, with the names of its pod.
    pub attachments: bool,
}

impl Metrics {
    pub(crate) const fn endpoint(&self) -> MetricsSettings {
        MetricsSettings { listen: self.listen }
    }
}
