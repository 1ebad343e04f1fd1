//! Requests of hosts.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr, sync::Arc};

use ipnetwork::{IpNetwork, IpNetworkError};
use netlink::MacAddress;
use offload_proto::v1::Pod;
use vf_alloc::{Device, VfOffer};

use super::{AttachmentKey, Bandwidth, IpFamilies, PortMapping, Source};

/// An attach request, parsed and checked for form, but not yet against networks and pools.
#[derive(Clone, Debug)]
pub struct AttachSpec {
    /// The attachment's key.
    pub key: AttachmentKey,
    /// The network's name. `None`: the default network.
    pub network: Option<String>,
    /// The pod. Labels, not an identity.
    pub pod: Pod,
    /// The device of a VF that another program chose.
    pub device: Option<Device>,
    /// The offered VF that the host has taken for this attach.
    pub offered: Option<VfOffer>,
    /// The requested MAC address.
    pub mac: Option<MacAddress>,
    /// The requested addresses.
    pub addresses: Vec<WantedAddress>,
    /// The requested IP families. `None`: all that the network has.
    pub families: Option<IpFamilies>,
    /// The requested rate limits.
    pub bandwidth: Bandwidth,
    /// The requested mapped ports in order, without duplicates.
    pub port_mappings: Vec<PortMapping>,
    /// The requested further sources.
    pub asked_sources: BTreeSet<Source>,
    /// The addresses requested for interfaces that other plugins make.
    pub further_leases: Vec<LeaseSpec>,
    /// The interface name of the group key, if this attachment is a group member. `None`: it is a group key, or in
    /// no group.
    pub group_interface: Option<Arc<str>>,
}

impl AttachSpec {
    /// The request as if it were for the network and addresses of one of its further leases.
    #[must_use]
    pub fn of_lease(&self, lease: &LeaseSpec) -> Self {
        Self {
            network: Some(lease.network.clone()),
            device: None,
            offered: None,
            mac: None,
            addresses: lease.addresses.clone(),
            families: None,
            port_mappings: Vec::new(),
            asked_sources: BTreeSet::new(),
            further_leases: Vec::new(),
            ..self.clone()
        }
    }
}

/// Addresses of a network, requested for an interface that another plugin makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSpec {
    /// The interface's name.
    pub interface_name: Arc<str>,
    /// The network's name.
    pub network: String,
    /// The requested addresses.
    pub addresses: Vec<WantedAddress>,
}

/// An address that a pod requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The requested prefix length. `None`: the subnet's.
    pub prefix_length: Option<u8>,
}

impl FromStr for WantedAddress {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let network: IpNetwork = text.parse()?;
        let prefix_length = text.contains('/').then(|| network.prefix());
        Ok(Self { ip: network.ip(), prefix_length })
    }
}

impl fmt::Display for WantedAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_length {
            Some(length) => write!(out, "{}/{length}", self.ip),
            None => write!(out, "{}", self.ip),
        }
    }
}
