//! The service's own words: what its rooms hand to each other. The journal stores these as JSON;
//! `api::convert` turns them into the protocol's messages.

pub(crate) mod allow;
pub(crate) mod anti_spoofing;
mod former_owner;
mod ip_families;
mod label;
mod layer2_domain;
mod port_mapping;
mod request;
mod resource_version;
mod rights;
mod routing;

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipam::SubnetSpec;
use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{capability, form::HOST_PORT_CONTAINER, v1::Pod};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use vf_alloc::{Device, FunctionId};

pub use allow::{AllowRule, AllowedProtocol, Opening, PortRange, Prefixes};
pub use anti_spoofing::{AntiSpoofing, Source};
pub(crate) use former_owner::FormerOwner;
pub use ip_families::IpFamilies;
pub use label::Label;
pub(crate) use layer2_domain::{
    CooledAddress, DomainAddress, Layer2Domain, Layer2Domains, overlap,
};
pub(crate) use port_mapping::share_an_address;
pub use port_mapping::{PortMapping, Protocol};
pub use request::{AttachSpec, LeaseSpec, WantedAddress};
pub use resource_version::ResourceVersion;
pub use rights::HostRights;
pub(crate) use routing::MAIN_TABLE;
pub use routing::{PolicyRule, Route, RouteKind, RouteScope, RuleSource, Sysctls};

/// A host, by the name in its certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostName(pub Arc<str>);

impl fmt::Display for HostName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// An attachment's id: unique over all time, ordered by creation (UUID version 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachmentId(pub Uuid);

impl fmt::Display for AttachmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, out)
    }
}

/// What names an attachment: the host from the certificate, the rest from the runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The host it is on.
    pub host: HostName,
    /// `CNI_CONTAINERID`.
    pub container_id: Arc<str>,
    /// `CNI_IFNAME`.
    pub interface_name: Arc<str>,
}

impl AttachmentKey {
    /// Whether it is of an attachment in its host's own namespace.
    pub(crate) fn is_host_port(&self) -> bool {
        &*self.container_id == HOST_PORT_CONTAINER
    }
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.host, self.container_id, self.interface_name)
    }
}

/// Rate limits in bits per second and bits, seen from the pod. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bandwidth {
    /// Towards the pod.
    pub ingress_rate: u64,
    /// Burst towards the pod.
    pub ingress_burst: u64,
    /// From the pod.
    pub egress_rate: u64,
    /// Burst from the pod.
    pub egress_burst: u64,
    /// What the pod is sure of, of what it sends. 0: nothing.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_share: u64,
}

/// What all pods of a network may send together by one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalRate {
    /// The network's name.
    pub network: String,
    /// In bits per second.
    pub rate: u64,
}

/// Resolver settings, passed through to the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// Name servers' addresses.
    pub nameservers: Vec<IpAddr>,
    /// The local domain.
    pub domain: String,
    /// Search domains.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// First and last address that may be handed out, both included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// First.
    pub start: IpAddr,
    /// Last.
    pub end: IpAddr,
}

/// A network's subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// The subnet, without host bits.
    pub cidr: IpNetwork,
    /// Its gateway; never handed out.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// What may be handed out. Empty: all of it.
    #[serde(default)]
    pub ranges: Vec<AddressRange>,
    /// Never handed out.
    #[serde(default)]
    pub exclude: Vec<IpNetwork>,
}

impl Subnet {
    /// Its gateway and, in an IPv4 subnet that has them, the network and broadcast addresses.
    pub(crate) fn used_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let IpNetwork::V4(cidr) = self.cidr else {
            return [self.gateway, None, None].into_iter().flatten();
        };
        let roomy = cidr.prefix() < 31;
        let [network, broadcast] =
            [cidr.network(), cidr.broadcast()].map(|ip| roomy.then_some(ip.into()));
        [self.gateway, network, broadcast].into_iter().flatten()
    }
}

/// What a pod is attached to. The form in which configuration files give it. The journal keeps it with
/// each attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Its bridge. `None`: `fabric.bridge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// VLAN, 1 to 4094. `None`: untagged.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// VLAN of a tag around all that pods send and their own tags (QinQ). `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_vlan: Option<u16>,
    /// Priority in the tag of what pods send, 0 to 7. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vlan_priority: u8,
    /// VLANs that pods may use besides, tagged.
    #[serde(default)]
    pub trunk: BTreeSet<u16>,
    /// The VF pool.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// Interface MTU in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u32,
    /// Its subnets; none means an interface of layer 2 only.
    #[serde(default)]
    pub subnets: Vec<Subnet>,
    /// Routes for the pods, besides the default routes by the subnets' gateways.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Policy rules for the pods.
    #[serde(default)]
    pub rules: Vec<PolicyRule>,
    /// Settings of the pods' interfaces.
    #[serde(default, skip_serializing_if = "Sysctls::is_empty")]
    pub sysctls: Sysctls,
    /// Resolver settings for the pods.
    #[serde(default)]
    pub dns: Dns,
    /// Limits for each attachment.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// What all its pods may send together by one card, in bits per second. 0: no limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total_egress_rate: u64,
    /// What of pods' frames is checked.
    #[serde(default)]
    pub anti_spoofing: AntiSpoofing,
    /// Whom pods may send for besides themselves.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allowed_sources: BTreeSet<Source>,
    /// Whom else they may ask to send for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub optional_sources: BTreeSet<Source>,
    /// Whether it serves requests that name no network.
    #[serde(default)]
    pub default: bool,
    /// Whether its pods reach all others by its gateways, as if nobody else were on their link: their addresses have
    /// no prefix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_hop: bool,
    /// Who answers its gateways' addresses.
    #[serde(default, skip_serializing_if = "GatewayMode::is_router")]
    pub gateway_mode: GatewayMode,
    /// The networks whose pods its pods may open connections to, by the gateway.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reaches: BTreeSet<String>,
    /// Whether its pods reach the outside with the DPU's address for their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nat: bool,
    /// How the names of further interfaces of pods begin that nobody names. Empty: their host says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interface_prefix: String,
    /// The link group of its pods' representors. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub link_group: u32,
    /// Their alias. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_alias: String,
    /// The Kubernetes namespaces whose pods may use it. Empty: all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    /// Who may open connections to its pods. Empty: anybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowRule>,
}

/// Who answers the addresses of a network's gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayMode {
    /// Somebody else's router.
    #[default]
    Router,
    /// This DPU.
    Dpu,
}

impl GatewayMode {
    /// Its name, as in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Dpu => "dpu",
        }
    }

    /// By reference, as serde asks.
    fn is_router(&self) -> bool {
        *self == Self::Router
    }
}

impl Network {
    /// The network under another name. Its own rules may name it, too.
    #[must_use]
    pub(crate) fn renamed(&self, name: &str) -> Self {
        let mut renamed = Self { name: name.to_owned(), ..self.clone() };
        for rule in &mut renamed.allow {
            if rule.from_networks.remove(&self.name) {
                rule.from_networks.insert(name.to_owned());
            }
        }
        renamed
    }

    /// What a pod with these addresses keeps of it from its attach. What takes effect at once for all pods, or matters
    /// for new ones alone, is left empty.
    #[must_use]
    pub(crate) fn given_to(&self, leases: &[Lease]) -> Self {
        let is_used =
            |subnet: &&Subnet| leases.iter().any(|lease| subnet.cidr.contains(lease.address.ip()));
        let bare =
            |subnet: &Subnet| Subnet { ranges: Vec::new(), exclude: Vec::new(), ..subnet.clone() };
        Self {
            name: String::new(),
            pool: String::new(),
            subnets: self.subnets.iter().filter(is_used).map(bare).collect(),
            default: false,
            gateway_mode: GatewayMode::default(),
            reaches: BTreeSet::new(),
            nat: false,
            optional_sources: BTreeSet::new(),
            interface_prefix: String::new(),
            namespaces: BTreeSet::new(),
            ..self.clone()
        }
    }

    /// The routes of whoever holds these addresses of it: to the first hops, its own and, of each family that these
    /// leave without one, the default route by the first lease's gateway.
    #[must_use]
    pub(crate) fn routes_with(&self, leases: &[Lease]) -> Vec<Route> {
        let mut routes: Vec<_> = self.first_hops(leases).map(Route::on_link).collect();
        routes.extend(self.routes.iter().cloned());
        for gateway in leases.iter().filter_map(|lease| lease.gateway) {
            let Some(default) = default_route(gateway) else { continue };
            if !routes.iter().any(|route| route.stands_for_default(&default)) {
                routes.push(default);
            }
        }
        routes
    }

    /// The gateways that no prefix of the holder's own has on its link.
    fn first_hops(&self, leases: &[Lease]) -> impl Iterator<Item = IpAddr> {
        let gateways = leases.iter().filter_map(|lease| lease.gateway);
        let is_on_link = |gateway: &IpAddr| match gateway {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        gateways.filter(move |gateway| self.first_hop && !is_on_link(gateway))
    }

    /// What all its pods share.
    fn total_egress(&self) -> Option<TotalRate> {
        let (network, rate) = (self.name.clone(), self.total_egress_rate);
        (rate != 0).then_some(TotalRate { network, rate })
    }

    /// What it wants of the representor of a VF that serves nobody yet. `named` are the prefixes of the networks that
    /// its rules name.
    #[must_use]
    pub(crate) fn port_settings(&self, vf: FunctionId, named: &Prefixes) -> PortSettings {
        let sources = self.allowed_sources.iter().copied();
        PortSettings {
            vf,
            mac: MacAddress([0; 6]),
            addresses: Vec::new(),
            mtu: self.mtu,
            bridge: self.bridge.clone(),
            vlan: self.vlan,
            trunk: self.trunk.clone(),
            label: Label { group: self.link_group, alias: self.link_alias.clone() },
            bandwidth: self.bandwidth,
            total_egress: self.total_egress(),
            anti_spoofing: self.anti_spoofing,
            allowed_sources: sources.filter(|of| self.anti_spoofing.looks_at(*of)).collect(),
            openings: allow::openings(&self.allow, named),
        }
    }

    /// What of it only agents of some versions know, each with the capability that tells of it.
    pub(crate) fn asked_of_agents(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let has = |says: fn(&Route) -> bool| self.routes.iter().any(says);
        let asked = [
            ("a route's kind", capability::ROUTE_KINDS, has(|route| !route.kind.is_unicast())),
            ("a route's scope", capability::ROUTE_KINDS, has(|route| route.scope.is_some())),
            ("sysctls", capability::SYSCTLS, !self.sysctls.is_empty()),
        ];
        asked.into_iter().filter(|(_, _, is_asked)| *is_asked).map(|(what, known, _)| (what, known))
    }

    /// The prefix length that addresses of a subnet have in pods.
    #[must_use]
    pub(crate) fn length_in_pods(&self, subnet: IpNetwork) -> u8 {
        if self.first_hop { IpNetwork::from(subnet.ip()).prefix() } else { subnet.prefix() }
    }

    /// What may be leased of a subnet of it.
    #[must_use]
    pub(crate) fn pool_of(&self, subnet: &Subnet) -> SubnetSpec {
        SubnetSpec {
            cidr: subnet.cidr,
            // A link-local one is no address of the subnet.
            gateway: subnet.gateway.filter(|gateway| subnet.cidr.contains(*gateway)),
            ranges: subnet.ranges.iter().map(|range| (range.start, range.end)).collect(),
            exclude: subnet.exclude.iter().copied().chain(self.next_hops(subnet)).collect(),
        }
    }

    /// What the network uses an address for, as people call it.
    pub(crate) fn use_of(&self, address: IpAddr) -> &'static str {
        if self.subnets.iter().any(|subnet| subnet.gateway == Some(address)) {
            "gateway"
        } else if self.routes.iter().any(|route| route.gateway == Some(address)) {
            "next hop"
        } else {
            "network or broadcast address"
        }
    }

    /// What its pods use in its subnets without holding it: gateways, next hops and, of IPv4, network and broadcast
    /// addresses.
    pub(crate) fn used_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().flat_map(|subnet| {
            let hops = self.next_hops(subnet).map(|hop| hop.ip());
            hops.chain(subnet.used_addresses())
        })
    }

    /// A pod that had the address of a router would have a route by itself, which the kernel refuses.
    fn next_hops(&self, subnet: &Subnet) -> impl Iterator<Item = IpNetwork> {
        let hops = self.routes.iter().filter_map(|route| route.gateway);
        hops.filter(|hop| subnet.cidr.contains(*hop)).map(IpNetwork::from)
    }
}

/// By reference, as serde asks.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

fn default_pool() -> String {
    "default".into()
}

const fn default_mtu() -> u32 {
    1500
}

/// One address that an attachment holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address with the prefix length that it has in the pod: mostly its subnet's.
    pub address: IpNetwork,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
}

/// Addresses that an attachment holds for an interface of its pod that others make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherLease {
    /// The interface's name.
    pub interface_name: Arc<str>,
    /// The network that they are of, as it was at the attach.
    pub network: Arc<Network>,
    /// The addresses.
    pub leases: Vec<Lease>,
}

/// What is durable of an attachment's state. Whether it is programmed and whether the pod has its VF
/// is not stored: the kernel and the host's agent know, and tell after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Reserved; to be programmed.
    Held,
    /// Being given back; the VF is held until the host says that it is back and clean.
    Releasing,
}

/// The journal's record of an attachment: all that is needed to program it again and to free it,
/// whatever became of its network meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: AttachmentId,
    /// Its key.
    pub key: AttachmentKey,
    /// Durable state.
    pub phase: Phase,
    /// Whom it serves. Labels, not identities.
    pub pod: Pod,
    /// The VF it holds.
    pub vf: FunctionId,
    /// What the VF is known by on its host.
    #[serde(rename = "pci_address")] // as journals have it
    pub device: Device,
    /// The VF's MAC address.
    pub mac: MacAddress,
    /// The addresses it holds.
    pub leases: Vec<Lease>,
    /// What it holds for interfaces of its pod that others make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_leases: Vec<FurtherLease>,
    /// Rate limits in force: the network's, or tighter ones that were asked for.
    pub bandwidth: Bandwidth,
    /// The DPU's ports that lead to it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Whom the pod has asked to send for besides itself.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked_sources: BTreeSet<Source>,
    /// The families of which the pod has asked for an address. `None`: each that the network has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// The network as it was at the attach.
    pub network: Arc<Network>,
    /// Likewise the prefixes of the networks that its rules name.
    #[serde(default, skip_serializing_if = "Prefixes::is_empty")]
    pub named_networks: Prefixes,
    /// The interface of the pod whose attachment leads this one: they come and go together. `None`: it leads, or is
    /// by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<Arc<str>>,
    /// The host kernel's boot id at the attach.
    pub boot_id: String,
    /// Milliseconds since 1970, UTC.
    pub created_at: i64,
}

/// What an attachment wants of its representor: all that the programming steps need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The VF behind the representor.
    pub vf: FunctionId,
    /// The pod's MAC address.
    pub mac: MacAddress,
    /// The pod's addresses, of both families.
    pub addresses: Vec<IpAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bridge. `None`: the first, or the only one.
    pub bridge: Option<String>,
    /// Access VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// VLANs that pass tagged.
    pub trunk: BTreeSet<u16>,
    /// By what others' rules know the representor.
    pub label: Label,
    /// Rate limits.
    pub bandwidth: Bandwidth,
    /// What the pod shares with all of its network. `None`: no limit.
    pub total_egress: Option<TotalRate>,
    /// What of the pod's frames is checked.
    pub anti_spoofing: AntiSpoofing,
    /// Whom the pod may send for besides itself, as far as that is checked.
    pub allowed_sources: BTreeSet<Source>,
    /// What may be opened to the pod. `None`: anything.
    pub openings: Option<Vec<Opening>>,
}

impl PortSettings {
    /// Whether somebody has to keep the pod to any of it. An MTU the pod keeps by itself.
    #[must_use]
    pub(crate) fn needs_keeping(&self) -> bool {
        self.vlan.is_some()
            || !self.trunk.is_empty()
            || self.has_rates()
            || self.anti_spoofing != AntiSpoofing::Off
    }

    /// Whether any rate is to be kept to.
    #[must_use]
    pub(crate) fn has_rates(&self) -> bool {
        self.bandwidth != Bandwidth::default() || self.total_egress.is_some()
    }
}

impl Record {
    /// What a refusal of `host` calls it: a host learns of no other host's attachments.
    pub(crate) fn named_to(&self, host: &HostName) -> String {
        match self.key.host == *host {
            true => format!("attachment {} ({})", self.id, self.key),
            false => "an attachment of another host".to_owned(),
        }
    }

    /// How people know what it serves: its pod, where the runtime names one, and its key.
    pub(crate) fn holder(&self) -> String {
        let Pod { namespace, name, .. } = &self.pod;
        match name.is_empty() {
            true => self.key.to_string(),
            false => format!("pod {namespace}/{name} ({})", self.key),
        }
    }

    /// What it wants of its representor.
    #[must_use]
    pub fn port_settings(&self) -> PortSettings {
        PortSettings {
            mac: self.mac,
            addresses: self.checked_addresses(),
            bandwidth: self.bandwidth,
            allowed_sources: self.checked_sources(),
            ..self.network.port_settings(self.vf, &self.named_networks)
        }
    }

    /// The addresses that its port is to let pass. A pod that asked for none has the link-local one that follows from
    /// its MAC address, which is let pass anyway: without any, the guard would look at no address.
    fn checked_addresses(&self) -> Vec<IpAddr> {
        if self.leases.is_empty() && self.families.is_some() {
            return vec![self.mac.link_local().into()];
        }
        self.leases.iter().map(|lease| lease.address.ip()).collect()
    }

    /// Whom its port is to let pass besides the pod itself, of what its network looks at. Of a pod whose addresses
    /// nobody knows, no address is looked at, whichever it asked for.
    fn checked_sources(&self) -> BTreeSet<Source> {
        let mut sources = self.allowed_sources();
        sources.retain(|source| self.network.anti_spoofing.looks_at(*source));
        let network = &self.network.allowed_sources;
        let are_unknown = self.leases.is_empty() && self.families.is_none();
        if are_unknown && anti_spoofing::addresses(network).next().is_none() {
            sources.retain(|source| matches!(source, Source::Mac(_)));
        }
        sources
    }

    /// All addresses that it holds, each with the network that it is of.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&Arc<Network>, &Lease)> {
        let own = self.leases.iter().map(|lease| (&self.network, lease));
        let further = self.further_leases.iter();
        own.chain(further.flat_map(|its| its.leases.iter().map(|lease| (&its.network, lease))))
    }

    /// Addresses that the pod uses without holding them, each with its network as it was at the attach: in its subnets
    /// gateways, next hops and, of IPv4, network and broadcast addresses.
    pub(crate) fn used_addresses(&self) -> impl Iterator<Item = (&Arc<Network>, IpAddr)> {
        self.networks()
            .flat_map(|network| network.used_addresses().map(move |address| (network, address)))
    }

    /// The record with the name `to` for the network `from`. `None`: it has nothing of that network.
    #[must_use]
    pub(crate) fn with_network_renamed(&self, from: &str, to: &str) -> Option<Self> {
        if !self.networks().any(|network| network.name == from) {
            return None;
        }
        let mut renamed = self.clone();
        let further = renamed.further_leases.iter_mut().map(|lease| &mut lease.network);
        for network in further.chain([&mut renamed.network]).filter(|network| network.name == from)
        {
            *network = Arc::new(network.renamed(to));
        }
        if let Some(prefixes) = renamed.named_networks.remove(from) {
            renamed.named_networks.insert(to.to_owned(), prefixes);
        }
        Some(renamed)
    }

    /// The networks that it has something of, its own first. No two are the same.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        [&self.network].into_iter().chain(self.further_leases.iter().map(|its| &its.network))
    }

    /// The key of the attachment that leads it, if another one does.
    #[must_use]
    pub fn lead_key(&self) -> Option<AttachmentKey> {
        let lead = self.lead.as_ref()?;
        Some(AttachmentKey { interface_name: Arc::clone(lead), ..self.key.clone() })
    }

    /// Whom the pod may send for besides itself.
    #[must_use]
    pub fn allowed_sources(&self) -> BTreeSet<Source> {
        self.network.allowed_sources.union(&self.asked_sources).copied().collect()
    }

    /// The pod's routes: without those that lead by a family of which the pod has asked for no address.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let mut routes = self.network.routes_with(&self.leases);
        let families = self.families.unwrap_or(IpFamilies::ALL);
        let is_usable = |route: &Route| families.include(route.destination.ip());
        routes.retain(|route| !route.kind.is_unicast() || is_usable(route));
        routes
    }

    /// The pod's policy rules, each with a prefix for its source.
    #[must_use]
    pub fn rules(&self) -> Vec<PolicyRule> {
        let own = || self.leases.iter().map(|lease| lease.address.ip());
        let resolved = |rule: &PolicyRule| {
            let prefixes = rule.source.prefixes(own()).into_iter();
            let PolicyRule { table, priority, .. } = *rule;
            let rule =
                move |prefix| PolicyRule { source: RuleSource::Prefix(prefix), table, priority };
            prefixes.map(rule)
        };
        self.network.rules.iter().flat_map(resolved).collect()
    }
}

fn default_route(gateway: IpAddr) -> Option<Route> {
    let everything = match gateway {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Some(Route::by(IpNetwork::new(everything, 0).ok()?, gateway))
}

/// Where an attachment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachmentState {
    /// Recorded durably; not known to be programmed: not yet, or no longer.
    Reserved,
    /// The eswitch forwards for it; the host has not yet said that the pod has the VF.
    Programmed,
    /// The host said that the pod has the VF.
    Attached,
    /// Being given back.
    Releasing,
    /// It goes on, and its host is no longer in the configuration.
    HostRemoved,
}

impl AttachmentState {
    /// All of them, in order.
    pub(crate) const ALL: [Self; 5] =
        [Self::Reserved, Self::Programmed, Self::Attached, Self::Releasing, Self::HostRemoved];

    /// Its name, in lower case.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Programmed => "programmed",
            Self::Attached => "attached",
            Self::Releasing => "releasing",
            Self::HostRemoved => "host_removed",
        }
    }
}

/// An attachment as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentView {
    /// Its record.
    pub record: Arc<Record>,
    /// Where it stands.
    pub state: AttachmentState,
}
