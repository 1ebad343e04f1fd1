//! Subnets of networks, and the addresses that attachments hold.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

/// A range of addresses to allocate, first and last included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// The first address.
    pub start: IpAddr,
    /// The last address.
    pub end: IpAddr,
}

/// A network's subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// The prefix, without host bits.
    pub cidr: IpNetwork,
    /// Its gateway, which is never allocated.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// The ranges to allocate from. Empty: the whole subnet.
    #[serde(default)]
    pub ranges: Vec<AddressRange>,
    /// Prefixes that are never allocated.
    #[serde(default)]
    pub exclude: Vec<IpNetwork>,
}

impl Subnet {
    /// Its gateway and, in an IPv4 subnet that has them, the network and broadcast addresses.
    pub fn used_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let IpNetwork::V4(cidr) = self.cidr else {
            return [self.gateway, None, None].into_iter().flatten();
        };
        let roomy = cidr.prefix() < 31;
        let [network, broadcast] =
            [cidr.network(), cidr.broadcast()].map(|ip| roomy.then_some(ip.into()));
        [self.gateway, network, broadcast].into_iter().flatten()
    }
}

/// One address that an attachment holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address, with its prefix length in the pod: usually that of its subnet.
    pub address: IpNetwork,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
}
