//! What is set on a VF inside its pod.

use std::collections::HashSet;

use netlink::{
    Error, Family, IpNetwork, Link, LinkChange, MacAddress, Netns, Request, Route, RouteKind, Rtnl,
    Rule, set_sysctl,
};

use super::{Plan, Routing, Sysctl};

/// The loopback interface's index, in every namespace.
const LOOPBACK: u32 = 1;

/// What is usual of the pod's interface.
const USUAL_SYSCTLS: [(Family, &str, &str); 5] = [
    // Later flaps of the carrier are announced by the kernel itself.
    (Family::V4, "arp_notify", "1"),
    (Family::V6, "ndisc_notify", "1"),
    // Addresses and routes are the DPU's business.
    (Family::V6, "accept_ra", "0"),
    // A pod that switches its interface off and on keeps its addresses.
    (Family::V6, "keep_addr_on_down", "1"),
    (Family::V6, "disable_ipv6", "0"),
];

/// How much of an interface is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All: the interface has come to the pod in this move and has nothing.
    Fresh,
    /// All, beside what it has: it is down, so that an earlier move may not have finished, or it is a host port.
    Whole,
    /// What is gone. What the pod or a chained plugin has changed stays: the MTU, flags, settings, moved routes.
    Lost,
}

/// What the VF's link has already.
#[derive(Default)]
struct Present {
    addresses: HashSet<IpNetwork>,
    routes: Vec<Route>,
}

impl Present {
    /// Whether an address is of the prefix that the route leads to.
    fn has_address_of(&self, route: &Route) -> bool {
        let prefix = (route.destination.network(), route.destination.prefix());
        self.addresses.iter().any(|address| (address.network(), address.prefix()) == prefix)
    }
}

/// Configures the VF's `link` in the pod. What is there already is left.
pub(super) fn configure(
    rtnl: &mut Rtnl,
    link: &Link,
    plan: &Plan,
    extent: Extent,
) -> Result<(), Error> {
    let differs = match extent {
        Extent::Fresh | Extent::Whole => link.mac != Some(plan.mac) || link.mtu != plan.mtu,
        Extent::Lost => !plan.admits(link.mac),
    };
    if differs && link.is_up {
        // Some drivers refuse a MAC address while up. This loses routes, so it comes first.
        rtnl.change_link(link.index, &LinkChange::new().down())?;
    }
    if let Some(needed) = needed(link) {
        rtnl.change_link(link.index, &needed)?;
    }
    let present = match extent {
        Extent::Fresh => Present::default(),
        Extent::Whole | Extent::Lost => present(rtnl, link)?,
    };
    let mut requests = vec![Request::change_link(LOOPBACK, &LinkChange::new().up())];
    if differs {
        let mac = LinkChange::new().mac(plan.mac);
        let change = if extent == Extent::Lost { mac } else { mac.mtu(plan.mtu) };
        requests.push(Request::change_link(link.index, &change));
    }
    let wanted = plan.routing.addresses.iter();
    let missing = wanted.filter(|address| !present.addresses.contains(address));
    requests.extend(missing.map(|address| Request::add_address(link.index, *address)));
    requests.push(Request::change_link(link.index, &LinkChange::new().up()));
    // With an address that is new, or a link that comes up, the kernel adds them itself.
    if link.is_up && !differs {
        let own: Vec<_> = plan.routing.routes_by(link.index).collect();
        let is_there = |route: &Route| {
            has_route(&present.routes, route)
                || (extent == Extent::Lost && is_moved(&present.routes, route, &own))
        };
        let connected = plan.routing.connected_by(link.index);
        let lost = connected.filter(|route| present.has_address_of(route) && !is_there(route));
        requests.extend(lost.map(|route| Request::append_route(&route)));
    }
    requests.extend(leading_on(rtnl, link, &plan.routing, &present.routes, extent)?);
    rtnl.batch(&requests)
}

/// Adds routes by the link beside those that are present, and what the pod shares.
pub(super) fn leading_on(
    rtnl: &mut Rtnl,
    link: &Link,
    routing: &Routing,
    present: &[Route],
    extent: Extent,
) -> Result<Vec<Request<'static>>, Error> {
    let routes: Vec<_> = routing.routes_by(link.index).collect();
    let is_there = |route: &Route| {
        has_route(present, route) || (extent == Extent::Lost && is_moved(present, route, &routes))
    };
    let missing = routes.iter().filter(|route| !is_there(route));
    let mut requests: Vec<_> = missing.map(Request::add_route).collect();
    requests.extend(sharing(rtnl, routing)?);
    Ok(requests)
}

/// Adds what the pod is to have besides its interface, and may have by another.
fn sharing(rtnl: &mut Rtnl, routing: &Routing) -> Result<Vec<Request<'static>>, Error> {
    let mut requests = Vec::new();
    if !routing.shared.rejecting.is_empty() {
        let routes = rtnl.routes()?;
        let missing = routing.shared.rejecting.iter().filter(|route| !has_route(&routes, route));
        requests.extend(missing.map(Request::add_route));
    }
    if !routing.shared.rules.is_empty() {
        let rules = rtnl.rules()?;
        let missing = routing.shared.rules.iter().filter(|rule| !has_rule(&rules, rule));
        requests.extend(missing.map(Request::add_rule));
    }
    Ok(requests)
}

/// What the pod's network relies on, where it is not so: neighbours are found, and keep being found.
fn needed(link: &Link) -> Option<LinkChange<'static>> {
    let is_as_needed = !link.is_without_arp
        && !link.is_without_multicast
        && !link.is_dynamic
        && link.broadcast == Some(MacAddress::BROADCAST);
    let needed = || {
        let flags = LinkChange::new().arp(true).multicast(true).dynamic(false);
        flags.broadcast(MacAddress::BROADCAST)
    };
    (!is_as_needed).then(needed)
}

fn present(rtnl: &mut Rtnl, link: &Link) -> Result<Present, Error> {
    Ok(Present {
        addresses: rtnl.addresses(link.index)?.into_iter().collect(),
        routes: rtnl.routes()?,
    })
}

/// Whether one of the routes leads as the wanted one does, whatever else the kernel tells of it.
pub(crate) fn has_route(routes: &[Route], wanted: &Route) -> bool {
    routes.iter().any(|route| {
        leads_the_same_way(route, wanted)
            && route.scope_in_force() == wanted.scope_in_force()
            && route.table == wanted.table
            && wanted.priority.is_none_or(|priority| route.priority == Some(priority))
    })
}

/// Whether one of the routes leads as the wanted one does, from another table: a chained plugin such as sbr has moved
/// it. A route of `all` that are wanted by the link is no moved one: a network may want the same route in two tables.
pub(super) fn is_moved(routes: &[Route], wanted: &Route, all: &[Route]) -> bool {
    let is_wanted_there = |route: &Route| all.iter().any(|other| other.place() == route.place());
    wanted.kind == RouteKind::Unicast
        && routes.iter().any(|route| {
            leads_the_same_way(route, wanted)
                && route.table != wanted.table
                && !is_wanted_there(route)
        })
}

fn leads_the_same_way(route: &Route, wanted: &Route) -> bool {
    route.destination.network() == wanted.destination.network()
        && route.destination.prefix() == wanted.destination.prefix()
        && route.kind == wanted.kind
        && route.gateway == wanted.gateway
        && route.output == wanted.output
}

/// Whether one of the rules is the wanted one.
pub(crate) fn has_rule(rules: &[Rule], wanted: &Rule) -> bool {
    rules.iter().any(|rule| {
        rule.source == wanted.source
            && rule.table == wanted.table
            && wanted.priority.is_none_or(|priority| rule.priority == Some(priority))
    })
}

/// Whether a rule is of one of the interface's own addresses, which no other brings.
fn is_of_own_address(rule: &Rule, routing: &Routing) -> bool {
    routing.addresses.iter().any(|address| IpNetwork::from(address.ip()) == rule.source)
}

/// Whether a rule leads to routes by other interfaces than that of the index: they may be of another agent, which
/// alone knows what they bring. All interfaces have routes in the main table, so that those tell nothing.
fn is_followed_by_others(rule: &Rule, routes: &[Route], index: u32) -> bool {
    routes.iter().any(|route| {
        route.kind == RouteKind::Unicast
            && route.table == Some(rule.table)
            && route.destination.is_ipv4() == rule.source.is_ipv4()
            && route.output != index
    })
}

/// Sets what is usual of the pod's interface, and what its network says.
pub(super) fn set_sysctls(
    netns: &Netns,
    link: &Link,
    plan: &Plan,
    extent: Extent,
) -> Result<(), Error> {
    match extent {
        Extent::Fresh | Extent::Whole => netns.run(|| set_sysctls_here(link, plan))?,
        Extent::Lost => netns.run(|| set_needed_by_addresses(link, plan))?,
    }
}

/// Without it the kernel refuses the pod's addresses of IPv6.
fn set_needed_by_addresses(link: &Link, plan: &Plan) -> Result<(), Error> {
    match plan.routing.addresses.iter().any(IpNetwork::is_ipv6) {
        true => set_sysctl(Family::V6, &link.name, "disable_ipv6", "0"),
        false => Ok(()),
    }
}

/// What is usual in IPv6 is left out where the pod has no IPv6 addresses, for the kernel may lack IPv6.
fn set_sysctls_here(link: &Link, plan: &Plan) -> Result<(), Error> {
    let Routing { addresses, sysctls, .. } = &plan.routing;
    let has_v6 = addresses.iter().any(IpNetwork::is_ipv6);
    let is_usual = |family, key: &str| {
        (family == Family::V4 || has_v6)
            && !sysctls.iter().any(|chosen| (chosen.family, chosen.key) == (family, key))
    };
    for (family, key, value) in USUAL_SYSCTLS.into_iter().filter(|it| is_usual(it.0, it.1)) {
        set_sysctl(family, &link.name, key, value)?;
    }
    set_chosen(link, sysctls)?;
    if has_v6 {
        set_sysctl(Family::V6, "lo", "disable_ipv6", "0")?;
    }
    Ok(())
}

/// Sets what a network says of a link's settings, in the namespace that the thread is in.
pub(super) fn set_chosen(link: &Link, sysctls: &[Sysctl]) -> Result<(), Error> {
    let mut sysctls = sysctls.iter();
    sysctls.try_for_each(|it| set_sysctl(it.family, &link.name, it.key, &it.value))
}

/// Takes off a link what a move to another namespace would end: its addresses, and with them its routes.
/// Its settings end with the next move, and matter to nobody before.
pub(super) fn strip(rtnl: &mut Rtnl, link: &Link) -> Result<(), Error> {
    // Down first: that ends addresses which the kernel itself has given it, and then can't be deleted.
    rtnl.change_link(link.index, &LinkChange::new().down())?;
    let addresses = rtnl.addresses(link.index)?.into_iter();
    let requests: Vec<_> =
        addresses.map(|address| Request::delete_address(link.index, address)).collect();
    rtnl.batch(&requests)
}

/// What the pod has besides its interface stays behind when the one of this index leaves; addresses and routes by it
/// go with it. What another interface of the pod brings, too, is left.
pub(super) fn remove_shared(rtnl: &mut Rtnl, routing: &Routing, index: u32) -> Result<(), Error> {
    if routing.shared.is_empty() {
        return Ok(());
    }
    let (rules, routes) = (rtnl.rules()?, rtnl.routes()?);
    let others = &routing.shared_by_others;
    let is_own_rule = |rule: &&Rule| {
        has_rule(&rules, rule)
            && !has_rule(&others.rules, rule)
            && (is_of_own_address(rule, routing) || !is_followed_by_others(rule, &routes, index))
    };
    let is_own_route =
        |route: &&Route| has_route(&routes, route) && !has_route(&others.rejecting, route);
    let rules = routing.shared.rules.iter().filter(is_own_rule).map(Request::delete_rule);
    let routes = routing.shared.rejecting.iter().filter(is_own_route).map(Request::delete_route);
    let requests: Vec<_> = rules.chain(routes).collect();
    rtnl.batch(&requests)
}
