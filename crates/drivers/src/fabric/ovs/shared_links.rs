//! What the kernel reports about the links that all ports share.

use netlink::MacAddress;

/// What the kernel reports about the links that all ports share.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedLinks {
    /// The smallest MTU of the uplinks that could be joined, in bytes.
    pub(super) mtu: Option<u32>,
    /// The MAC addresses of the bridge and of its links that are not pods' ports.
    pub(super) macs: Vec<MacAddress>,
    /// A sentence about another program's flows that precede our guards.
    pub(super) problem: Option<String>,
}
