//! Routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
    },
};
use nix::errno::Errno;
use rtnetlink::RouteMessageBuilder;

use crate::{
    error::Error,
    request::{Existing, LINK, Request},
    route_kind::{RouteKind, RouteScope},
    rtnl::Rtnl,
};

/// RTPROT_KERNEL: the protocol of routes that the kernel adds with addresses.
const BY_THE_KERNEL: u8 = 2;
/// IP6_RT_PRIO_ADDRCONF: the metric of prefix routes of IPv6 addresses.
const PREFIX_METRIC: u32 = 256;
/// RTPROT_STATIC: the protocol of routes that an administrator adds.
const BY_AN_ADMINISTRATOR: u8 = 4;

/// A route. `0.0.0.0/0` and `::/0` are the default routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix. Host bits are ignored.
    pub destination: IpNetwork,
    /// What happens to the packets. Only a unicast route has a link and a gateway.
    pub kind: RouteKind,
    /// Gateway. `None`: the destination is directly reachable.
    pub gateway: Option<IpAddr>,
    /// Index of the output link. 0 if the route has none.
    pub output: u32,
    /// Scope of an IPv4 route, if unusual. `None`: link scope without a gateway, global scope with one.
    pub scope: Option<RouteScope>,
    /// Treats the gateway as directly reachable even if no connected prefix contains it.
    pub on_link: bool,
    /// Path MTU, in bytes.
    pub mtu: Option<u32>,
    /// TCP maximum segment size to advertise, in bytes.
    pub advertised_mss: Option<u32>,
    /// Metric: the lowest wins. `None`: the kernel's default, 0 for IPv4 and 1024 for IPv6.
    pub priority: Option<u32>,
    /// Routing table. `None`: the main table, 254.
    pub table: Option<u32>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Owner of the route (`rtm_protocol`). `None`: `RTPROT_STATIC`, as `ip route add` sets.
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

    /// A route whose packets are dropped in the way that `kind` says.
    #[must_use]
    pub fn rejecting(kind: RouteKind, destination: IpNetwork) -> Self {
        Self { kind, ..Self::new(destination, 0) }
    }

    /// Sets the gateway.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    /// Treats the gateway as directly reachable even if no connected prefix contains it.
    #[must_use]
    pub fn on_link(self) -> Self {
        Self { on_link: true, ..self }
    }

    /// The prefix route that the kernel adds together with an address on the link `output`. `None` for a /32 or /128,
    /// for which the kernel adds none.
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

    /// Whether the kernel added the route with an address.
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

    /// Table, destination and metric: the kernel's key, which holds one route.
    #[must_use]
    pub fn place(&self) -> (u32, IpAddr, u8, u32) {
        let table = self.table.unwrap_or_else(|| RouteHeader::RT_TABLE_MAIN.into());
        let usual = if self.destination.is_ipv6() { 1024 } else { 0 };
        let metric = self.priority.filter(|metric| *metric != 0).unwrap_or(usual);
        (table, self.destination.network(), self.destination.prefix(), metric)
    }

    /// The scope, explicit or usual.
    #[must_use]
    pub fn scope_in_force(&self) -> RouteScope {
        self.scope.unwrap_or_else(|| self.usual_scope())
    }

    fn usual_scope(&self) -> RouteScope {
        let is_direct = self.gateway.is_none() && self.kind == RouteKind::Unicast;
        if is_direct { RouteScope::Link } else { RouteScope::Global }
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
            write!(out, "{} ", self.kind.name())?;
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
    /// Adds a route. Its link must be up and its gateway reachable.
    #[must_use]
    pub fn add_route(route: &Route) -> Self {
        Self::about_route("add", route, RouteNetlinkMessage::NewRoute, Existing::Refused)
    }

    /// Appends a route after those with the same destination and metric. The kernel adds prefix routes in this way.
    #[must_use]
    pub fn append_route(route: &Route) -> Self {
        Self::about_route("append", route, RouteNetlinkMessage::NewRoute, Existing::Kept)
    }

    /// Deletes a route.
    #[must_use]
    pub fn delete_route(route: &Route) -> Self {
        Self::about_route("delete", route, RouteNetlinkMessage::DelRoute, Existing::Required)
    }

    fn about_route(
        verb: &str,
        route: &Route,
        message: fn(RouteMessage) -> RouteNetlinkMessage,
        existing: Existing,
    ) -> Self {
        let (on, link) = match route.kind {
            RouteKind::Unicast => (format!(" on {LINK}"), Some(route.output)),
            _ => (String::new(), None),
        };
        let operation = format!("{verb} the route {route}{on}");
        Self::new(operation, link, message(route.message()), existing)
    }
}

impl Rtnl {
    /// Lists the routes of all tables, including those that the kernel added for connected prefixes.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        self.routes_like(RouteMessage::default())
    }

    /// Lists the routes of all tables that have this [`Route::protocol`]. 0 means any.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn routes_of(&mut self, protocol: u8) -> Result<Vec<Route>, Error> {
        let mut message = RouteMessage::default();
        message.header.protocol = protocol.into();
        self.routes_like(message)
    }

    /// Whether the namespace accepts packets to this address as its own.
    ///
    /// A kernel work item completes the addition of an IPv6 address (`addrconf_dad_work` in net/ipv6/addrconf.c). It
    /// waits for RTNL, joins the solicited-node multicast group, and then adds the local route. Until that route
    /// exists, the address receives no packets.
    ///
    /// # Errors
    /// If the kernel refuses the request.
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

/// Reads a route. `None`: a multipath route, or one of the kernel's own to a local or broadcast address.
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
        // IPv6 reports the loopback interface as the link of a rejecting route.
        (route.output, route.gateway, route.on_link) = (0, None, false);
    }
    // IPv6 accepts any scope and reports none.
    let scope = whole.is_ipv4().then(|| RouteScope::of_kernel(header.scope)).flatten();
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
