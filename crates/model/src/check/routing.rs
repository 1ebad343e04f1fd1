//! Checks of routes, policy rules and sysctls: of a network, and of a NetworkAttachmentDefinition.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use offload_proto::sysctls;

use super::form::{check_prefix, is_ordinary};
use crate::{
    MAIN_TABLE, Network, PolicyRule, Route, RouteScope, RuleSource, Subnet, Sysctls, duplicates,
};

/// The kernel's table of local addresses, which the kernel fills and looks up first.
const LOCAL_TABLE: u32 = 255;

/// Checks the routes, policy rules and sysctls of an interface, whichever network it is in. Returns one sentence for each
/// problem.
#[must_use]
pub fn check_routing(routes: &[Route], rules: &[PolicyRule], settings: &Sysctls) -> Vec<String> {
    let mut problems: Vec<_> = routes.iter().flat_map(check_route).collect();
    problems.extend(check_places(routes));
    problems.extend(rules.iter().flat_map(check_rule));
    problems.extend(check_settings("ipv4", &settings.ipv4, sysctls::IPV4));
    problems.extend(check_settings("ipv6", &settings.ipv6, sysctls::IPV6));
    problems
}

/// Checks those of a network, also against its subnets.
pub(super) fn check_routing_of(network: &Network) -> Vec<String> {
    let Network { routes, rules, sysctls, .. } = network;
    let mut problems = check_routing(routes, rules, sysctls);
    problems.extend(routes.iter().flat_map(|route| check_reach(network, route)));
    problems.extend(rules.iter().flat_map(|rule| check_own(network, rule)));
    problems.extend(check_ipv6_is_on(network));
    problems
}

fn check_route(route: &Route) -> Vec<String> {
    let mut problems: Vec<String> = check_prefix(route.destination).into_iter().collect();
    problems.extend(match route.kind.is_unicast() {
        true => check_way(route),
        false => check_no_way(route),
    });
    if route.mtu != 0 && !(68..=65535).contains(&route.mtu) {
        problems.push(format!("mtu {} must be 68 to 65535, or 0 for the interface's", route.mtu));
    }
    if route.advmss > 65495 {
        problems.push(format!("advmss {} must be at most 65495", route.advmss));
    }
    if route.table == LOCAL_TABLE {
        problems.push(format!(
            "table {LOCAL_TABLE} is the kernel's own for the pod's addresses: name another, or 0 for the main one"
        ));
    }
    of_route(route, problems)
}

fn of_route(route: &Route, problems: Vec<String>) -> Vec<String> {
    problems.into_iter().map(|problem| format!("route {}: {problem}", route.destination)).collect()
}

/// Checks the next hop and scope of a route that forwards.
fn check_way(route: &Route) -> Vec<String> {
    let mut problems = Vec::new();
    match route.gateway {
        Some(gateway) => problems.extend(check_gateway(route, gateway)),
        None if route.onlink => {
            problems.push("onlink = true needs a gateway: name one, or leave it out".into());
        }
        None => {}
    }
    problems.extend(route.scope.and_then(|scope| check_scope(route, scope)));
    problems
}

fn check_gateway(route: &Route, gateway: IpAddr) -> Option<String> {
    if gateway.is_ipv4() != route.destination.is_ipv4() {
        return Some(format!("gateway {gateway} is of another address family"));
    }
    (!is_ordinary(gateway.into()))
        .then(|| format!("gateway {gateway} is not the address of one router"))
}

/// Checks that a route that drops packets has no key of routes that forward.
fn check_no_way(route: &Route) -> Vec<String> {
    let said = [
        ("gateway", route.gateway.is_some()),
        ("onlink", route.onlink),
        ("scope", route.scope.is_some()),
        ("mtu", route.mtu != 0),
        ("advmss", route.advmss != 0),
    ];
    let said = said.into_iter().filter(|(_, is_said)| *is_said);
    let kind = route.kind.name();
    said.map(|(key, _)| format!("kind = {kind:?} forwards nothing: leave out {key}")).collect()
}

/// Checks that the network's pods can use a route that forwards.
fn check_reach(network: &Network, route: &Route) -> Vec<String> {
    if !route.kind.is_unicast() {
        return Vec::new();
    }
    let is_ipv4 = route.destination.is_ipv4();
    let mut problems = Vec::new();
    if !network.subnets.is_empty() && !has_subnet_of(network, is_ipv4) {
        problems.push(format!(
            "the network has no subnet of {}, so its pods have no address to use it with",
            family(is_ipv4)
        ));
    }
    let is_usable = |gateway: &IpAddr| check_gateway(route, *gateway).is_none();
    let gateway = route.gateway.filter(is_usable);
    problems.extend(gateway.and_then(|gateway| check_next_hop(network, route, gateway)));
    of_route(route, problems)
}

fn check_next_hop(network: &Network, route: &Route, gateway: IpAddr) -> Option<String> {
    let is_on_link = |subnet: &Subnet| match network.first_hop {
        true => subnet.gateway == Some(gateway),
        false => subnet.cidr.contains(gateway),
    };
    let is_reachable =
        route.onlink || is_link_local(gateway) || network.subnets.iter().any(is_on_link);
    (!is_reachable).then(|| {
        format!(
            "gateway {gateway} is {}, so pods can't reach it: if it is on the link, set onlink = true",
            match network.first_hop {
                true => "not the pods' first hop",
                false => "in none of the network's subnets",
            }
        )
    })
}

/// Whether it is an IPv6 link-local address, which exists on any link.
const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if Ipv6Addr::is_unicast_link_local(&v6))
}

fn check_scope(route: &Route, scope: RouteScope) -> Option<String> {
    let name = scope.name();
    if route.destination.is_ipv6() {
        return Some(format!("scope = {name:?}: IPv6 routes have no scope: leave it out"));
    }
    let is_direct = route.gateway.is_none();
    (!is_direct && scope != RouteScope::Global).then(|| {
        format!("scope = {name:?} is for destinations without a gateway: leave either out")
    })
}

/// Checks that no two routes have the same place, which holds one in the kernel.
fn check_places(routes: &[Route]) -> impl Iterator<Item = String> {
    let places = routes.iter().map(|it| (it.table_in_force(), it.destination, it.cost()));
    let places: Vec<_> = duplicates(places).collect();
    places.into_iter().map(|(table, destination, _)| {
        format!("two routes to {destination} in table {table} have the same priority: change one")
    })
}

fn check_rule(rule: &PolicyRule) -> Vec<String> {
    let mut problems = Vec::new();
    if let RuleSource::Prefix(prefix) = rule.source {
        problems.extend(check_prefix(prefix));
    }
    if rule.table == 0 {
        problems.push("table 0 can't be looked up: name one from 1 to 4294967295".into());
    }
    if rule.table == LOCAL_TABLE {
        problems.push(format!(
            "table {LOCAL_TABLE} is the kernel's own, which it looks up before all rules: name another"
        ));
    }
    of_rule(rule, problems)
}

fn of_rule(rule: &PolicyRule, problems: Vec<String>) -> Vec<String> {
    problems.into_iter().map(|problem| format!("rule {}: {problem}", rule.source)).collect()
}

/// Checks that the network's pods have the addresses that a rule is about, and routes in its table.
fn check_own(network: &Network, rule: &PolicyRule) -> Vec<String> {
    let families: &[bool] = match rule.source {
        RuleSource::Prefix(_) => return Vec::new(),
        RuleSource::OwnIpv4 => &[true],
        RuleSource::OwnIpv6 => &[false],
        RuleSource::Own => &[true, false],
    };
    let families: Vec<_> =
        families.iter().copied().filter(|is_ipv4| has_subnet_of(network, *is_ipv4)).collect();
    if families.is_empty() {
        return of_rule(rule, vec!["the network has no subnet of that address family".into()]);
    }
    let empty = families.into_iter().filter(|is_ipv4| !fills(network, rule.table, *is_ipv4));
    let problems = empty.map(|is_ipv4| {
        format!("no route of the network fills table {} for {}", rule.table, family(is_ipv4))
    });
    of_rule(rule, problems.collect())
}

/// Whether the network's pods have routes of the family in the table. The main table has those of its subnets.
fn fills(network: &Network, table: u32, is_ipv4: bool) -> bool {
    let fills =
        |route: &Route| route.table_in_force() == table && route.destination.is_ipv4() == is_ipv4;
    // Other checks report tables that can't be used.
    [0, MAIN_TABLE, LOCAL_TABLE].contains(&table) || network.routes.iter().any(fills)
}

fn has_subnet_of(network: &Network, is_ipv4: bool) -> bool {
    network.subnets.iter().any(|subnet| subnet.cidr.is_ipv4() == is_ipv4)
}

const fn family(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "IPv4" } else { "IPv6" }
}

/// Checks sysctls of a family against the allowed ones.
fn check_settings(
    family: &str,
    chosen: &BTreeMap<String, i32>,
    known: &[(&'static str, RangeInclusive<i32>)],
) -> Vec<String> {
    let check = |(name, value): (&String, &i32)| {
        let Some(values) = sysctls::values(known, name) else {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            let shown: String = name.chars().take(40).collect();
            return Some(format!(
                "sysctls.{family} holds {shown:?}, which networks can't set: it knows {}",
                names.join(", ")
            ));
        };
        let (first, last) = (values.start(), values.end());
        (!values.contains(value))
            .then(|| format!("sysctls.{family}: {name} {value} must be {first} to {last}"))
    };
    chosen.iter().filter_map(check).collect()
}

/// Checks that IPv6 is on where the network has an IPv6 subnet: the kernel refuses addresses otherwise.
fn check_ipv6_is_on(network: &Network) -> Option<String> {
    let is_off = network.sysctls.ipv6.get("disable_ipv6").is_some_and(|value| *value != 0);
    (is_off && has_subnet_of(network, false)).then(|| {
        "sysctls.ipv6: disable_ipv6 1 can't be where the network has a subnet of IPv6: leave out either".into()
    })
}

#[cfg(test)]
mod tests {
    use crate::check::networks::{
        check_network,
        tests::{assert_problem, network},
    };

    const SUBNETS: &str = "
        name = \"a\"
        subnets = [{ cidr = \"10.1.0.0/16\" }, { cidr = \"fd00:1::/64\" }]
    ";

    fn of_both_families(lines: &str) -> String {
        format!("{SUBNETS}\n{lines}")
    }

    fn of_ipv4(lines: &str) -> String {
        format!("name = \"a\"\nsubnets = [{{ cidr = \"10.1.0.0/16\" }}]\n{lines}")
    }

    #[test]
    fn complete_routing_settings_are_accepted() {
        let all = r#"
            sysctls = { ipv4 = { rp_filter = 2 }, ipv6.keep_addr_on_down = -1, ipv6.disable_ipv6 = 0 }
            [[routes]]
            destination = "0.0.0.0/0"
            gateway = "169.254.1.1"
            onlink = true
            scope = "global"
            table = 100
            [[routes]]
            destination = "10.9.0.0/16"
            scope = "host"
            [[routes]]
            destination = "10.10.0.0/16"
            kind = "blackhole"
            table = 254
            [[routes]]
            destination = "::/0"
            gateway = "fe80::1"
            table = 100
            [[routes]]
            destination = "fd09::/16"
            kind = "unreachable"
            priority = 7
            table = 253
            [[routes]]
            destination = "fd09::/16"
            kind = "prohibit"
            [[rules]]
            source = "own"
            table = 100
            [[rules]]
            source = "own-ipv6"
            table = 253
            [[rules]]
            source = "own-ipv4"
            table = 254
            [[rules]]
            source = "10.7.0.0/16"
            table = 7
        "#;
        assert_eq!(check_network(&network(&of_both_families(all))), [""; 0]);
        let rejecting = r#"routes = [{ destination = "::/0", kind = "unreachable" }]"#;
        assert_eq!(check_network(&network(&of_ipv4(rejecting))), [""; 0]);
        let of_layer_2 = r#"
            name = "a"
            routes = [{ destination = "fd09::/16" },
                      { destination = "10.9.0.0/16", gateway = "10.1.0.1", onlink = true }]
        "#;
        assert_eq!(check_network(&network(of_layer_2)), [""; 0]);
    }

    #[test]
    fn routes_are_checked() {
        let cases = [
            (r#"destination = "10.9.0.1/16""#, "has host bits"),
            (
                r#"destination = "10.9.0.0/16", gateway = "10.2.0.1""#,
                "in none of the network's subnets, so pods can't reach it: if it is on the link",
            ),
            (
                r#"destination = "fd09::/16", gateway = "fd00:2::1""#,
                "in none of the network's subnets",
            ),
            (r#"destination = "fd09::/16", gateway = "10.1.0.1""#, "of another address family"),
            (
                r#"destination = "fd09::/16", gateway = "10.1.0.1", onlink = true"#,
                "of another address family",
            ),
            (
                r#"destination = "10.9.0.0/16", gateway = "224.0.0.1", onlink = true"#,
                "gateway 224.0.0.1 is not the address of one router",
            ),
            (r#"destination = "10.9.0.0/16", onlink = true"#, "onlink = true needs a gateway"),
            (r#"destination = "10.9.0.0/16", mtu = 67"#, "mtu 67 must be 68 to"),
            (r#"destination = "10.9.0.0/16", advmss = 70000"#, "advmss 70000"),
            (r#"destination = "10.9.0.0/16", table = 255"#, "table 255 is the kernel's own"),
            (r#"destination = "fd09::/16", scope = "link""#, "IPv6 routes have no scope"),
            (
                r#"destination = "10.9.0.0/16", gateway = "10.1.0.1", scope = "link""#,
                "scope = \"link\" is for destinations without a gateway",
            ),
            (
                r#"destination = "10.9.0.0/16", gateway = "10.1.0.1", kind = "blackhole""#,
                "route 10.9.0.0/16: kind = \"blackhole\" forwards nothing: leave out gateway",
            ),
            (
                r#"destination = "10.9.0.0/16", scope = "link", kind = "prohibit""#,
                "kind = \"prohibit\" forwards nothing: leave out scope",
            ),
        ];
        for (route, expected) in cases {
            assert_problem(&of_both_families(&format!("routes = [{{ {route} }}]")), expected);
        }
        let of_ipv6 = r#"routes = [{ destination = "fd09::/16" }]"#;
        assert_problem(&of_ipv4(of_ipv6), "route fd09::/16: the network has no subnet of IPv6");
    }

    #[test]
    fn two_routes_in_one_place_are_refused() {
        let twice = |destination: &str, one: &str, other: &str| {
            of_both_families(&format!(
                "routes = [{{ destination = {destination:?}, {one} }}, \
                 {{ destination = {destination:?}, kind = 'blackhole', {other} }}]"
            ))
        };
        let reported = "two routes to 10.9.0.0/16 in table 254 have the same priority";
        assert_problem(&twice("10.9.0.0/16", "table = 0", "table = 254"), reported);
        assert_problem(
            &twice("fd09::/16", "priority = 0", "priority = 1024"),
            "two routes to fd09::/16",
        );
        let apart = twice("10.9.0.0/16", "priority = 0", "priority = 1024");
        assert_eq!(check_network(&network(&apart)), [""; 0]);
    }

    #[test]
    fn rules_are_checked() {
        let cases = [
            (r#"source = "10.1.0.0/16", table = 0"#, "table 0 can't be looked up"),
            (r#"source = "10.1.0.1/16", table = 1"#, "has host bits"),
            (r#"source = "10.1.0.0/16", table = 255"#, "table 255 is the kernel's own"),
            (
                r#"source = "own", table = 7"#,
                "rule own: no route of the network fills table 7 for IPv4",
            ),
            (r#"source = "own-ipv4", table = 0"#, "table 0 can't be looked up"),
            (
                r#"source = "own-ipv6", table = 254"#,
                "rule own-ipv6: the network has no subnet of that address family",
            ),
        ];
        for (rule, expected) in cases {
            assert_problem(&of_ipv4(&format!("rules = [{{ {rule} }}]")), expected);
        }
        let half = r#"
            routes = [{ destination = "10.9.0.0/16", table = 7 }]
            rules = [{ source = "own", table = 7 }]
        "#;
        assert_problem(&of_both_families(half), "no route of the network fills table 7 for IPv6");
    }

    #[test]
    fn sysctls_outside_list_or_range_are_refused() {
        let cases = [
            ("ipv4.proxy_arp = 1", "sysctls.ipv4 holds \"proxy_arp\", which networks can't set"),
            ("ipv4.'../../../vm/swappiness' = 1", "which networks can't set"),
            ("ipv4.accept_ra = 1", "sysctls.ipv4 holds \"accept_ra\""),
            ("ipv4.rp_filter = 3", "sysctls.ipv4: rp_filter 3 must be 0 to 2"),
            ("ipv6.keep_addr_on_down = -2", "keep_addr_on_down -2 must be -1 to 1"),
            ("ipv6.disable_ipv6 = 1", "disable_ipv6 1 can't be where the network has a subnet"),
        ];
        for (setting, expected) in cases {
            assert_problem(&of_both_families(&format!("sysctls = {{ {setting} }}")), expected);
        }
        assert_eq!(check_network(&network(&of_ipv4("sysctls.ipv6.disable_ipv6 = 1"))), [""; 0]);
    }
}
