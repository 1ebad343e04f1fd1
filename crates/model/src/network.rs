//! Networks.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipam::SubnetSpec;
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use vf_alloc::FunctionId;

use super::{
    AllowRule, AntiSpoofing, Bandwidth, Label, Lease, PolicyRule, PortSettings, Prefixes, Route,
    Source, Subnet, Sysctls, TotalRate, allow, is_zero,
};

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

    /// The settings of the representor of an idle VF. `named` has the prefixes of the networks in its rules.
    #[must_use]
    pub fn port_settings(&self, vf: FunctionId, named: &Prefixes) -> PortSettings {
        let sources = self.allowed_sources.iter().copied();
        let (network, rate) = (self.name.clone(), self.total_egress_rate);
        PortSettings {
            vf,
            mtu: self.mtu,
            bridge: self.bridge.clone(),
            vlan: self.vlan,
            trunk: self.trunk.clone(),
            label: Label { group: self.link_group, alias: self.link_alias.clone() },
            bandwidth: self.bandwidth,
            total_egress: (rate != 0).then_some(TotalRate { network, rate }),
            anti_spoofing: self.anti_spoofing,
            allowed_sources: sources.filter(|of| self.anti_spoofing.looks_at(*of)).collect(),
            ingress_rules: allow::ingress_rules(&self.allow, named),
            ..PortSettings::default()
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

fn default_pool() -> String {
    "default".into()
}

const fn default_mtu() -> u32 {
    1500
}

fn default_route(gateway: IpAddr) -> Option<Route> {
    let everything = match gateway {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Some(Route::by(IpNetwork::new(everything, 0).ok()?, gateway))
}
