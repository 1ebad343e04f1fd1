//! The links on which this DPU itself stands in networks, as their gateway.

use netlink::MacAddress;

/// What a gateway wants of the fabric: a link of the DPU's own in the network's VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPort {
    /// The network's name.
    pub network: String,
    /// Its VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// MTU in bytes.
    pub mtu: u32,
}

/// The link of a gateway. It is up; addresses are the caller's to put on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayLink {
    /// The network's name.
    pub network: String,
    /// The link's index.
    pub index: u32,
    /// The link's name.
    pub name: String,
    /// The link's Ethernet address, by which pods know the gateway.
    pub mac: MacAddress,
}
