//! What hosts ask for.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr, sync::Arc};

use ipnetwork::{IpNetwork, IpNetworkError};
use netlink::MacAddress;
use offload_proto::v1::Pod;
use vf_alloc::{Device, VfPromise};

use super::{AttachmentKey, Bandwidth, IpFamilies, PortMapping, Source};

/// What a host asks for, read and checked for form, not yet against networks and pools.
#[derive(Clone, Debug)]
pub struct AttachSpec {
    /// The attachment's key.
    pub key: AttachmentKey,
    /// Network name. `None`: the default network.
    pub network: Option<String>,
    /// Whom it serves. Labels, not identities.
    pub pod: Pod,
    /// A VF that somebody else chose, by its device on the host.
    pub device: Option<Device>,
    /// The VF, of those that were promised to its host, that the host has taken for it.
    pub promised: Option<VfPromise>,
    /// A MAC address asked for.
    pub mac: Option<MacAddress>,
    /// Addresses asked for.
    pub addresses: Vec<WantedAddress>,
    /// The families of which it asks for an address. `None`: each that the network has.
    pub families: Option<IpFamilies>,
    /// Rate limits asked for.
    pub bandwidth: Bandwidth,
    /// The DPU's ports that shall lead to it, in order, of which no two are the same.
    pub port_mappings: Vec<PortMapping>,
    /// Whom the pod asks to send for besides itself.
    pub asked_sources: BTreeSet<Source>,
    /// Addresses asked for, for interfaces of the pod that others make.
    pub further_leases: Vec<LeaseSpec>,
    /// The interface of the pod whose attachment leads this one. `None`: it leads, or is by itself.
    pub lead: Option<Arc<str>>,
}

impl AttachSpec {
    /// What it would be to be attached to the network of one of its further leases, with the addresses of that.
    #[must_use]
    pub(crate) fn of_lease(&self, lease: &LeaseSpec) -> Self {
        Self {
            network: Some(lease.network.clone()),
            device: None,
            promised: None,
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

/// Addresses of a network for an interface of a pod that others make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSpec {
    /// The interface's name.
    pub interface_name: Arc<str>,
    /// Network name.
    pub network: String,
    /// Addresses asked for.
    pub addresses: Vec<WantedAddress>,
}

/// An address that a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The prefix length that it is to have. `None`: its subnet's.
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
