//! What makes sense in rate limits: a network's, and those that a pod asks for.

use crate::model::Bandwidth;

/// What `tc` can express: 4 GiB.
const LARGEST_BURST: u64 = u32::MAX as u64 * 8;

/// Who wrote rate limits down, and so what they are called.
#[derive(Clone, Copy)]
pub(crate) enum LimitsOf {
    /// A network.
    Network,
    /// A pod, whose runtime passed them.
    Pod,
}

impl LimitsOf {
    /// Rate and burst towards the pod, and from it.
    const fn names(self) -> [[&'static str; 2]; 2] {
        match self {
            Self::Network => [["ingress_rate", "ingress_burst"], ["egress_rate", "egress_burst"]],
            Self::Pod => [["ingressRate", "ingressBurst"], ["egressRate", "egressBurst"]],
        }
    }
}

/// Checks rate limits: the network's, or those that a request asks for.
pub(crate) fn check_bandwidth(bandwidth: &Bandwidth, whose: LimitsOf) -> Vec<String> {
    let directions = [
        (bandwidth.ingress_rate, bandwidth.ingress_burst),
        (bandwidth.egress_rate, bandwidth.egress_burst),
    ];
    let named = whose.names().into_iter().zip(directions);
    named.filter_map(|(names, (rate, burst))| check_rate(names, rate, burst)).collect()
}

fn check_rate([rate_name, burst_name]: [&str; 2], rate: u64, burst: u64) -> Option<String> {
    if rate == 0 && burst != 0 {
        return Some(format!("bandwidth.{burst_name} needs bandwidth.{rate_name} beside it"));
    }
    if rate != 0 && rate < 8000 {
        return Some(format!(
            "bandwidth.{rate_name} {rate} must be at least 8000 bits per second, or 0 for no limit"
        ));
    }
    (burst > LARGEST_BURST)
        .then(|| format!("bandwidth.{burst_name} {burst} must be at most {LARGEST_BURST} bits"))
}
