//! What ports have carried and dropped.

use netlink::Traffic;

/// What a port has carried and dropped since it was made, whomever it has served, as the pod behind it sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// By the pod: what the guard drops is among it.
    pub sent: Traffic,
    /// By the pod.
    pub received: Traffic,
    /// What was dropped on its way through the fabric.
    pub drops: Drops,
    /// How many packets on their way to the pod its limit has dropped.
    pub ingress_limit_drops: u64,
}

/// How many packets from and to a pod the fabric has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Of what the pod has sent: the guard. On a bridge those beyond the limit of what it sends are among them, for the
    /// kernel counts them together.
    pub guard: u64,
    /// Of what the pod has sent: its limit, where it is counted apart.
    pub egress_limit: u64,
    /// Of what was sent to the pod: what its network's `allow` lets nobody open.
    pub allow: u64,
}

/// What of a port's work is done by the card itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// How many rules there are by which its packets are dealt with, of those kinds that cards take over.
    pub rules: u64,
    /// How many of them the hardware carries out. One by which it leaves packets to the kernel is not among them.
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
