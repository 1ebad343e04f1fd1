//! Whether a VF is in its pod as it should be.

use netlink::{Link, MacAddress, Netns, Route, Rtnl, sysctl};

use super::{
    MoveError, MoveSpec, Plan, Routing,
    configure::{has_route, has_rule},
};
use crate::vf_source;

/// Compares the pod's interface with the plan. What others added is no difference. `None`: all is
/// in place.
///
/// # Errors
/// The kernel's refusal.
pub fn inspect(spec: &MoveSpec, pod: &Netns) -> Result<Option<String>, MoveError> {
    if spec.original.is_handed_over {
        let is_still = spec.source.handover(&spec.device).is_some();
        return Ok((!is_still).then(|| format!("VF {} has another driver now", spec.device)));
    }
    let mut rtnl = Rtnl::open_in(pod)?;
    let links = rtnl.links()?;
    let Some(link) = vf_source::link_of(&*spec.source, &links, &spec.device) else {
        return Ok(Some(format!("VF {} is not in the pod", spec.device)));
    };
    if let Some(what) = differs(link, &spec.plan) {
        return Ok(Some(what));
    }
    if let Some(what) = missing(&mut rtnl, link, &spec.plan.routing, has_route)? {
        return Ok(Some(what));
    }
    Ok(misset(pod, link, &spec.plan.routing)?)
}

/// What the pod's interface has lost of what its network gives it, as by being switched off and on. All else that a
/// pod does to its interface is the pod's business, and so is a route that it has put in the place of one. `None`: it
/// has all, or is not there.
///
/// # Errors
/// The kernel's refusal.
pub fn lost(spec: &MoveSpec, pod: &Netns) -> Result<Option<String>, MoveError> {
    if spec.original.is_handed_over {
        return Ok(None);
    }
    let mut rtnl = Rtnl::open_in(pod)?;
    let links = rtnl.links()?;
    let Some(link) = vf_source::link_of(&*spec.source, &links, &spec.device) else {
        return Ok(None);
    };
    if let Some(what) = missing(&mut rtnl, link, &spec.plan.routing, has_place_taken)? {
        return Ok(Some(what));
    }
    Ok(misset(pod, link, &spec.plan.routing)?)
}

/// Whether one of the routes is where the kernel would put the wanted one. The routes to a prefix that several
/// interfaces have addresses of are in one place.
pub(super) fn has_place_taken(routes: &[Route], wanted: &Route) -> bool {
    let is_of_another = |route: &Route| route.is_by_the_kernel() && route.output != wanted.output;
    routes.iter().any(|route| route.place() == wanted.place() && !is_of_another(route))
}

fn differs(link: &Link, plan: &Plan) -> Option<String> {
    if link.name != plan.routing.name {
        Some(format!("its interface is called {} instead of {}", link.name, plan.routing.name))
    } else if link.mac != Some(plan.mac) {
        Some(format!("its interface does not have the MAC address {}", plan.mac))
    } else if link.mtu != plan.mtu {
        Some(format!("its interface has the MTU {} instead of {}", link.mtu, plan.mtu))
    } else if !link.is_up {
        Some("its interface is down".into())
    } else if link.is_without_arp {
        Some("its interface has ARP off".into())
    } else if link.is_without_multicast {
        Some("its interface has multicast off".into())
    } else if link.is_dynamic {
        Some("its interface loses its addresses when it is down".into())
    } else if link.broadcast != Some(MacAddress::BROADCAST) {
        Some("its interface has another broadcast address than all others".into())
    } else {
        None
    }
}

pub(super) fn missing(
    rtnl: &mut Rtnl,
    link: &Link,
    routing: &Routing,
    is_there: fn(&[Route], &Route) -> bool,
) -> Result<Option<String>, netlink::Error> {
    let addresses = rtnl.addresses(link.index)?;
    if let Some(address) = routing.addresses.iter().find(|address| !addresses.contains(address)) {
        return Ok(Some(format!("its interface has lost the address {address}")));
    }
    let routes = rtnl.routes()?;
    // While its link is down or has a master, the kernel keeps them nowhere, or in the master's table.
    let has_connected = link.is_up && link.master.is_none();
    let connected = routing.connected_by(link.index).filter(|_| has_connected);
    let others = routing.routes_by(link.index).chain(routing.shared.rejecting.iter().cloned());
    if let Some(route) = connected.chain(others).find(|route| !is_there(&routes, route)) {
        return Ok(Some(format!("the pod has lost the route {route}")));
    }
    if routing.shared.rules.is_empty() {
        return Ok(None);
    }
    let rules = rtnl.rules()?;
    let lost = routing.shared.rules.iter().find(|rule| !has_rule(&rules, rule));
    Ok(lost.map(|rule| format!("the pod has lost the rule {rule}")))
}

/// A setting of the network's that the pod's interface has otherwise.
pub(super) fn misset(
    pod: &Netns,
    link: &Link,
    routing: &Routing,
) -> Result<Option<String>, netlink::Error> {
    if routing.sysctls.is_empty() {
        return Ok(None);
    }
    pod.run(|| {
        for wanted in &routing.sysctls {
            let found = sysctl(wanted.family, &link.name, wanted.key)?;
            if found != wanted.value {
                let (family, key, value) = (wanted.family, wanted.key, &wanted.value);
                return Ok(Some(format!(
                    "its interface has {family}.{key} {found} instead of {value}"
                )));
            }
        }
        Ok(None)
    })?
}
