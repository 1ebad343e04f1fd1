//! The domain's types, and the checks of them: networks and what is in them, attachments, and what hosts request.
//!
//! Pure: no I/O, no clock. The journal stores these types as JSON; the service's `api::convert` turns them into the
//! API's messages.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod allow;
pub mod anti_spoofing;
pub mod check;
mod duplicates;
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
use offload_proto::{form::HOST_PORT_CONTAINER, v1::Pod};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use vf_alloc::{Device, FunctionId};

pub use allow::{AllowRule, AllowedProtocol, IngressRule, PortRange, Prefixes};
pub use anti_spoofing::{AntiSpoofing, Source};
pub use duplicates::duplicates;
pub use former_owner::FormerOwner;
pub use ip_families::IpFamilies;
pub use label::Label;
pub use layer2_domain::{CooledAddress, DomainAddress, Layer2Domain, Layer2Domains, overlap};
pub use port_mapping::share_an_address;
pub use port_mapping::{PortMapping, Protocol};
pub use request::{AttachSpec, LeaseSpec, WantedAddress};
pub use resource_version::ResourceVersion;
pub use rights::HostRights;
pub use routing::MAIN_TABLE;
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

/// The name of an attachment: the host from its certificate, the rest from the runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The attachment's host.
    pub host: HostName,
    /// `CNI_CONTAINERID`.
    pub container_id: Arc<str>,
    /// `CNI_IFNAME`.
    pub interface_name: Arc<str>,
}

impl AttachmentKey {
    /// Whether it names a host port: an attachment in the host's own namespace.
    pub fn is_host_port(&self) -> bool {
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
    /// The rate towards the pod.
    pub ingress_rate: u64,
    /// Burst towards the pod.
    pub ingress_burst: u64,
    /// The rate from the pod.
    pub egress_rate: u64,
    /// Burst from the pod.
    pub egress_burst: u64,
    /// The guaranteed share of what the pod sends. 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_share: u64,
}

/// The limit of what all pods of a network may send together through one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalRate {
    /// The network's name.
    pub network: String,
    /// The rate in bits per second.
    pub rate: u64,
}

/// Resolver settings, passed through to the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// The addresses of name servers.
    pub nameservers: Vec<IpAddr>,
    /// The local domain.
    pub domain: String,
    /// Search domains.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

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

/// A network as configuration files give it. The journal keeps a copy with each attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// The bridge's name. `None`: `fabric.bridge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// The VLAN, 1 to 4094. `None`: untagged.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The outer VLAN around all that pods send (QinQ). `None`: no outer tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_vlan: Option<u16>,
    /// The priority in the tag of what pods send, 0 to 7. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vlan_priority: u8,
    /// Further VLANs, whose frames pods tag themselves.
    #[serde(default)]
    pub trunk: BTreeSet<u16>,
    /// The VF pool.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// The interfaces' MTU in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u32,
    /// The subnets. Empty: pods have no addresses.
    #[serde(default)]
    pub subnets: Vec<Subnet>,
    /// The pods' routes, in addition to the default routes by the subnets' gateways.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// The pods' policy rules.
    #[serde(default)]
    pub rules: Vec<PolicyRule>,
    /// The sysctls of the pods' interfaces.
    #[serde(default, skip_serializing_if = "Sysctls::is_empty")]
    pub sysctls: Sysctls,
    /// The pods' resolver settings.
    #[serde(default)]
    pub dns: Dns,
    /// The rate limits of each attachment.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// The limit of what all its pods may send together through one card, in bits per second. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total_egress_rate: u64,
    /// What the guard checks.
    #[serde(default)]
    pub anti_spoofing: AntiSpoofing,
    /// Further sources that all its pods may send from.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allowed_sources: BTreeSet<Source>,
    /// Further sources that its pods may request.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub optional_sources: BTreeSet<Source>,
    /// Whether requests that name no network get it.
    #[serde(default)]
    pub default: bool,
    /// Whether its pods reach everything through its gateways, also each other: their addresses have no prefix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_hop: bool,
    /// The kind of device that answers its gateways' addresses.
    #[serde(default, skip_serializing_if = "GatewayMode::is_router")]
    pub gateway_mode: GatewayMode,
    /// The networks to whose pods its pods may open connections through the gateway.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reaches: BTreeSet<String>,
    /// Whether its pods reach the outside with the DPU's address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nat: bool,
    /// The prefix of the names of pods' further interfaces that have no name. Empty: the host's setting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interface_prefix: String,
    /// The link group of its pods' representors. 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub link_group: u32,
    /// The alias of its pods' representors. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_alias: String,
    /// The Kubernetes namespaces whose pods may use it. Empty: all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    /// The rules for connections to its pods. Empty: all connections are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowRule>,
}

/// The kind of device that answers a network's gateway addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayMode {
    /// A router outside.
    #[default]
    Router,
    /// This DPU.
    Dpu,
}

impl GatewayMode {
    /// The mode's name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Dpu => "dpu",
        }
    }

    /// `&self` because `skip_serializing_if` passes a reference.
    fn is_router(&self) -> bool {
        *self == Self::Router
    }
}

impl Network {
    /// A copy under another name. Rules that name the network itself follow.
    #[must_use]
    pub fn renamed(&self, name: &str) -> Self {
        let mut renamed = Self { name: name.to_owned(), ..self.clone() };
        for rule in &mut renamed.allow {
            if rule.from_networks.remove(&self.name) {
                rule.from_networks.insert(name.to_owned());
            }
        }
        renamed
    }

    /// The part that a pod with these addresses keeps from its attach. Settings that take effect for all pods at
    /// once, or concern only new pods, are cleared.
    #[must_use]
    pub fn given_to(&self, leases: &[Lease]) -> Self {
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

    /// The routes of a holder of these addresses: to first hops, the network's own, and for each family without one
    /// the default route by the first lease's gateway.
    #[must_use]
    pub fn routes_with(&self, leases: &[Lease]) -> Vec<Route> {
        let mut routes: Vec<_> = self.first_hops(leases).map(Route::on_link).collect();
        routes.extend(self.routes.iter().cloned());
        for gateway in leases.iter().filter_map(|lease| lease.gateway) {
            let Some(default) = default_route(gateway) else { continue };
            if !routes.iter().any(|route| route.replaces_default(&default)) {
                routes.push(default);
            }
        }
        routes
    }

    /// The gateways that are outside of the holder's prefixes.
    fn first_hops(&self, leases: &[Lease]) -> impl Iterator<Item = IpAddr> {
        let gateways = leases.iter().filter_map(|lease| lease.gateway);
        let is_on_link = |gateway: &IpAddr| match gateway {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        gateways.filter(move |gateway| self.first_hop && !is_on_link(gateway))
    }

    /// The limit that all its pods share.
    fn total_egress(&self) -> Option<TotalRate> {
        let (network, rate) = (self.name.clone(), self.total_egress_rate);
        (rate != 0).then_some(TotalRate { network, rate })
    }

    /// The settings of the representor of an idle VF. `named` has the prefixes of the networks in its rules.
    #[must_use]
    pub fn port_settings(&self, vf: FunctionId, named: &Prefixes) -> PortSettings {
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
            ingress_rules: allow::ingress_rules(&self.allow, named),
        }
    }

    /// The prefix length of a subnet's addresses in pods.
    #[must_use]
    pub fn length_in_pods(&self, subnet: IpNetwork) -> u8 {
        if self.first_hop { IpNetwork::from(subnet.ip()).prefix() } else { subnet.prefix() }
    }

    /// The addresses of one of its subnets that may be leased.
    #[must_use]
    pub fn pool_of(&self, subnet: &Subnet) -> SubnetSpec {
        SubnetSpec {
            cidr: subnet.cidr,
            // A link-local gateway is outside of the subnet.
            gateway: subnet.gateway.filter(|gateway| subnet.cidr.contains(*gateway)),
            ranges: subnet.ranges.iter().map(|range| (range.start, range.end)).collect(),
            exclude: subnet.exclude.iter().copied().chain(self.next_hops(subnet)).collect(),
        }
    }

    /// What the network uses the address for, for people.
    pub fn use_of(&self, address: IpAddr) -> &'static str {
        if self.subnets.iter().any(|subnet| subnet.gateway == Some(address)) {
            "gateway"
        } else if self.routes.iter().any(|route| route.gateway == Some(address)) {
            "next hop"
        } else {
            "network or broadcast address"
        }
    }

    /// The addresses in its subnets that its pods use and no attachment holds: gateways, next hops, and IPv4
    /// network and broadcast addresses.
    pub fn used_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().flat_map(|subnet| {
            let hops = self.next_hops(subnet).map(|hop| hop.ip());
            hops.chain(subnet.used_addresses())
        })
    }

    /// The next hops in the subnet. A pod with a router's address would have a route through itself, which the
    /// kernel refuses.
    fn next_hops(&self, subnet: &Subnet) -> impl Iterator<Item = IpNetwork> {
        let hops = self.routes.iter().filter_map(|route| route.gateway);
        hops.filter(|hop| subnet.cidr.contains(*hop)).map(IpNetwork::from)
    }
}

/// `&T` because `skip_serializing_if` passes a reference.
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
    /// The address, with its prefix length in the pod: usually that of its subnet.
    pub address: IpNetwork,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
}

/// Addresses that an attachment holds for an interface that another plugin makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherLease {
    /// The interface's name.
    pub interface_name: Arc<str>,
    /// The network of the addresses, as it was at the attach.
    pub network: Arc<Network>,
    /// The addresses.
    pub leases: Vec<Lease>,
}

/// The durable part of an attachment's state. Whether the port is programmed and the VF is in the pod is not
/// stored: the kernel and the host's agent report it after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Reserved, and to be programmed.
    Held,
    /// Being released. It holds its VF until the host reports the VF back and clean.
    Releasing,
}

/// The journal's record of an attachment. It has all that is needed to program and to free the attachment, even if
/// the network has changed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The attachment's key.
    pub key: AttachmentKey,
    /// The durable state.
    pub phase: Phase,
    /// The pod. Labels, not an identity.
    pub pod: Pod,
    /// The VF it holds.
    pub vf: FunctionId,
    /// The VF's device on its host.
    pub device: Device,
    /// The VF's MAC address.
    pub mac: MacAddress,
    /// The addresses it holds.
    pub leases: Vec<Lease>,
    /// The addresses that it holds for interfaces which other plugins make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_leases: Vec<FurtherLease>,
    /// The rate limits in force: the network's, or tighter ones that were requested.
    pub bandwidth: Bandwidth,
    /// The mapped ports that lead to it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Further sources that the pod has requested.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked_sources: BTreeSet<Source>,
    /// The IP families that the pod has requested. `None`: all that the network has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// The network as it was at the attach.
    pub network: Arc<Network>,
    /// The prefixes of the networks in its rules, as they were at the attach.
    #[serde(default, skip_serializing_if = "Prefixes::is_empty")]
    pub named_networks: Prefixes,
    /// The interface name of the group key, if this attachment is a group member. `None`: it is a group key, or in
    /// no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_interface: Option<Arc<str>>,
    /// The host's boot id at the attach.
    pub boot_id: String,
    /// The time of the attach, in milliseconds since 1970, UTC.
    pub created_at: i64,
}

/// The settings of an attachment's representor, enough for all programming steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The VF behind the representor.
    pub vf: FunctionId,
    /// The pod's MAC address.
    pub mac: MacAddress,
    /// The pod's addresses of both families.
    pub addresses: Vec<IpAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bridge's name. `None`: the first or only bridge.
    pub bridge: Option<String>,
    /// Access VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// The VLANs that pass tagged.
    pub trunk: BTreeSet<u16>,
    /// The representor's group and alias, for other programs' rules.
    pub label: Label,
    /// Rate limits.
    pub bandwidth: Bandwidth,
    /// The limit that the pod shares with its network. `None`: none.
    pub total_egress: Option<TotalRate>,
    /// What the guard checks.
    pub anti_spoofing: AntiSpoofing,
    /// Further sources that the pod may send from, as far as the guard checks sources.
    pub allowed_sources: BTreeSet<Source>,
    /// The rules for connections to the pod. `None`: all connections are allowed.
    pub ingress_rules: Option<Vec<IngressRule>>,
}

impl PortSettings {
    /// Whether there is any rate limit or share.
    #[must_use]
    pub fn has_rates(&self) -> bool {
        self.bandwidth != Bandwidth::default() || self.total_egress.is_some()
    }
}

impl Record {
    /// The attachment's name in a refusal of `host`. Hides the attachments of other hosts.
    pub fn named_to(&self, host: &HostName) -> String {
        match self.key.host == *host {
            true => format!("attachment {} ({})", self.id, self.key),
            false => "an attachment of another host".to_owned(),
        }
    }

    /// The holder for people: the pod, if it has a name, and the key.
    pub fn holder(&self) -> String {
        let Pod { namespace, name, .. } = &self.pod;
        match name.is_empty() {
            true => self.key.to_string(),
            false => format!("pod {namespace}/{name} ({})", self.key),
        }
    }

    /// The settings of its representor.
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

    /// The addresses that the guard lets pass. A pod that requested none gets its link-local address, which passes
    /// anyway: without any address, the guard would check none.
    fn checked_addresses(&self) -> Vec<IpAddr> {
        if self.leases.is_empty() && self.families.is_some() {
            return vec![self.mac.link_local().into()];
        }
        self.leases.iter().map(|lease| lease.address.ip()).collect()
    }

    /// The further sources that the guard checks. Without known addresses of the pod, the guard checks MAC
    /// addresses only.
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

    /// All addresses that it holds, each with its network.
    pub fn held(&self) -> impl Iterator<Item = (&Arc<Network>, &Lease)> {
        let own = self.leases.iter().map(|lease| (&self.network, lease));
        let further = self.further_leases.iter();
        own.chain(further.flat_map(|its| its.leases.iter().map(|lease| (&its.network, lease))))
    }

    /// The addresses that the pod uses without holding them, each with its network as it was at the attach:
    /// gateways, next hops, and IPv4 network and broadcast addresses of its subnets.
    pub fn used_addresses(&self) -> impl Iterator<Item = (&Arc<Network>, IpAddr)> {
        self.networks()
            .flat_map(|network| network.used_addresses().map(move |address| (network, address)))
    }

    /// A copy in which the network `from` is called `to`. `None`: the record does not use that network.
    #[must_use]
    pub fn with_network_renamed(&self, from: &str, to: &str) -> Option<Self> {
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

    /// The networks of its addresses, its own first. No two are equal.
    pub fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        [&self.network].into_iter().chain(self.further_leases.iter().map(|its| &its.network))
    }

    /// The key of its group. `None`: the attachment is no group member.
    #[must_use]
    pub fn group_key(&self) -> Option<AttachmentKey> {
        let interface = self.group_interface.as_ref()?;
        Some(AttachmentKey { interface_name: Arc::clone(interface), ..self.key.clone() })
    }

    /// All further sources that the pod may send from.
    #[must_use]
    pub fn allowed_sources(&self) -> BTreeSet<Source> {
        self.network.allowed_sources.union(&self.asked_sources).copied().collect()
    }

    /// The pod's routes, except unicast routes of a family that the pod did not request.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let mut routes = self.network.routes_with(&self.leases);
        let families = self.families.unwrap_or(IpFamilies::ALL);
        let is_usable = |route: &Route| families.include(route.destination.ip());
        routes.retain(|route| !route.kind.is_unicast() || is_usable(route));
        routes
    }

    /// The pod's policy rules, each with a prefix as its source.
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

/// The state of an attachment, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachmentState {
    /// Recorded durably, and not known to be programmed.
    Reserved,
    /// The eswitch forwards for it. The host has not reported the VF in the pod.
    Programmed,
    /// The host has reported the VF in the pod.
    Attached,
    /// Being released.
    Releasing,
    /// It continues, but its host is no longer in the configuration.
    HostRemoved,
}

impl AttachmentState {
    /// All states in order.
    pub const ALL: [Self; 5] =
        [Self::Reserved, Self::Programmed, Self::Attached, Self::Releasing, Self::HostRemoved];

    /// The state's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Programmed => "programmed",
            Self::Attached => "attached",
            Self::Releasing => "releasing",
            Self::HostRemoved => "host_removed",
        }
    }
}

/// An attachment as callers get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentView {
    /// The attachment's record.
    pub record: Arc<Record>,
    /// The attachment's state.
    pub state: AttachmentState,
}
