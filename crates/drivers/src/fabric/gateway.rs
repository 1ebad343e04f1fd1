//! Links by which this DPU takes part in networks as their gateway.

use netlink::MacAddress;

/// A gateway's request to the fabric: a link of the DPU's own in the network's VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPort {
    /// The network's name.
    pub network: String,
    /// The bridge's name. `None`: the first or only bridge.
    pub bridge: Option<String>,
    /// The network's VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// MTU in bytes.
    pub mtu: u32,
}

/// A gateway's link. The fabric has switched it on; the caller sets addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayLink {
    /// The network's name.
    pub network: String,
    /// The link's index.
    pub index: u32,
    /// The link's name.
    pub name: String,
    /// The link's MAC address, which pods have as their gateway's neighbour entry.
    pub mac: MacAddress,
}

/// The MAC address of a network's gateway. It is derived from the network's name, so a gateway that is created
/// again has the same one. Locally administered; no attachment gets it.
pub fn mac_of(network: &str) -> MacAddress {
    let [a, b, c, d, e, ..] = hash(network).to_be_bytes();
    MacAddress([0x0e, a, b, c, d, e])
}

/// FNV-1a. Rust's own hashers may change between releases, and with them every gateway's MAC address.
pub(super) fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_mac_address_is_stable() {
        assert_eq!(mac_of("blue").to_string(), "0e:c5:cc:d2:9b:c2");
        assert_ne!(mac_of("green"), mac_of("blue"));
        assert!(mac_of("green").is_unicast());
    }
}
