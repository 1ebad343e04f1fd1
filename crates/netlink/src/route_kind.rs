//! Kinds and scopes of routes, with their names in configurations and in `ip route`.

use std::str::FromStr;

use netlink_packet_route::route::{RouteScope as KernelScope, RouteType};
use serde::{Deserialize, Serialize};

/// What the kernel does with the packets of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteKind {
    /// Packets are forwarded.
    #[default]
    Unicast,
    /// Packets are dropped without an answer.
    Blackhole,
    /// Packets are dropped; the sender gets an ICMP error: destination unreachable.
    Unreachable,
    /// Packets are dropped; the sender gets an ICMP error: administratively prohibited.
    Prohibit,
}

/// The scope of an IPv4 route. IPv6 routes have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteScope {
    /// The destination is anywhere.
    Global,
    /// The destination is on the link.
    Link,
    /// The destination is this host itself.
    Host,
}

/// A text is none of the names of an enumeration.
#[derive(Debug, thiserror::Error)]
#[error("must be {0}")]
pub struct UnknownName(
    /// The names, in quotes.
    pub &'static str,
);

impl RouteKind {
    const ALL: [Self; 4] = [Self::Unicast, Self::Blackhole, Self::Unreachable, Self::Prohibit];

    /// The kind's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
        }
    }

    /// Whether packets are forwarded. `&self` because `skip_serializing_if` passes a reference.
    #[must_use]
    pub fn is_unicast(&self) -> bool {
        *self == Self::Unicast
    }

    pub(crate) fn of_kernel(kind: RouteType) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.in_kernel() == kind)
    }

    pub(crate) const fn in_kernel(self) -> RouteType {
        match self {
            Self::Unicast => RouteType::Unicast,
            Self::Blackhole => RouteType::BlackHole,
            Self::Unreachable => RouteType::Unreachable,
            Self::Prohibit => RouteType::Prohibit,
        }
    }
}

impl RouteScope {
    const ALL: [Self; 3] = [Self::Global, Self::Link, Self::Host];

    /// The scope's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Link => "link",
            Self::Host => "host",
        }
    }

    pub(crate) fn of_kernel(scope: KernelScope) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.in_kernel() == scope)
    }

    pub(crate) const fn in_kernel(self) -> KernelScope {
        match self {
            Self::Global => KernelScope::Universe,
            Self::Link => KernelScope::Link,
            Self::Host => KernelScope::Host,
        }
    }
}

impl FromStr for RouteKind {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let names = "\"unicast\", \"blackhole\", \"unreachable\" or \"prohibit\"";
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownName(names))
    }
}

impl FromStr for RouteScope {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let names = "\"global\", \"link\" or \"host\"";
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or(UnknownName(names))
    }
}
