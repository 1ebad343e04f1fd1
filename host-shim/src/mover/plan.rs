//! The state of a VF in its pod, computed from the DPU's attachment.

use std::{net::IpAddr, str::FromStr, time::Duration};

use ipnetwork::IpNetwork;
use model::MAIN_TABLE;
use netlink::{Family, MacAddress, Route, RouteKind, RouteScope, Rule};
use offload_proto::{form::is_interface_name, sysctls, v1};

/// The state of a VF in its pod.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The MAC address.
    pub mac: MacAddress,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The VLAN, 0 for none. Used where the PF enforces it.
    pub vlan: u16,
    /// Further VLANs that the pod may use, tagged.
    pub trunk: Vec<u32>,
    /// Whether the pod may only send from its own MAC addresses. Used where the PF enforces it.
    pub spoof_check: bool,
    /// Further MAC addresses that the pod may send from.
    pub further_macs: Vec<MacAddress>,
    /// The egress limit in whole Mbit/s, 0 for none. Used where the PF enforces it.
    pub egress_mbit: u32,
    /// Whether the PF has to enforce the settings above because the DPU does not.
    pub needs_pf: bool,
    /// Whether the network limits ingress.
    pub limits_ingress: bool,
    /// The configuration of the interface in the pod.
    pub routing: Routing,
    /// How long to wait for the carrier.
    pub carrier_limit: Duration,
}

/// Addresses, routes, rules and sysctls of a pod's interface, ours or another plugin's.
#[derive(Clone, Debug)]
pub struct Routing {
    /// The interface's name.
    pub name: String,
    /// The interface's addresses.
    pub addresses: Vec<IpNetwork>,
    /// The routes to its addresses' prefixes, without an output link. The kernel adds them with the addresses.
    pub connected: Vec<Route>,
    /// The other routes, without an output link.
    pub routes: Vec<Route>,
    /// Rules and rejecting routes that this interface brings to the pod.
    pub shared: Shared,
    /// Rules and rejecting routes that other interfaces of the pod bring; they stay when this interface leaves.
    pub shared_by_others: Shared,
    /// Sysctls that the network sets.
    pub sysctls: Vec<Sysctl>,
}

/// Rules and routes without an interface. They belong to the pod and outlive the interface that brought them.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Policy rules.
    pub rules: Vec<Rule>,
    /// Blackhole, unreachable and prohibit routes.
    pub rejecting: Vec<Route>,
}

impl Shared {
    /// Collects the rules and rejecting routes of an attachment.
    ///
    /// # Errors
    /// A destination, source or gateway is malformed.
    pub fn by(attachment: &v1::Attachment) -> Result<Self, PlanError> {
        let routes = routes(attachment, &[])?.into_iter();
        Ok(Self {
            rules: attachment.rules.iter().map(rule).collect::<Result<_, _>>()?,
            rejecting: routes.filter(|route| route.kind != RouteKind::Unicast).collect(),
        })
    }

    /// Whether there are neither rules nor routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.rejecting.is_empty()
    }

    /// Adds those of another attachment.
    pub fn extend(&mut self, other: Self) {
        self.rules.extend(other.rules);
        self.rejecting.extend(other.rejecting);
    }
}

/// One sysctl of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The protocol family: `net/ipv4` or `net/ipv6`.
    pub family: Family,
    /// The sysctl's name.
    pub key: &'static str,
    /// The sysctl's value.
    pub value: String,
}

/// The interface whose routes keep the kernel's default priority. Container runtimes name the first interface so.
pub(super) const FIRST_INTERFACE: &str = "eth0";
/// The base of other interfaces' route priorities; the link's index is added. It exceeds the kernel's defaults, so such
/// routes serve only where the first interface has none.
const LATER_METRIC: u32 = 2000;

/// The destination of a family's default route.
pub(crate) const fn default_destination(of_ipv6: bool) -> &'static str {
    if of_ipv6 { "::/0" } else { "0.0.0.0/0" }
}

/// Whether the route is a unicast default route of the main table.
pub(crate) fn is_default_route(route: &v1::Route) -> bool {
    [false, true].map(default_destination).contains(&route.destination.as_str())
        && [0, MAIN_TABLE].contains(&route.table)
        && route.kind.is_empty()
}

/// A malformed attachment: the host cannot carry out the DPU's answer.
#[derive(Debug, thiserror::Error)]
#[error("the DPU's attachment holds {}", self.held())]
pub struct PlanError {
    what: &'static str,
    value: String,
}

impl PlanError {
    /// The malformed value and what it was expected to be.
    #[must_use]
    pub fn held(&self) -> String {
        format!("{:?} as {}", self.value, self.what)
    }
}

impl Plan {
    /// Computes the plan for an attachment.
    ///
    /// # Errors
    /// The attachment has a malformed address, name, route or sysctl.
    pub fn new(attachment: &v1::Attachment, carrier_limit: Duration) -> Result<Self, PlanError> {
        let bandwidth = attachment.bandwidth.unwrap_or_default();
        Ok(Self {
            routing: Routing::new(attachment)?,
            mac: parse("MAC address", &attachment.mac)?,
            mtu: attachment.mtu,
            vlan: u16::try_from(attachment.vlan)
                .map_err(|_| PlanError { what: "VLAN", value: attachment.vlan.to_string() })?,
            trunk: attachment.trunk.clone(),
            spoof_check: attachment.anti_spoofing != "off",
            // The other sources are IP addresses and prefixes.
            further_macs: attachment.allowed_sources.iter().flat_map(|it| it.parse()).collect(),
            needs_pf: attachment.host_keeps_port,
            egress_mbit: in_mbit(bandwidth.egress_rate),
            limits_ingress: bandwidth.ingress_rate != 0,
            carrier_limit,
        })
    }

    /// Whether the DPU's guard forwards frames that the pod sends from this MAC address.
    pub(crate) fn admits(&self, mac: Option<MacAddress>) -> bool {
        let is_listed = |mac| mac == self.mac || self.further_macs.contains(&mac);
        !self.spoof_check || mac.is_some_and(is_listed)
    }
}

impl Routing {
    /// Reads addresses, routes, rules and sysctls of an attachment.
    ///
    /// # Errors
    /// One of them is malformed.
    pub fn new(attachment: &v1::Attachment) -> Result<Self, PlanError> {
        let name = attachment.key.as_ref().map_or("", |key| &key.interface_name);
        if !is_interface_name(name) {
            return Err(PlanError { what: "interface name", value: name.into() });
        }
        let addresses = attachment
            .addresses
            .iter()
            .map(|held| parse("address", &held.address))
            .collect::<Result<Vec<_>, _>>()?;
        let mut routes = routes(attachment, &addresses)?;
        routes.retain(|route| route.kind == RouteKind::Unicast);
        Ok(Self {
            name: name.into(),
            connected: connected(&addresses),
            routes,
            shared: Shared::by(attachment)?,
            shared_by_others: Shared::default(),
            sysctls: sysctls_of(attachment)?,
            addresses,
        })
    }

    /// The connected routes on the link of this index.
    pub(super) fn connected_by(&self, index: u32) -> impl Iterator<Item = Route> {
        self.connected.iter().map(move |route| Route { output: index, ..route.clone() })
    }

    /// The routes by the link of this index.
    pub(super) fn routes_by(&self, index: u32) -> impl Iterator<Item = Route> {
        self.routes.iter().map(move |route| Route {
            output: index,
            priority: route.priority.or_else(|| self.metric(index)),
            ..route.clone()
        })
    }

    /// The priority of routes by later interfaces: a pod may have several interfaces of one network, with the same
    /// routes.
    fn metric(&self, index: u32) -> Option<u32> {
        (self.name != FIRST_INTERFACE).then(|| LATER_METRIC.saturating_add(index))
    }
}

/// One route for each prefix: of several addresses of a prefix the kernel adds the route with the first.
fn connected(addresses: &[IpNetwork]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for route in addresses.iter().filter_map(|address| Route::to_prefix_of(*address, 0)) {
        if !routes.iter().any(|earlier| earlier.place() == route.place()) {
            routes.push(route);
        }
    }
    routes
}

fn routes(attachment: &v1::Attachment, addresses: &[IpNetwork]) -> Result<Vec<Route>, PlanError> {
    attachment.routes.iter().map(|wanted| route(wanted, addresses)).collect()
}

fn route(wanted: &v1::Route, addresses: &[IpNetwork]) -> Result<Route, PlanError> {
    let mut route = Route::new(parse("route destination", &wanted.destination)?, 0);
    route.kind = kind(&wanted.kind)?;
    if !wanted.gateway.is_empty() {
        let gateway: IpAddr = parse("route gateway", &wanted.gateway)?;
        route = route.via(gateway);
        let is_outside = !addresses.iter().any(|address| address.contains(gateway));
        // The kernel refuses a gateway without a route to it unless `RTNH_F_ONLINK` is set.
        route.on_link = wanted.onlink || is_outside;
    }
    route.scope = scope(&wanted.scope)?;
    route.mtu = unless_zero(wanted.mtu);
    route.advertised_mss = unless_zero(wanted.advmss);
    route.priority = unless_zero(wanted.priority);
    route.table = unless_zero(wanted.table).filter(|table| *table != MAIN_TABLE);
    Ok(route)
}

fn kind(text: &str) -> Result<RouteKind, PlanError> {
    if text.is_empty() { Ok(RouteKind::Unicast) } else { parse("route kind", text) }
}

fn scope(text: &str) -> Result<Option<RouteScope>, PlanError> {
    if text.is_empty() { Ok(None) } else { parse("route scope", text).map(Some) }
}

/// Only listed sysctls, whatever the DPU sends: others would reach beyond the interface.
fn sysctls_of(attachment: &v1::Attachment) -> Result<Vec<Sysctl>, PlanError> {
    let v1::Sysctls { ipv4, ipv6 } = attachment.sysctls.clone().unwrap_or_default();
    let read = |family, known: &'static [(&'static str, _)]| {
        move |(name, value): (String, i32)| {
            let known = known.iter().find(|(known, _)| *known == name);
            let (key, _) = known.ok_or_else(|| malformed("setting", &name))?;
            Ok(Sysctl { family, key, value: value.to_string() })
        }
    };
    let ipv4 = ipv4.into_iter().map(read(Family::V4, sysctls::IPV4));
    ipv4.chain(ipv6.into_iter().map(read(Family::V6, sysctls::IPV6))).collect()
}

fn rule(wanted: &v1::PolicyRule) -> Result<Rule, PlanError> {
    Ok(Rule {
        source: parse("rule source", &wanted.source)?,
        table: wanted.table,
        priority: unless_zero(wanted.priority),
    })
}

/// Converts bits per second to what a PF can enforce: rounded down to whole Mbit/s, at least 1.
fn in_mbit(rate: u64) -> u32 {
    match rate {
        0 => 0,
        rate => u32::try_from(rate / 1_000_000).unwrap_or(u32::MAX).max(1),
    }
}

fn unless_zero(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

fn parse<T: FromStr>(what: &'static str, value: &str) -> Result<T, PlanError> {
    value.parse().map_err(|_| malformed(what, value))
}

fn malformed(what: &'static str, value: &str) -> PlanError {
    PlanError { what, value: value.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> v1::Attachment {
        v1::Attachment {
            key: Some(v1::AttachmentKey {
                container_id: "c".into(),
                interface_name: "eth0".into(),
            }),
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            addresses: vec![v1::Address { address: "10.0.0.5/24".into(), ..Default::default() }],
            ..Default::default()
        }
    }

    fn with_route(gateway: &str) -> Result<Plan, PlanError> {
        let route = v1::Route {
            destination: "0.0.0.0/0".into(),
            gateway: gateway.into(),
            ..Default::default()
        };
        Plan::new(&v1::Attachment { routes: vec![route], ..attachment() }, Duration::ZERO)
    }

    #[test]
    fn gateway_outside_all_prefixes_is_on_link() {
        assert!(!with_route("10.0.0.1").unwrap().routing.routes[0].on_link);
        assert!(with_route("169.254.1.1").unwrap().routing.routes[0].on_link);
        assert_eq!(with_route("").unwrap().routing.routes[0].gateway, None);
    }

    #[test]
    fn each_prefix_has_one_connected_route() {
        let held = |address: &str| v1::Address { address: address.into(), ..Default::default() };
        let addresses = ["10.0.0.5/24", "10.0.0.6/24", "10.9.0.1/32", "fd00::5/64", "fd01::1/128"];
        let plan = with(|it| it.addresses = addresses.map(held).to_vec()).unwrap();
        let routes: Vec<_> =
            plan.routing.connected_by(7).map(|it| (it.to_string(), it.output)).collect();
        assert_eq!(routes, [("10.0.0.0/24".to_owned(), 7), ("fd00::/64".to_owned(), 7)]);
    }

    #[test]
    fn onlink_gateway_is_on_link() {
        let route = v1::Route {
            destination: "0.0.0.0/0".into(),
            gateway: "10.0.0.1".into(),
            onlink: true,
            ..Default::default()
        };
        assert!(super::route(&route, &["10.0.0.5/24".parse().unwrap()]).unwrap().on_link);
    }

    fn with(change: impl Fn(&mut v1::Attachment)) -> Result<Plan, PlanError> {
        let mut changed = attachment();
        change(&mut changed);
        Plan::new(&changed, Duration::ZERO)
    }

    #[test]
    fn rejecting_routes_belong_to_the_pod() {
        let plan = with(|it| {
            let route = |kind: &str, table| v1::Route {
                destination: "10.9.0.0/16".into(),
                kind: kind.into(),
                table,
                ..Default::default()
            };
            it.routes = vec![route("", 254), route("blackhole", 7), route("prohibit", 0)];
        });
        let plan = plan.unwrap();
        assert_eq!(plan.routing.routes.iter().map(|route| route.table).collect::<Vec<_>>(), [None]);
        let kinds: Vec<_> = plan.routing.shared.rejecting.iter().map(|route| route.kind).collect();
        assert_eq!(kinds, [RouteKind::Blackhole, RouteKind::Prohibit]);
    }

    #[test]
    fn unknown_route_attributes_and_sysctls_are_refused() {
        let of_route = |change: fn(&mut v1::Route)| {
            let mut route = v1::Route { destination: "::/0".into(), ..Default::default() };
            change(&mut route);
            super::route(&route, &[]).unwrap_err().to_string()
        };
        let unknown = |what: &str| format!("the DPU's attachment holds \"teleport\" as {what}");
        assert_eq!(of_route(|it| it.kind = "teleport".into()), unknown("route kind"));
        assert_eq!(of_route(|it| it.scope = "teleport".into()), unknown("route scope"));
        let sysctls =
            |name: &str| v1::Sysctls { ipv4: [(name.into(), 1)].into(), ..Default::default() };
        let refused = with(|it| it.sysctls = Some(sysctls("teleport"))).unwrap_err();
        assert_eq!(refused.to_string(), unknown("setting"));
        let plan = with(|it| it.sysctls = Some(sysctls("arp_ignore"))).unwrap();
        let (family, value) = (Family::V4, "1".to_owned());
        assert_eq!(plan.routing.sysctls, [Sysctl { family, key: "arp_ignore", value }]);
    }

    #[test]
    fn pf_rate_is_in_whole_megabits() {
        let rates = [0, 1, 999_999, 1_999_999, 100_000_000, u64::MAX].map(in_mbit);
        assert_eq!(rates, [0, 1, 1, 1, 100, u32::MAX]);
    }

    #[test]
    fn malformed_attachment_is_refused() {
        let error = with_route("nowhere").unwrap_err();
        assert!(error.to_string().contains(r#""nowhere" as route"#), "{error}");
        let nameless = v1::Attachment { key: None, ..attachment() };
        assert!(Plan::new(&nameless, Duration::ZERO).is_err());
    }
}
