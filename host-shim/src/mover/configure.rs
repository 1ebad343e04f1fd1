//! Configures a VF's link inside its pod: addresses, routes, rules and sysctls.

use std::collections::HashSet;

use netlink::{
    Error, Family, IpNetwork, Link, LinkChange, MacAddress, Netns, Request, Route, RouteKind, Rtnl,
    Rule, set_sysctl,
};

use super::{Plan, Routing, Sysctl};

/// The index of `lo`, the same in every namespace.
const LOOPBACK: u32 = 1;

/// Sysctls that every pod interface gets unless its network sets them.
const USUAL_SYSCTLS: [(Family, &str, &str); 5] = [
    // The kernel then announces the addresses itself when the carrier returns.
    (Family::V4, "arp_notify", "1"),
    (Family::V6, "ndisc_notify", "1"),
    // The DPU assigns addresses and routes; a router advertisement must not add others.
    (Family::V6, "accept_ra", "0"),
    // IPv6 addresses survive when the pod switches its interface off and on.
    (Family::V6, "keep_addr_on_down", "1"),
    (Family::V6, "disable_ipv6", "0"),
];

/// How much of an interface is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything: the interface arrived in this move and has nothing.
    Fresh,
    /// Everything that is missing: an earlier move may have stopped in the middle (the link is down), or this is a host
    /// port.
    Whole,
    /// What got lost. Changes by the pod or a chained plugin stay: MTU, flags, sysctls, routes moved to another table.
    Lost,
}

/// What the kernel reports of the VF's link before it is configured.
#[derive(Default)]
struct Present {
    addresses: HashSet<IpNetwork>,
    routes: Vec<Route>,
}

impl Present {
    /// Whether an address has the prefix that the route leads to.
    fn has_address_of(&self, route: &Route) -> bool {
        let prefix = (route.destination.network(), route.destination.prefix());
        self.addresses.iter().any(|address| (address.network(), address.prefix()) == prefix)
    }
}

/// Configures the VF's `link` in the pod and leaves what is in place.
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
        // Some drivers refuse a MAC address while the link is up. Down deletes routes, so it comes before they are
        // compared.
        rtnl.change_link(link.index, &LinkChange::new().down())?;
    }
    if let Some(needed) = needed(link) {
        rtnl.change_link(link.index, &needed)?;
    }
    let present = match extent {
        Extent::Fresh => Present::default(),
        Extent::Whole | Extent::Lost => Present {
            addresses: rtnl.addresses(link.index)?.into_iter().collect(),
            routes: rtnl.routes()?,
        },
    };
    // Without `lo` up the pod cannot reach its own addresses. One batch: the kernel's RTNL lock is taken for few
    // requests.
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
    // A new address, or a link that comes up, gets its connected routes from the kernel.
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

/// Requests for the interface's missing routes and for the rules and rejecting routes of the pod.
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

/// Requests for rules and rejecting routes, which belong to the pod: another of its interfaces may have added the same
/// ones.
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

/// Flags and broadcast address without which ARP and ND fail, where the pod's link differs. `None`: nothing to change.
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

/// Whether a route equals the wanted one in all that was asked for. Other attributes that the kernel reports are
/// ignored.
pub(crate) fn has_route(routes: &[Route], wanted: &Route) -> bool {
    routes.iter().any(|route| {
        leads_the_same_way(route, wanted)
            && route.scope_in_force() == wanted.scope_in_force()
            && route.table == wanted.table
            && wanted.priority.is_none_or(|priority| route.priority == Some(priority))
    })
}

/// Whether a chained plugin such as sbr moved the wanted route to another table. A route that the link wants in that
/// table too (one of `all`) is not a moved one.
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

pub(crate) fn has_rule(rules: &[Rule], wanted: &Rule) -> bool {
    rules.iter().any(|rule| {
        rule.source == wanted.source
            && rule.table == wanted.table
            && wanted.priority.is_none_or(|priority| rule.priority == Some(priority))
    })
}

/// Whether a rule matches one of the interface's own addresses; no other interface brings such a rule.
fn is_of_own_address(rule: &Rule, routing: &Routing) -> bool {
    routing.addresses.iter().any(|address| IpNetwork::from(address.ip()) == rule.source)
}

/// Whether the rule's table has routes by other interfaces, possibly of another agent that needs the rule. The kernel
/// reports no table for the main table, where every interface has routes.
fn is_followed_by_others(rule: &Rule, routes: &[Route], index: u32) -> bool {
    routes.iter().any(|route| {
        route.kind == RouteKind::Unicast
            && route.table == Some(rule.table)
            && route.destination.is_ipv4() == rule.source.is_ipv4()
            && route.output != index
    })
}

/// Sets the usual sysctls of a pod's interface and those of its network.
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

/// With `disable_ipv6` set the kernel refuses IPv6 addresses.
fn set_needed_by_addresses(link: &Link, plan: &Plan) -> Result<(), Error> {
    match plan.routing.addresses.iter().any(IpNetwork::is_ipv6) {
        true => set_sysctl(Family::V6, &link.name, "disable_ipv6", "0"),
        false => Ok(()),
    }
}

/// Pods without IPv6 addresses get no IPv6 sysctls: the kernel may lack IPv6.
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

/// Sets a network's sysctls on a link, in the calling thread's namespace.
pub(super) fn set_chosen(link: &Link, sysctls: &[Sysctl]) -> Result<(), Error> {
    let mut sysctls = sysctls.iter();
    sysctls.try_for_each(|it| set_sysctl(it.family, &link.name, it.key, &it.value))
}

/// Removes from a link what a move to another namespace would remove: its addresses, and with them its routes. Sysctls
/// stay; the next move resets them.
pub(super) fn strip(rtnl: &mut Rtnl, link: &Link) -> Result<(), Error> {
    // Down first: the kernel then removes its own link-local addresses, which a request cannot delete afterwards.
    rtnl.change_link(link.index, &LinkChange::new().down())?;
    let addresses = rtnl.addresses(link.index)?.into_iter();
    let requests: Vec<_> =
        addresses.map(|address| Request::delete_address(link.index, address)).collect();
    rtnl.batch(&requests)
}

/// Deletes the pod's rules and rejecting routes that the interface of this `index` brought; they would outlive it.
/// Those that another interface of the pod brings too stay.
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
