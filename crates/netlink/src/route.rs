//! Routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
        RouteScope, RouteType,
    },
};
use nix::errno::Errno;
use rtnetlink::RouteMessageBuilder;

use crate::{
    Error, Request, Rtnl,
    request::{Existing, LINK},
};

/// The protocol of routes that come with addresses: RTPROT_KERNEL.
const BY_THE_KERNEL: u8 = 2;
/// What routes to the prefixes of IPv6 addresses cost: IP6_RT_PRIO_ADDRCONF.
const PREFIX_METRIC: u32 = 256;
/// The protocol of routes that nothing else is said of.
const BY_AN_ADMINISTRATOR: u8 = 4;

/// What becomes of the packets that take a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteKind {
    /// They leave by its link.
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
    const fn of_kernel(kind: RouteType) -> Option<Self> {
        Some(match kind {
            RouteType::Unicast => Self::Unicast,
            RouteType::BlackHole => Self::Blackhole,
            RouteType::Unreachable => Self::Unreachable,
            RouteType::Prohibit => Self::Prohibit,
            _ => return None,
        })
    }

    const fn in_kernel(self) -> RouteType {
        match self {
            Self::Unicast => RouteType::Unicast,
            Self::Blackhole => RouteType::BlackHole,
            Self::Unreachable => RouteType::Unreachable,
            Self::Prohibit => RouteType::Prohibit,
        }
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Unicast => "unicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
        })
    }
}

/// How far away the destinations of an IPv4 route are. Routes of IPv6 have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Behind a gateway.
    Global,
    /// On the link.
    Link,
    /// On this host.
    Host,
}

impl Scope {
    const fn of_kernel(scope: RouteScope) -> Option<Self> {
        Some(match scope {
            RouteScope::Universe => Self::Global,
            RouteScope::Link => Self::Link,
            RouteScope::Host => Self::Host,
            _ => return None,
        })
    }

    const fn in_kernel(self) -> RouteScope {
        match self {
            Self::Global => RouteScope::Universe,
            Self::Link => RouteScope::Link,
            Self::Host => RouteScope::Host,
        }
    }
}

/// A route. `0.0.0.0/0` and `::/0` are the default routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to. Host bits are ignored.
    pub destination: IpNetwork,
    /// What becomes of the packets. All but a unicast route has neither link nor gateway.
    pub kind: RouteKind,
    /// Through whom. `None`: directly.
    pub gateway: Option<IpAddr>,
    /// The index of the link. 0 where it has none.
    pub output: u32,
    /// Of IPv4, where it is another than usual. `None`: the link where there is no gateway, else global.
    pub scope: Option<Scope>,
    /// Takes the gateway for directly reachable though no connected prefix contains it.
    pub on_link: bool,
    /// The MTU of the path, in bytes.
    pub mtu: Option<u32>,
    /// The TCP segment size to advertise, in bytes.
    pub advertised_mss: Option<u32>,
    /// The metric: lower wins. `None`: the kernel's choice, 0 for IPv4 and 1024 for IPv6.
    pub priority: Option<u32>,
    /// The table. `None`: the main table, 254.
    pub table: Option<u32>,
    /// The source address to prefer.
    pub source: Option<IpAddr>,
    /// Who made it, as `rtm_protocol` tells. `None`: an administrator, as `ip route add` has it.
    pub protocol: Option<u8>,
}

impl Route {
    /// A route to `destination` by the link `output`.
    #[must_use]
    pub fn new(destination: IpNetwork, output: u32) -> Self {
        Self {
            destination,
            kind: RouteKind::Unicast,
            gateway: None,
            output,
            scope: None,
            on_link: false,
            mtu: None,
            advertised_mss: None,
            priority: None,
            table: None,
            source: None,
            protocol: None,
        }
    }

    /// A route to `destination` by which packets are dropped, as `kind` says.
    #[must_use]
    pub fn rejecting(kind: RouteKind, destination: IpNetwork) -> Self {
        Self { kind, ..Self::new(destination, 0) }
    }

    /// Through this gateway.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    /// Takes the gateway for directly reachable though no connected prefix contains it.
    #[must_use]
    pub fn on_link(self) -> Self {
        Self { on_link: true, ..self }
    }

    /// The route to the prefix of an address on the link `output`, as the kernel adds it with the address. `None`: it
    /// adds none, since the address has no others beside it.
    #[must_use]
    pub fn to_prefix_of(address: IpNetwork, output: u32) -> Option<Self> {
        let (is_alone, source, priority) = match address {
            IpNetwork::V4(v4) => (v4.prefix() == 32, Some(address.ip()), None),
            IpNetwork::V6(v6) => (v6.prefix() == 128, None, Some(PREFIX_METRIC)),
        };
        let prefix = IpNetwork::new(address.network(), address.prefix()).ok()?;
        let protocol = Some(BY_THE_KERNEL);
        let route = Self { source, priority, protocol, ..Self::new(prefix, output) };
        (!is_alone).then_some(route)
    }

    /// Whether the kernel added it with an address.
    #[must_use]
    pub fn is_by_the_kernel(&self) -> bool {
        self.protocol == Some(BY_THE_KERNEL)
    }

    fn message(&self) -> RouteMessage {
        match self.destination {
            IpNetwork::V4(v4) => {
                let message = RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(v4.network(), v4.prefix());
                self.describe(message)
            }
            IpNetwork::V6(v6) => {
                let message = RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(v6.network(), v6.prefix());
                self.describe(message)
            }
        }
    }

    fn describe<T>(&self, mut message: RouteMessageBuilder<T>) -> RouteMessage {
        message = message.kind(self.kind.in_kernel()).scope(self.scope_in_force().in_kernel());
        if self.output != 0 {
            message = message.output_interface(self.output);
        }
        if self.on_link {
            message = message.onlink();
        }
        if let Some(protocol) = self.protocol {
            message = message.protocol(protocol.into());
        }
        if let Some(priority) = self.priority {
            message = message.priority(priority);
        }
        if let Some(table) = self.table {
            message = message.table_id(table);
        }
        let mut message = message.build();
        message.attributes.extend(self.further_attributes());
        message
    }

    /// Table, destination and metric: where the kernel has room for one route.
    #[must_use]
    pub fn place(&self) -> (u32, IpAddr, u8, u32) {
        let table = self.table.unwrap_or_else(|| RouteHeader::RT_TABLE_MAIN.into());
        let usual = if self.destination.is_ipv6() { 1024 } else { 0 };
        let metric = self.priority.filter(|metric| *metric != 0).unwrap_or(usual);
        (table, self.destination.network(), self.destination.prefix(), metric)
    }

    /// How far away its destinations are, be it said or not.
    #[must_use]
    pub fn scope_in_force(&self) -> Scope {
        self.scope.unwrap_or_else(|| self.usual_scope())
    }

    fn usual_scope(&self) -> Scope {
        let is_direct = self.gateway.is_none() && self.kind == RouteKind::Unicast;
        if is_direct { Scope::Link } else { Scope::Global }
    }

    /// What the error of a request calls it, and the link that is to be shown there.
    fn subject(&self) -> (String, Option<u32>) {
        match self.kind {
            RouteKind::Unicast => (format!("the route {self} on {LINK}"), Some(self.output)),
            _ => (format!("the route {self}"), None),
        }
    }

    fn further_attributes(&self) -> impl Iterator<Item = RouteAttribute> {
        let metrics =
            [self.mtu.map(RouteMetric::Mtu), self.advertised_mss.map(RouteMetric::Advmss)];
        let metrics: Vec<_> = metrics.into_iter().flatten().collect();
        let attributes = [
            self.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())),
            self.source.map(|source| RouteAttribute::PrefSource(source.into())),
            (!metrics.is_empty()).then_some(RouteAttribute::Metrics(metrics)),
        ];
        attributes.into_iter().flatten()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != RouteKind::Unicast {
            write!(out, "{} ", self.kind)?;
        }
        write!(out, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(out, " via {gateway}")?;
        }
        if let Some(table) = self.table {
            write!(out, " in table {table}")?;
        }
        Ok(())
    }
}

impl Request<'_> {
    /// Adds a route. Its link must be up, and its gateway reachable.
    #[must_use]
    pub fn add_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        let (subject, link) = route.subject();
        Self::new(format!("add {subject}"), link, message, Existing::Refused)
    }

    /// Adds a route behind those to the same destination with the same metric, as the kernel itself adds the route to
    /// an address's prefix.
    #[must_use]
    pub fn append_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        let (subject, link) = route.subject();
        Self::new(format!("append {subject}"), link, message, Existing::Kept)
    }

    /// Deletes a route.
    #[must_use]
    pub fn delete_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::DelRoute(route.message());
        let (subject, link) = route.subject();
        Self::new(format!("delete {subject}"), link, message, Existing::Required)
    }
}

impl Rtnl {
    /// The routes of all tables, with those that the kernel made for connected prefixes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        self.routes_like(RouteMessage::default())
    }

    /// Likewise, those whose [`Route::protocol`] it is. 0 is any.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn routes_of(&mut self, protocol: u8) -> Result<Vec<Route>, Error> {
        let mut message = RouteMessage::default();
        message.header.protocol = protocol.into();
        self.routes_like(message)
    }

    /// Whether the namespace takes packets to this address as its own.
    ///
    /// After an IPv6 address was added, a work item of the kernel joins the group in which neighbours ask for it, and
    /// then makes its local route (`addrconf_dad_work` in net/ipv6/addrconf.c). It waits for the rtnl lock. Until the
    /// route is there, the address receives no packets.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn is_local(&mut self, address: Ipv6Addr) -> Result<bool, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.destination_prefix_length = 128;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet6(address)));
        let operation = || format!("look up the route to {address}");
        match self.get(operation, &RouteNetlinkMessage::GetRoute(message)) {
            Ok(RouteNetlinkMessage::NewRoute(route)) => Ok(route.header.kind == RouteType::Local),
            Ok(_) => Ok(false),
            Err(error) if error.errno() == Some(Errno::ENETUNREACH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn routes_like(&mut self, message: RouteMessage) -> Result<Vec<Route>, Error> {
        let message = RouteNetlinkMessage::GetRoute(message);
        let route = |object| match object {
            RouteNetlinkMessage::NewRoute(message) => described_by(&message),
            _ => None,
        };
        self.list("list the routes", &message, route)
    }
}

/// The route that a message describes. `None`: it is one by several links, or one of the kernel's own to a
/// local or broadcast address.
pub(crate) fn described_by(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let kind = RouteKind::of_kernel(header.kind)?;
    let unspecified = match header.address_family {
        AddressFamily::Inet => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let whole = IpNetwork::new(unspecified, header.destination_prefix_length).ok()?;
    let mut route = Route { kind, ..Route::new(whole, 0) };
    route.on_link = header.flags.contains(RouteFlags::Onlink);
    route.table = Some(u32::from(header.table));
    route.protocol = Some(header.protocol.into()).filter(|made_by| *made_by != BY_AN_ADMINISTRATOR);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                route.destination = IpNetwork::new(ip(address)?, whole.prefix()).ok()?;
            }
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            RouteAttribute::Oif(index) => route.output = *index,
            RouteAttribute::Priority(priority) => route.priority = Some(*priority),
            RouteAttribute::Table(table) => route.table = Some(*table),
            RouteAttribute::Metrics(metrics) => learn_metrics(&mut route, metrics),
            _ => {}
        }
    }
    route.table = route.table.filter(|table| *table != u32::from(RouteHeader::RT_TABLE_MAIN));
    if kind != RouteKind::Unicast {
        // IPv6 calls the loopback interface its link.
        (route.output, route.gateway, route.on_link) = (0, None, false);
    }
    // IPv6 takes any scope, and tells none.
    let scope = whole.is_ipv4().then(|| Scope::of_kernel(header.scope)).flatten();
    route.scope = scope.filter(|scope| *scope != route.usual_scope());
    (route.output != 0 || kind != RouteKind::Unicast).then_some(route)
}

fn learn_metrics(route: &mut Route, metrics: &[RouteMetric]) {
    for metric in metrics {
        match metric {
            RouteMetric::Mtu(mtu) => route.mtu = Some(*mtu),
            RouteMetric::Advmss(size) => route.advertised_mss = Some(*size),
            _ => {}
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}
