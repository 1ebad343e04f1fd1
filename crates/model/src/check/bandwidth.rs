//! Checks of rate limits: a network's, and those that a pod requests.

use crate::{Bandwidth, Network};

/// The largest burst that `tc` can express, in bits: 4 GiB.
const MOST_BURST_BITS: u64 = u32::MAX as u64 * 8;

/// The author of rate limits, which decides the names of the keys.
#[derive(Clone, Copy, Debug)]
pub enum LimitsOf {
    /// A network.
    Network,
    /// A pod, through its runtime.
    Pod,
}

impl LimitsOf {
    /// The names of rate and burst, first towards the pod, then from it.
    const fn names(self) -> [[&'static str; 2]; 2] {
        match self {
            Self::Network => [["ingress_rate", "ingress_burst"], ["egress_rate", "egress_burst"]],
            Self::Pod => [["ingressRate", "ingressBurst"], ["egressRate", "egressBurst"]],
        }
    }
}

/// Checks the rate limits of a network or a request. Returns one sentence for each problem.
pub fn check_bandwidth(bandwidth: &Bandwidth, whose: LimitsOf) -> Vec<String> {
    let directions = [
        (bandwidth.ingress_rate, bandwidth.ingress_burst),
        (bandwidth.egress_rate, bandwidth.egress_burst),
    ];
    let named = whose.names().into_iter().zip(directions);
    let limits = named.filter_map(|(names, (rate, burst))| check_limit(names, rate, burst));
    limits.chain(check_share(bandwidth, whose)).collect()
}

/// Checks the total rate of a network's pods.
pub(super) fn check_total(network: &Network) -> Option<String> {
    let (total, share) = (network.total_egress_rate, network.bandwidth.egress_share);
    check_rate("total_egress_rate", total).or_else(|| {
        (total != 0 && share > total).then(|| {
            format!(
                "bandwidth.egress_share {share} must be at most total_egress_rate {total}: a pod's share can't \
                 exceed what all may send together"
            )
        })
    })
}

fn check_share(bandwidth: &Bandwidth, whose: LimitsOf) -> Option<String> {
    let Bandwidth { egress_share: share, egress_rate: rate, .. } = *bandwidth;
    match whose {
        LimitsOf::Pod => (share != 0).then(|| {
            format!("bandwidth.egressShare {share} can't be requested: only a network sets it")
        }),
        LimitsOf::Network if rate != 0 && share > rate => Some(format!(
            "bandwidth.egress_share {share} must be at most bandwidth.egress_rate {rate}: a pod's share can't \
             exceed what it may send"
        )),
        LimitsOf::Network => check_rate("bandwidth.egress_share", share),
    }
}

fn check_limit([rate_name, burst_name]: [&str; 2], rate: u64, burst: u64) -> Option<String> {
    if rate == 0 && burst != 0 {
        return Some(format!("bandwidth.{burst_name} needs bandwidth.{rate_name}, too"));
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
