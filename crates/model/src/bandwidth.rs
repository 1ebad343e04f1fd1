//! Rate limits.

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

/// The limit of what all pods of a network may send together through one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalRate {
    /// The network's name.
    pub network: String,
    /// The rate in bits per second.
    pub rate: u64,
}
