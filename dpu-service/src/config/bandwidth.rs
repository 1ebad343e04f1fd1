//! What makes sense in rate limits: a network's, and those that a pod asks for.

use crate::model::{Bandwidth, Network};

/// What `tc` can express: 4 GiB.
const MOST_BURST_BITS: u64 = u32::MAX as u64 * 8;

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
    let limits = named.filter_map(|(names, (rate, burst))| check_limit(names, rate, burst));
    limits.chain(check_share(bandwidth, whose)).collect()
}

/// Checks what all pods of a network may send together.
pub(super) fn check_total(network: &Network) -> Option<String> {
    let (total, share) = (network.total_egress_rate, network.bandwidth.egress_share);
    check_rate("total_egress_rate", total).or_else(|| {
        (total != 0 && share > total).then(|| {
            format!(
                "bandwidth.egress_share {share} must be at most total_egress_rate {total}: nobody is sure of more \
                 than all may send together"
            )
        })
    })
}

fn check_share(bandwidth: &Bandwidth, whose: LimitsOf) -> Option<String> {
    let Bandwidth { egress_share: share, egress_rate: rate, .. } = *bandwidth;
    match whose {
        LimitsOf::Pod => (share != 0).then(|| {
            format!("bandwidth.egressShare {share} can't be asked for: it is the network's to give")
        }),
        LimitsOf::Network if rate != 0 && share > rate => Some(format!(
            "bandwidth.egress_share {share} must be at most bandwidth.egress_rate {rate}: a pod is sure of no more \
             than it may send"
        )),
        LimitsOf::Network => check_rate("bandwidth.egress_share", share),
    }
}

fn check_limit([rate_name, burst_name]: [&str; 2], rate: u64, burst: u64) -> Option<String> {
    if rate == 0 && burst != 0 {
        return Some(format!("bandwidth.{burst_name} needs bandwidth.{rate_name} beside it"));
    }
    check_rate(&format!("bandwidth.{rate_name}"), rate).or_else(|| {
        (burst > MOST_BURST_BITS).then(|| {
            format!("bandwidth.{burst_name} {burst} must be at most {MOST_BURST_BITS} bits")
        })
    })
}

fn check_rate(name: &str, rate: u64) -> Option<String> {
    let is_too_small = (1..8000).contains(&rate);
    is_too_small
        .then(|| format!("{name} {rate} must be at least 8000 bits per second, or 0 for none"))
}
