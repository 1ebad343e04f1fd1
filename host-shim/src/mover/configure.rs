//! What is set on a VF inside its pod.

use std::collections::HashSet;

use netlink::{
    Error, Family, Link, LinkChange, MacAddress, Netns, Request, Route, Rtnl, Rule, set_sysctl,
};

use super::Plan;

/// The loopback interface's index, in every namespace.
const LOOPBACK: u32 = 1;

/// Settings of the pod's interface. A move resets them, so they are set after it.
const SYSCTLS: [(Family, &str, &str); 5] = [
    // Later flaps of the carrier are announced by the kernel itself.
    (Family::V4, "arp_notify", "1"),
    (Family::V6, "ndisc_notify", "1"),
    // Addresses and routes are the DPU's business.
    (Family::V6, "accept_ra", "0"),
    // A pod that switches its interface off and on keeps its addresses.
    (Family::V6, "keep_addr_on_down", "1"),
    (Family::V6, "disable_ipv6", "0"),
];

/// What the pod has already.
#[derive(Default)]
struct Present {
    addresses: HashSet<netlink::IpNetwork>,
    routes: Vec<Route>,
}

/// Configures the VF's `link` in the pod. What is there already is left; a fresh one has nothing.
pub(super) fn configure(
    netns: &Netns,
    rtnl: &mut Rtnl,
    link: &Link,
    plan: &Plan,
    is_fresh: bool,
) -> Result<(), Error> {
    netns.run(|| set_sysctls(link, plan))??;
    let differs = link.mac != Some(plan.mac) || link.mtu != plan.mtu;
    if differs && link.is_up {
        // Some drivers refuse a MAC address while up. This loses routes, so it comes first.
        rtnl.change_link(link.index, &LinkChange::new().down())?;
    }
    if let Some(needed) = needed(link) {
        rtnl.change_link(link.index, &needed)?;
    }
    let present = if is_fresh { Present::default() } else { present(rtnl, link)? };
    let mut requests = vec![Request::change_link(LOOPBACK, &LinkChange::new().up())];
    if differs {
        let change = LinkChange::new().mac(plan.mac).mtu(plan.mtu);
        requests.push(Request::change_link(link.index, &change));
    }
    let missing = plan.addresses.iter().filter(|address| !present.addresses.contains(address));
    requests.extend(missing.map(|address| Request::add_address(link.index, *address)));
    requests.push(Request::change_link(link.index, &LinkChange::new().up()));
    let routes: Vec<_> = plan.routes_by(link.index).collect();
    let missing = routes.iter().filter(|route| !has_route(&present.routes, route));
    requests.extend(missing.map(Request::add_route));
    if !plan.rules.is_empty() {
        let rules = rtnl.rules()?;
        let missing = plan.rules.iter().filter(|rule| !has_rule(&rules, rule));
        requests.extend(missing.map(Request::add_rule));
    }
    rtnl.batch(&requests)
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
        route.destination.network() == wanted.destination.network()
            && route.destination.prefix() == wanted.destination.prefix()
            && route.gateway == wanted.gateway
            && route.output == wanted.output
            && route.table == wanted.table
            && wanted.priority.is_none_or(|priority| route.priority == Some(priority))
    })
}

/// Whether one of the rules is the wanted one.
pub(crate) fn has_rule(rules: &[Rule], wanted: &Rule) -> bool {
    rules.iter().any(|rule| {
        rule.source == wanted.source
            && rule.table == wanted.table
            && wanted.priority.is_none_or(|priority| rule.priority == Some(priority))
    })
}

/// Whether a rule leads to routes by other interfaces than that of the index: they may be of another agent, which
/// alone knows what they bring. All interfaces have routes in the main table, so that those tell nothing.
fn is_followed_by_others(rule: &Rule, routes: &[Route], index: u32) -> bool {
    routes.iter().any(|route| {
        route.table == Some(rule.table)
            && route.destination.is_ipv4() == rule.source.is_ipv4()
            && route.output != index
    })
}

/// IPv6 settings are left out where the pod has no IPv6 addresses, for the kernel may lack IPv6.
fn set_sysctls(link: &Link, plan: &Plan) -> Result<(), Error> {
    let has_v6 = plan.addresses.iter().any(netlink::IpNetwork::is_ipv6);
    for (family, key, value) in SYSCTLS {
        if family == Family::V6 && !has_v6 {
            continue;
        }
        set_sysctl(family, &link.name, key, value)?;
    }
    if has_v6 {
        set_sysctl(Family::V6, "lo", "disable_ipv6", "0")?;
    }
    Ok(())
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

/// Rules stay behind when the interface of this index leaves; addresses and routes go with it. What another
/// interface of the pod brings, too, is left.
pub(super) fn remove_rules(rtnl: &mut Rtnl, plan: &Plan, index: u32) -> Result<(), Error> {
    if plan.rules.is_empty() {
        return Ok(());
    }
    let (rules, routes) = (rtnl.rules()?, rtnl.routes()?);
    let is_ours = |rule: &&Rule| {
        has_rule(&rules, rule)
            && !has_rule(&plan.rules_of_others, rule)
            && !is_followed_by_others(rule, &routes, index)
    };
    let ours = plan.rules.iter().filter(is_ours);
    let requests: Vec<_> = ours.map(Request::delete_rule).collect();
    rtnl.batch(&requests)
}
