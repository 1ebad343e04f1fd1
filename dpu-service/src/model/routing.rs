//! Routes, policy rules and settings of pods' interfaces.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use super::is_zero;

/// The main table, which routes without a table are in.
pub(crate) const MAIN_TABLE: u32 = 254;

/// What IPv6 routes without a priority cost. Those of IPv4 cost nothing.
const IPV6_COST: u32 = 1024;

/// A route for the pod. A value of 0 leaves the choice to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Destination.
    pub destination: IpNetwork,
    /// Next hop. `None`: on the link.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Path MTU in bytes.
    #[serde(default)]
    pub mtu: u32,
    /// Advertised TCP maximum segment size in bytes.
    #[serde(default)]
    pub advmss: u32,
    /// Metric.
    #[serde(default)]
    pub priority: u32,
    /// Table; 0 is the main one.
    #[serde(default)]
    pub table: u32,
    /// How far away the destination is. `None`: the link where there is no gateway, else global.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RouteScope>,
    /// What becomes of packets.
    #[serde(default, skip_serializing_if = "RouteKind::is_unicast")]
    pub kind: RouteKind,
    /// Whether the gateway is on the link though no subnet contains it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub onlink: bool,
}

impl Route {
    /// To a neighbour.
    #[must_use]
    pub(super) fn on_link(neighbour: IpAddr) -> Self {
        Self { gateway: None, ..Self::by(neighbour.into(), neighbour) }
    }

    /// To `destination` by a gateway.
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

    /// The table that it is in.
    #[must_use]
    pub(crate) const fn table_in_force(&self) -> u32 {
        if self.table == 0 { MAIN_TABLE } else { self.table }
    }

    /// What it costs by the first interface of a pod.
    #[must_use]
    pub(crate) fn cost(&self) -> u32 {
        match (self.priority, self.destination) {
            (0, IpNetwork::V6(_)) => IPV6_COST,
            (priority, _) => priority,
        }
    }

    /// Whether a pod that has it needs no default route of this family besides, or can't have one.
    #[must_use]
    pub(super) fn stands_for_default(&self, default: &Self) -> bool {
        self.destination == default.destination
            && self.table_in_force() == default.table_in_force()
            && (self.kind.is_unicast() || self.cost() == default.cost())
    }
}

/// How far away the destination of an IPv4 route is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteScope {
    /// Anywhere.
    Global,
    /// On the link.
    Link,
    /// On the pod itself.
    Host,
}

impl RouteScope {
    const ALL: [Self; 3] = [Self::Global, Self::Link, Self::Host];

    /// Its name, as in the configuration.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Link => "link",
            Self::Host => "host",
        }
    }
}

/// There is no scope of that name.
#[derive(Debug, thiserror::Error)]
#[error("must be \"global\", \"link\" or \"host\"")]
pub struct UnknownScope;

impl FromStr for RouteScope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or(UnknownScope)
    }
}

/// What becomes of the packets that take a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteKind {
    /// They are forwarded.
    #[default]
    Unicast,
    /// They are dropped, and nobody is told.
    Blackhole,
    /// They are dropped, and the sender is told that the destination is unreachable.
    Unreachable,
    /// They are dropped, and the sender is told that it is prohibited.
    Prohibit,
}

impl RouteKind {
    const ALL: [Self; 4] = [Self::Unicast, Self::Blackhole, Self::Unreachable, Self::Prohibit];

    /// Its name, as in the configuration.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
        }
    }

    /// Whether packets are forwarded. By reference, as serde asks.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
    pub(crate) fn is_unicast(&self) -> bool {
        *self == Self::Unicast
    }
}

/// There is no kind of that name.
#[derive(Debug, thiserror::Error)]
#[error("must be \"unicast\", \"blackhole\", \"unreachable\" or \"prohibit\"")]
pub struct UnknownKind;

impl FromStr for RouteKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownKind)
    }
}

/// A policy rule for the pod: traffic from `source` uses `table`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Whom from.
    pub source: RuleSource,
    /// Table to look up.
    pub table: u32,
    /// Priority; 0 leaves the choice to the kernel.
    #[serde(default)]
    pub priority: u32,
}

/// Whose packets a policy rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RuleSource {
    /// From this prefix.
    Prefix(IpNetwork),
    /// From each of the pod's own addresses.
    Own,
    /// From each of its own addresses of IPv4.
    OwnIpv4,
    /// From each of its own addresses of IPv6.
    OwnIpv6,
}

impl RuleSource {
    /// The prefixes that it stands for in a pod that has these addresses.
    pub(super) fn prefixes(self, own: impl Iterator<Item = IpAddr>) -> Vec<IpNetwork> {
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

/// It is no source.
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

/// Settings of the pod's interface, by their names below `net.ipv4.conf.IF` and `net.ipv6.conf.IF`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sysctls {
    /// Of IPv4, and ARP.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv4: BTreeMap<String, i32>,
    /// Of IPv6, and neighbour discovery.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv6: BTreeMap<String, i32>,
}

impl Sysctls {
    /// Whether it says nothing.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
