//! Priorities of routes that a pod has by several interfaces, for example of one network.
//!
//! The kernel keeps one route per destination, table and priority. Appended with an equal priority, an IPv4 route would
//! serve once the first is gone. IPv6 would join both to a multipath route and spread flows over both interfaces,
//! whatever their source address. A later interface's route therefore gets a higher priority value in both families,
//! and serves when the first is gone.

use ipnetwork::IpNetwork;
use model::MAIN_TABLE;
use netlink::Route;
use offload_proto::v1;

use super::plan::FIRST_INTERFACE;

/// The kernel's default priority of IPv6 routes: `IP6_RT_PRIO_USER` in `include/uapi/linux/ipv6_route.h`.
const USUAL_OF_IPV6: u32 = 1024;

/// Whether an attachment brings what another interface of its pod may bring too: rules, rejecting routes, or routes
/// with a priority of their own.
#[must_use]
pub fn meets_others(attachment: &v1::Attachment) -> bool {
    let is_rejecting = |route: &v1::Route| !route.kind.is_empty();
    !attachment.rules.is_empty()
        || attachment.routes.iter().any(is_rejecting)
        || has_priorities(attachment)
}

pub(super) fn has_priorities(attachment: &v1::Attachment) -> bool {
    attachment.routes.iter().any(|route| route.priority != 0)
}

/// Gives each route with a priority the lowest free value from that priority upwards. Taken are those of the pod's
/// routes and of the attachments before it. Default priorities of later interfaces start above all usual values
/// ([`LATER_METRIC`](super::plan)) and are ignored. A route without a free value stays unchanged, and the kernel
/// refuses it.
pub(super) fn give_way(attachments: Vec<&mut v1::Attachment>, in_pod: Vec<Route>) {
    let mut taken: Vec<_> =
        in_pod.into_iter().filter_map(|route| RouteSlot::of_kernel(&route)).collect();
    for attachment in attachments {
        let key = attachment.key.as_ref();
        let is_first = key.is_some_and(|key| key.interface_name == FIRST_INTERFACE);
        give_way_to(&mut taken, &mut attachment.routes);
        let usual = attachment.routes.iter().filter(|route| is_first && route.priority == 0);
        taken.extend(usual.filter_map(RouteSlot::of_usual));
    }
}

fn give_way_to(taken: &mut Vec<RouteSlot>, routes: &mut [v1::Route]) {
    for route in routes {
        // The plan refuses malformed destinations.
        let Some(wanted) = RouteSlot::wanted_by(route) else { continue };
        let costs = (wanted.priority..=u32::MAX).map(|priority| RouteSlot { priority, ..wanted });
        let Some(free) = costs.into_iter().find(|slot| !taken.contains(slot)) else { continue };
        route.priority = free.priority;
        taken.push(free);
    }
}

/// The key under which the kernel keeps at most one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RouteSlot {
    table: u32,
    network: IpNetwork,
    priority: u32,
}

impl RouteSlot {
    fn of_kernel(route: &Route) -> Option<Self> {
        let network = network(route.destination)?;
        Some(Self { table: route.table.unwrap_or(MAIN_TABLE), network, priority: route.priority? })
    }

    /// `None`: the interface decides the priority, or this is a rejecting route, which the pod's interfaces share.
    fn wanted_by(route: &v1::Route) -> Option<Self> {
        (route.priority != 0).then(|| Self::at(route, route.priority)).flatten()
    }

    /// The key of a route without a priority. `None` for IPv4, where the kernel reports no default priority.
    fn of_usual(route: &v1::Route) -> Option<Self> {
        Self::at(route, USUAL_OF_IPV6).filter(|slot| slot.network.is_ipv6())
    }

    fn at(route: &v1::Route, priority: u32) -> Option<Self> {
        if !route.kind.is_empty() {
            return None;
        }
        let network = network(route.destination.parse().ok()?)?;
        let table = if route.table == 0 { MAIN_TABLE } else { route.table };
        Some(Self { table, network, priority })
    }
}

/// The destination without host bits, as the kernel reports it.
fn network(destination: IpNetwork) -> Option<IpNetwork> {
    IpNetwork::new(destination.network(), destination.prefix()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(destination: &str, priority: u32, table: u32) -> v1::Route {
        v1::Route { destination: destination.into(), priority, table, ..Default::default() }
    }

    fn in_pod(destination: &str, priority: u32, table: Option<u32>) -> Route {
        let priority = Some(priority);
        Route { priority, table, ..Route::new(destination.parse().unwrap(), 7) }
    }

    fn of(interface_name: &str, routes: Vec<v1::Route>) -> v1::Attachment {
        let key = v1::AttachmentKey {
            interface_name: interface_name.into(),
            ..v1::AttachmentKey::default()
        };
        v1::Attachment { key: Some(key), routes, ..v1::Attachment::default() }
    }

    fn priorities(routes: Vec<v1::Route>, in_pod: Vec<Route>) -> Vec<u32> {
        let mut attachment = of("eth0", routes);
        give_way(vec![&mut attachment], in_pod);
        attachment.routes.iter().map(|route| route.priority).collect()
    }

    #[test]
    fn unique_route_keeps_its_priority() {
        let routes = vec![wanted("172.20.0.0/16", 50, 0), wanted("::/0", 0, 0)];
        let others = vec![
            in_pod("172.20.0.0/16", 50, Some(100)),
            in_pod("172.20.0.0/17", 50, None),
            in_pod("172.20.0.0/16", 51, None),
            in_pod("::/0", 1024, None),
        ];
        assert_eq!(priorities(routes, others), [50, 0]);
    }

    #[test]
    fn duplicate_route_gets_the_next_free_priority() {
        for (destination, table) in [("172.20.1.1/16", 0), ("2001:db8:20::1/48", 100)] {
            let network = if table == 0 { "172.20.0.0/16" } else { "2001:db8:20::/48" };
            let has = |priority| in_pod(network, priority, Some(table).filter(|table| *table != 0));
            let wanted = vec![wanted(destination, 50, table), wanted(destination, 51, table)];
            assert_eq!(priorities(wanted.clone(), vec![has(50), has(51)]), [52, 53]);
            assert_eq!(priorities(wanted, vec![has(50)]), [51, 52]);
        }
    }

    #[test]
    fn routes_of_attachments_get_distinct_priorities() {
        let come = |first: &str| {
            let plain = vec![wanted("::/0", 0, 0), wanted("0.0.0.0/0", 0, 0)];
            let chosen = || vec![wanted("::/0", 1024, 0), wanted("0.0.0.0/0", 7, 0)];
            let mut all = [of(first, plain), of("net1", chosen()), of("net2", chosen())];
            give_way(all.iter_mut().collect(), Vec::new());
            let costs = all.map(|one| one.routes.iter().map(|it| it.priority).collect::<Vec<_>>());
            assert_eq!(costs[0], [0, 0], "a route without a priority stays without");
            [costs[1].clone(), costs[2].clone()]
        };
        assert_eq!(come("eth0"), [vec![1025, 7], vec![1026, 8]]);
        assert_eq!(
            come("net0"),
            [vec![1024, 7], vec![1025, 8]],
            "its default priority exceeds these"
        );
    }

    #[test]
    fn route_at_highest_priority_stays_unchanged() {
        let most = || wanted("172.20.0.0/16", u32::MAX, 0);
        assert_eq!(
            priorities(vec![most()], vec![in_pod("172.20.0.0/16", u32::MAX, None)]),
            [u32::MAX]
        );
    }
}
