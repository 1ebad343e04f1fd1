//! What ports have carried and dropped.

use netlink::Traffic;

/// What a port has carried and dropped since it was made, whomever it has served, as the pod behind it sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// By the pod: what the guard drops is among it.
    pub sent: Traffic,
    /// By the pod.
    pub received: Traffic,
    /// How many packets of what the pod has sent the guard has dropped.
    pub guard_drops: u64,
    /// How many packets on their way to the pod its limit has dropped.
    pub ingress_limit_drops: u64,
}

/// What of a port's work is done by the card itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// How many rules there are by which its packets are dealt with, of those kinds that cards take over.
    pub rules: u64,
    /// How many of them are in hardware.
    pub in_hardware: u64,
}

/// What is told of a port's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// What it has carried and dropped.
    pub counters: PortCounters,
    /// What of that the card does by itself.
    pub offloaded: Offloaded,
}
