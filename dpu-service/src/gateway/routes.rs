//! Routes to the subnets of gateways. The kernel derives them from the addresses on the links. A link-local gateway
//! address covers no subnet, so those routes are ours. They carry our protocol number, which tells them from an
//! operator's routes. Permanent neighbour entries carry it, too.

use ipnetwork::IpNetwork;
use netlink::{Request, Route, Rtnl, gone_is_done};

use super::{names::PROTOCOL, plan};
use drivers::{driver::Refused, fabric::GatewayLink};
use model::Network;

/// The kernel's `RTPROT_KERNEL`.
const BY_THE_KERNEL: u8 = 2;

/// Our routes by any link.
pub(super) fn ours(rtnl: &mut Rtnl) -> Result<Vec<Route>, Refused> {
    rtnl.routes_of(PROTOCOL).map_err(|error| Refused::new("ask the kernel for routes", error))
}

/// The routes that the kernel derived from addresses.
pub(super) fn connected(rtnl: &mut Rtnl) -> Result<Vec<Route>, Refused> {
    let routes = rtnl.routes_of(BY_THE_KERNEL);
    routes.map_err(|error| Refused::new("ask the kernel for its routes", error))
}

/// Whether a route leads by the link to the address's prefix. A host address has no such route.
pub(super) fn leads_to_neighbours(
    connected: &[Route],
    link: &GatewayLink,
    address: IpNetwork,
) -> bool {
    let neighbours = (address.network(), address.prefix());
    let is_alone = address.prefix() == if address.is_ipv4() { 32 } else { 128 };
    let leads = |route: &Route| {
        route.output == link.index
            && (route.destination.network(), route.destination.prefix()) == neighbours
    };
    is_alone || connected.iter().any(leads)
}

/// Gives a gateway's link its routes, and removes former ones. Returns whether one was missing.
pub(super) fn configure_routes(
    rtnl: &mut Rtnl,
    network: &Network,
    link: &GatewayLink,
    ours: &[Route],
) -> Result<bool, Refused> {
    let wanted: Vec<_> =
        plan::routes(network).map(|destination| route(destination, link)).collect();
    let has: Vec<_> = ours.iter().filter(|route| route.output == link.index).collect();
    let surplus =
        has.iter().filter(|route| !wanted.iter().any(|wanted| leads_alike(wanted, route)));
    for route in surplus {
        let deleted = gone_is_done(rtnl.change(Request::delete_route(route)));
        deleted.map_err(|error| Refused::new(format!("take a route from {}", link.name), error))?;
    }
    let is_missing = |wanted: &&Route| !has.iter().any(|route| leads_alike(wanted, route));
    let missing: Vec<_> = wanted.iter().filter(is_missing).collect();
    for route in &missing {
        add(rtnl, route, link)?;
    }
    Ok(!missing.is_empty())
}

fn route(destination: IpNetwork, link: &GatewayLink) -> Route {
    Route { protocol: Some(PROTOCOL), ..Route::new(destination, link.index) }
}

fn leads_alike(one: &Route, other: &Route) -> bool {
    let to = |route: &Route| (route.destination.network(), route.destination.prefix());
    to(one) == to(other) && one.table == other.table
}

fn add(rtnl: &mut Rtnl, route: &Route, link: &GatewayLink) -> Result<(), Refused> {
    match rtnl.change(Request::add_route(route)) {
        Err(error) if error.is_exists() => Err(route_conflict(rtnl, route)),
        outcome => {
            outcome.map_err(|error| Refused::new(format!("give {} its routes", link.name), error))
        }
    }
}

/// Names the route that has the place of ours.
fn route_conflict(rtnl: &mut Rtnl, route: &Route) -> Refused {
    let all = rtnl.routes().unwrap_or_default();
    let other = all.iter().find(|other| leads_alike(other, route));
    let link = other.and_then(|other| rtnl.link_by_index(other.output).ok().flatten());
    let by = link.map_or_else(String::new, |link| format!(" by {}", link.name));
    Refused::because(format!(
        "another program's route to {}{by} has the place of its gateway's route: delete it",
        route.destination
    ))
}
