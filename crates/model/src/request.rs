//! Requests of hosts.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr, sync::Arc};

use ipnetwork::{IpNetwork, IpNetworkError};
use netlink::MacAddress;
use offload_proto::v1::{self, Pod};
use serde::{Deserialize, Serialize};
use vf_alloc::{Device, VfOffer};

use super::{AttachmentKey, Bandwidth, IpFamilies, PortMapping, Source};

/// What a pod requests for one of its interfaces. A pod's DPU checks it against networks and pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InterfaceRequest {
    /// The network's name. Empty: the DPU's default network.
    pub network: String,
    /// The device of a VF that another program chose, for example the kubelet's device plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// The addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<WantedAddress>,
    /// The IP families. `None`: all that the network has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// The rate limits.
    pub bandwidth: Bandwidth,
    /// The mapped ports, without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Further sources to send from.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allowed_sources: BTreeSet<Source>,
}

impl InterfaceRequest {
    /// The network's name. `None`: the DPU's default network.
    #[must_use]
    pub fn named_network(&self) -> Option<&str> {
        Some(&*self.network).filter(|name| !name.is_empty())
    }
}

/// The part of an API message that says what the pod requests; the other fields have their defaults.
impl From<InterfaceRequest> for v1::AttachRequest {
    fn from(request: InterfaceRequest) -> Self {
        Self {
            network: request.network,
            device: request.device.map(|device| device.to_string()).unwrap_or_default(),
            mac: request.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            addresses: request.addresses.iter().map(ToString::to_string).collect(),
            families: request.families.map(Into::into),
            bandwidth: Some(request.bandwidth.into()),
            port_mappings: request.port_mappings.into_iter().map(Into::into).collect(),
            allowed_sources: request.allowed_sources.iter().map(ToString::to_string).collect(),
            ..Self::default()
        }
    }
}

/// An attach request, parsed and checked for form, but not yet against networks and pools.
#[derive(Clone, Debug)]
pub struct AttachSpec {
    /// The attachment's key.
    pub key: AttachmentKey,
    /// The pod. Labels, not an identity.
    pub pod: Pod,
    /// What the pod requests.
    pub interface: InterfaceRequest,
    /// The offered VF that the host has taken for this attach.
    pub offered: Option<VfOffer>,
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
            interface: InterfaceRequest {
                network: lease.network.clone(),
                addresses: lease.addresses.clone(),
                bandwidth: self.interface.bandwidth,
                ..InterfaceRequest::default()
            },
            offered: None,
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

netlink::serde_as_text!(WantedAddress);

impl From<IpAddr> for WantedAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, prefix_length: None }
    }
}
