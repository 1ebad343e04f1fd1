//! Compares a VF's interface in its pod with the plan.

use netlink::{Link, MacAddress, Netns, Route, Rtnl};

use super::{
    MoveError, MoveSpec, Plan, Routing,
    configure::{has_route, has_rule, is_moved},
};
use crate::vf_source;

/// Compares the pod's interface with the plan, and its MAC address with `mac` where the runtime's previous result has
/// one. Additions by others are no difference, nor changes that chained plugins may make: MTU, sysctls, tables of
/// routes. Returns the first difference; `None`: all is in place.
///
/// # Errors
/// The kernel refuses a request, or sysfs does not show the VF's driver.
pub fn inspect(
    spec: &MoveSpec,
    pod: &Netns,
    mac: Option<MacAddress>,
) -> Result<Option<String>, MoveError> {
    if spec.original.is_handed_over {
        let handover = spec.source.handover(&spec.device).map_err(MoveError::Driver)?;
        let changed = || format!("VF {} has another driver now", spec.device);
        return Ok(handover.is_none().then(changed));
    }
    let mut rtnl = Rtnl::open_in(pod)?;
    let links = rtnl.links()?;
    let Some(link) = vf_source::link_of(&*spec.source, &links, &spec.device) else {
        return Ok(Some(format!("VF {} is not in the pod", spec.device)));
    };
    difference(&mut rtnl, link, &spec.plan, mac)
}

/// The first difference between the VF's link in its pod and the plan.
fn difference(
    rtnl: &mut Rtnl,
    link: &Link,
    plan: &Plan,
    mac: Option<MacAddress>,
) -> Result<Option<String>, MoveError> {
    let other_mac = match mac {
        Some(mac) if link.mac == Some(mac) => None,
        Some(mac) => Some(format!("its interface does not have the MAC address {mac}")),
        None if plan.admits(link.mac) => None,
        None => Some(cut_off(link.mac, plan.mac)),
    };
    if let Some(what) = other_mac.or_else(|| differs(link, plan)) {
        return Ok(Some(what));
    }
    let routing = &plan.routing;
    let own: Vec<_> = routing.routes_by(link.index).collect();
    let is_there = |routes: &[Route], wanted: &Route| {
        has_route(routes, wanted) || is_moved(routes, wanted, &own)
    };
    Ok(missing(rtnl, link, routing, is_there)?)
}

/// Explains that the guard drops the pod's frames because of its MAC address, and how to get another address.
pub(crate) fn cut_off(found: Option<MacAddress>, own: MacAddress) -> String {
    let found = found.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
    format!(
        "its interface has the MAC address {found} instead of {own}, and the DPU drops all that it sends: ask for a \
         MAC address with `runtimeConfig.mac`, not with a chained plugin"
    )
}

/// The state of a pod's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// The interface is as planned, or not in the pod.
    Complete,
    /// The interface lost an address, route or rule of its network, for example by being switched off and on.
    Lost(String),
    /// The interface differs in a way that the pod or a chained plugin may intend.
    Differs(String),
}

/// Compares the pod's interface with the plan. Routes that the pod moved to another table or replaced by its own do not
/// count as lost.
///
/// # Errors
/// The kernel refuses a request, or sysfs does not show the VF's driver.
pub fn state_in_pod(spec: &MoveSpec, pod: &Netns) -> Result<PodState, MoveError> {
    if spec.original.is_handed_over {
        return Ok(differing(inspect(spec, pod, None)?));
    }
    let mut rtnl = Rtnl::open_in(pod)?;
    let links = rtnl.links()?;
    let Some(link) = vf_source::link_of(&*spec.source, &links, &spec.device) else {
        return Ok(PodState::Complete);
    };
    let routing = &spec.plan.routing;
    let own: Vec<_> = routing.routes_by(link.index).collect();
    let is_there = |routes: &[Route], wanted: &Route| {
        has_place_taken(routes, wanted) || is_moved(routes, wanted, &own)
    };
    match missing(&mut rtnl, link, routing, is_there)? {
        Some(lost) => Ok(PodState::Lost(lost)),
        None => Ok(differing(difference(&mut rtnl, link, &spec.plan, None)?)),
    }
}

fn differing(difference: Option<String>) -> PodState {
    difference.map_or(PodState::Complete, PodState::Differs)
}

/// Whether a route occupies the place (destination, table, priority) of the wanted one. Connected routes of other
/// interfaces share a place and do not count.
pub(super) fn has_place_taken(routes: &[Route], wanted: &Route) -> bool {
    let is_of_another = |route: &Route| route.is_by_the_kernel() && route.output != wanted.output;
    routes.iter().any(|route| route.place() == wanted.place() && !is_of_another(route))
}

fn differs(link: &Link, plan: &Plan) -> Option<String> {
    if link.name != plan.routing.name {
        Some(format!("its interface is named {} instead of {}", link.name, plan.routing.name))
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
    is_there: impl Fn(&[Route], &Route) -> bool,
) -> Result<Option<String>, netlink::Error> {
    let addresses = rtnl.addresses(link.index)?;
    if let Some(address) = routing.addresses.iter().find(|address| !addresses.contains(address)) {
        return Ok(Some(format!("its interface has lost the address {address}")));
    }
    let routes = rtnl.routes()?;
    // The kernel deletes connected routes while the link is down, and keeps them in the master's table while it has
    // one.
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
