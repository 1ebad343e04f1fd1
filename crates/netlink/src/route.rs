//! Routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
        RouteScope, RouteType,
    },
};
use rtnetlink::RouteMessageBuilder;

use crate::{
    Error, Request, Rtnl,
    request::{Existing, LINK},
};

/// The protocol of routes that nothing else is said of.
const BY_AN_ADMINISTRATOR: u8 = 4;

/// A unicast route. `0.0.0.0/0` and `::/0` are the default routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to. Host bits are ignored.
    pub destination: IpNetwork,
    /// Through whom. `None`: directly.
    pub gateway: Option<IpAddr>,
    /// The index of the link.
    pub output: u32,
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
            gateway: None,
            output,
            on_link: false,
            mtu: None,
            advertised_mss: None,
            priority: None,
            table: None,
            source: None,
            protocol: None,
        }
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
        message = message.output_interface(self.output);
        if self.on_link {
            message = message.onlink();
        }
        if self.gateway.is_none() {
            message = message.scope(RouteScope::Link);
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
        let operation = format!("add the route {route} on {LINK}");
        Self::new(operation, Some(route.output), message, Existing::Refused)
    }

    /// Deletes a route.
    #[must_use]
    pub fn delete_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::DelRoute(route.message());
        let operation = format!("delete the route {route} on {LINK}");
        Self::new(operation, Some(route.output), message, Existing::Required)
    }
}

impl Rtnl {
    /// The unicast routes of all tables, with those that the kernel made for connected prefixes.
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

    fn routes_like(&mut self, message: RouteMessage) -> Result<Vec<Route>, Error> {
        let message = RouteNetlinkMessage::GetRoute(message);
        let route = |object| match object {
            RouteNetlinkMessage::NewRoute(message) => described_by(&message),
            _ => None,
        };
        self.list("list the routes", &message, route)
    }
}

/// The route that a message describes. `None`: it is none by one link to an address, or one of
/// the kernel's own to a local or broadcast address.
pub(crate) fn described_by(message: &RouteMessage) -> Option<Route> {
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let header = &message.header;
    let unspecified = match header.address_family {
        netlink_packet_route::AddressFamily::Inet => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        netlink_packet_route::AddressFamily::Inet6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let whole = IpNetwork::new(unspecified, header.destination_prefix_length).ok()?;
    let mut route = Route::new(whole, 0);
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
    (route.output != 0).then_some(route)
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
