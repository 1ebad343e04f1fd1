//! Rate limits.

use offload_proto::v1;
use serde::{Deserialize, Serialize};

use super::is_zero;

/// Rate limits in bits per second and bits, seen from the pod. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bandwidth {
    /// The rate towards the pod.
    pub ingress_rate: u64,
    /// Burst towards the pod.
    pub ingress_burst: u64,
    /// The rate from the pod.
    pub egress_rate: u64,
    /// Burst from the pod.
    pub egress_burst: u64,
    /// The guaranteed share of what the pod sends. 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_share: u64,
}

impl From<Bandwidth> for v1::Bandwidth {
    fn from(bandwidth: Bandwidth) -> Self {
        Self {
            ingress_rate: bandwidth.ingress_rate,
            ingress_burst: bandwidth.ingress_burst,
            egress_rate: bandwidth.egress_rate,
            egress_burst: bandwidth.egress_burst,
            egress_share: bandwidth.egress_share,
        }
    }
}

impl From<v1::Bandwidth> for Bandwidth {
    fn from(bandwidth: v1::Bandwidth) -> Self {
        Self {
            ingress_rate: bandwidth.ingress_rate,
            ingress_burst: bandwidth.ingress_burst,
            egress_rate: bandwidth.egress_rate,
            egress_burst: bandwidth.egress_burst,
            egress_share: bandwidth.egress_share,
        }
    }
}

/// The limit of what all pods of a network may send together through one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalRate {
    /// The network's name.
    pub network: String,
    /// The rate in bits per second.
    pub rate: u64,
}
