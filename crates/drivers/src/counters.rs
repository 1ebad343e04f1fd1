//! Counters of ports.

use netlink::Traffic;

/// Counters of a port since it was created, from the pod's point of view. They span all attachments that used the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Sent by the pod, including what the guard drops.
    pub sent: Traffic,
    /// Received by the pod.
    pub received: Traffic,
    /// Dropped in the fabric.
    pub drops: Drops,
    /// Packets to the pod that its ingress limit dropped.
    pub ingress_limit_drops: u64,
}

/// Packets from and to a pod that the fabric dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Packets from the pod: by the guard. On a bridge this includes packets over the egress limit, because the kernel
    /// counts both together.
    pub guard: u64,
    /// Packets from the pod: by its egress limit, where that is counted separately.
    pub egress_limit: u64,
    /// Packets to the pod: not admitted by its network's `allow` rules.
    pub allow: u64,
}

/// Share of a port's rules that the card handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Number of rules for the port's packets, of the kinds that cards can offload.
    pub rules: u64,
    /// Number of those in hardware. Rules by which the hardware passes packets to the kernel do not count.
    pub in_hardware: u64,
}

/// Traffic of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// What the port has carried and dropped.
    pub counters: PortCounters,
    /// The rules that the card has taken over.
    pub offloaded: Offloaded,
}
