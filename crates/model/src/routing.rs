//! Routes, policy rules and sysctls of pods' interfaces.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use ipnetwork::IpNetwork;
use netlink::{RouteKind, RouteScope};
use offload_proto::v1;
use serde::{Deserialize, Serialize};

use super::is_zero;

/// The number of the main table.
pub const MAIN_TABLE: u32 = 254;

/// The metric of IPv6 routes without a priority. IPv4 routes without one have metric 0.
const IPV6_COST: u32 = 1024;

/// A route of a pod. 0 leaves a value to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destination.
    pub destination: IpNetwork,
    /// The next hop. `None`: the destination is on the link.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// The path MTU in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// The advertised TCP maximum segment size in bytes.
    #[serde(default)]
    pub advmss: u32,
    /// The metric.
    #[serde(default)]
    pub priority: u32,
    /// The table. 0: the main table.
    #[serde(default)]
    pub table: u32,
    /// The scope. `None`: link without a gateway, global with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RouteScope>,
    /// The route's kind.
    #[serde(default, skip_serializing_if = "RouteKind::is_unicast")]
    pub kind: RouteKind,
    /// Whether the gateway is on the link although no subnet contains it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub onlink: bool,
}

impl Route {
    /// A route to a neighbour on the link.
    #[must_use]
    pub(super) fn on_link(neighbour: IpAddr) -> Self {
        Self { gateway: None, ..Self::by(neighbour.into(), neighbour) }
    }

    /// A route to `destination` by a gateway.
    #[must_use]
    pub(super) const fn by(destination: IpNetwork, gateway: IpAddr) -> Self {
        Self {
            destination,
            gateway: Some(gateway),
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: 0,
            scope: None,
            kind: RouteKind::Unicast,
            onlink: false,
        }
    }

    /// The table's number.
    #[must_use]
    pub(crate) const fn table_in_force(&self) -> u32 {
        if self.table == 0 { MAIN_TABLE } else { self.table }
    }

    /// The metric in the kernel, for the first interface of a pod.
    #[must_use]
    pub fn cost(&self) -> u32 {
        match (self.priority, self.destination) {
            (0, IpNetwork::V6(_)) => IPV6_COST,
            (priority, _) => priority,
        }
    }

    /// Whether the route replaces the default route of its family, or has its place in the kernel.
    #[must_use]
    pub(super) fn replaces_default(&self, default: &Self) -> bool {
        self.destination == default.destination
            && self.table_in_force() == default.table_in_force()
            && (self.kind.is_unicast() || self.cost() == default.cost())
    }
}

/// A policy rule for the pod: traffic from `source` uses `table`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// The source of the packets that the rule applies to.
    pub source: RuleSource,
    /// The table to look up.
    pub table: u32,
    /// The priority. 0 leaves it to the kernel.
    #[serde(default)]
    pub priority: u32,
}

/// The source of a policy rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RuleSource {
    /// A prefix.
    Prefix(IpNetwork),
    /// Each of the pod's own addresses.
    Own,
    /// Each of the pod's own IPv4 addresses.
    OwnIpv4,
    /// Each of the pod's own IPv6 addresses.
    OwnIpv6,
}

impl RuleSource {
    /// The prefixes of the source in a pod with these addresses.
    #[must_use]
    pub fn prefixes(self, own: impl Iterator<Item = IpAddr>) -> Vec<IpNetwork> {
        match self {
            Self::Prefix(prefix) => vec![prefix],
            own_of => own.filter(|ip| own_of.is_of(*ip)).map(IpNetwork::from).collect(),
        }
    }

    const fn is_of(self, own: IpAddr) -> bool {
        match self {
            Self::Prefix(_) => false,
            Self::Own => true,
            Self::OwnIpv4 => own.is_ipv4(),
            Self::OwnIpv6 => own.is_ipv6(),
        }
    }
}

impl fmt::Display for RuleSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => fmt::Display::fmt(prefix, out),
            Self::Own => out.write_str("own"),
            Self::OwnIpv4 => out.write_str("own-ipv4"),
            Self::OwnIpv6 => out.write_str("own-ipv6"),
        }
    }
}

/// The text names no source.
#[derive(Debug, thiserror::Error)]
#[error(
    "is neither a prefix in CIDR notation, such as 10.1.0.0/16, nor \"own\", \"own-ipv4\" or \"own-ipv6\""
)]
pub struct NoSource;

impl FromStr for RuleSource {
    type Err = NoSource;

    fn from_str(text: &str) -> Result<Self, NoSource> {
        match text {
            "own" => Ok(Self::Own),
            "own-ipv4" => Ok(Self::OwnIpv4),
            "own-ipv6" => Ok(Self::OwnIpv6),
            prefix => prefix.parse().map(Self::Prefix).map_err(|_| NoSource),
        }
    }
}

impl TryFrom<String> for RuleSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|error| format!("source {text:?} {error}"))
    }
}

impl From<RuleSource> for String {
    fn from(source: RuleSource) -> Self {
        source.to_string()
    }
}

impl From<&Route> for v1::Route {
    fn from(route: &Route) -> Self {
        Self {
            destination: route.destination.to_string(),
            gateway: route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
            mtu: route.mtu,
            advmss: route.advmss,
            priority: route.priority,
            table: route.table,
            scope: route.scope.map(|scope| scope.name().into()).unwrap_or_default(),
            kind: if route.kind.is_unicast() { "" } else { route.kind.name() }.into(),
            onlink: route.onlink,
        }
    }
}

impl From<&PolicyRule> for v1::PolicyRule {
    fn from(rule: &PolicyRule) -> Self {
        Self { source: rule.source.to_string(), table: rule.table, priority: rule.priority }
    }
}

impl From<&Sysctls> for v1::Sysctls {
    fn from(sysctls: &Sysctls) -> Self {
        Self { ipv4: sysctls.ipv4.clone(), ipv6: sysctls.ipv6.clone() }
    }
}

/// Sysctls of a pod's interface, by their names below `net.ipv4.conf.IF` and `net.ipv6.conf.IF`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sysctls {
    /// Sysctls of IPv4 and ARP.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv4: BTreeMap<String, i32>,
    /// Sysctls of IPv6 and neighbour discovery.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv6: BTreeMap<String, i32>,
}

impl Sysctls {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
