//! Checks of networks, the same for the configuration file and the API.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipam::Pool;
use ipnetwork::IpNetwork;
use offload_proto::form::is_interface_name_prefix;

use super::{
    allow::check_allow,
    bandwidth::{LimitsOf, check_bandwidth, check_total},
    bridges::check_tags,
    form::{LONGEST_LIST, check_prefix, has_broadcast, is_label, is_ordinary},
    label::check_label,
    routing::check_routing_of,
    sources::check_sources,
};
use crate::{
    AddressRange, AttachmentId, Dns, GatewayMode, Layer2Domain, Layer2Domains, Network, Subnet,
    duplicates, overlap,
};

const VLANS: RangeInclusive<u16> = 1..=4094;
const MTUS: RangeInclusive<u32> = 1280..=9216;
/// The longest list in a subnet.
const LONGEST_OF_SUBNET: usize = 256;
const LONGEST_DOMAIN: usize = 253;
/// Checks one network alone. Returns one sentence for each problem.
#[must_use]
pub fn check_network(network: &Network) -> Vec<String> {
    let mut problems = check_names(network);
    problems.extend(check_link(network));
    problems.extend(check_tags(network));
    problems.extend(check_label(network));
    problems.extend(check_list_lengths(network));
    problems.extend(network.subnets.iter().flat_map(|subnet| check_subnet(network, subnet)));
    problems.extend(check_routing_of(network));
    problems.extend(check_way_out(network));
    problems.extend(check_sources(network));
    problems.extend(check_allow(network));
    problems.extend(check_namespaces(network));
    problems.extend(check_dns(&network.dns));
    problems.extend(check_bandwidth(&network.bandwidth, LimitsOf::Network));
    problems.extend(check_total(network));
    // Pools check most of these rules again, so they are checked only if nothing else is wrong.
    if problems.is_empty() {
        problems.extend(check_address_pools(network));
    }
    let subject = format!("network {:?}", network.name);
    problems.into_iter().map(|problem| format!("{subject}: {problem}")).collect()
}

/// Checks networks against each other, in a fabric with these bridges. Returns one sentence for each problem.
#[must_use]
pub fn check_networks<'a>(
    networks: impl IntoIterator<Item = &'a Network> + Clone,
    bridges: &[String],
) -> Vec<String> {
    let mut problems = check_unique_names(networks.clone());
    problems.extend(check_one_default(networks.clone()));
    problems.extend(check_overlaps(networks, bridges));
    problems
}

fn check_names(network: &Network) -> Vec<String> {
    let mut problems = Vec::new();
    if !is_label(&network.name) {
        problems.push(
            "its name must be 1 to 63 characters of a-z, 0-9 and -, beginning and ending with a \
             letter or digit"
                .into(),
        );
    }
    let prefix = &network.interface_prefix;
    if !prefix.is_empty() && !is_interface_name_prefix(prefix) {
        problems.push(format!("interface_prefix {prefix:?} can't begin an interface's name"));
    }
    problems
}

fn check_link(network: &Network) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(vlan) = network.vlan
        && !VLANS.contains(&vlan)
    {
        problems.push(format!("vlan {vlan} must be 1 to 4094; leave it out for untagged"));
    }
    for vlan in network.trunk.iter().filter(|vlan| !VLANS.contains(vlan)) {
        problems.push(format!("trunk holds {vlan}, but VLANs are 1 to 4094"));
    }
    if let Some(vlan) = network.vlan.filter(|vlan| network.trunk.contains(vlan)) {
        problems.push(format!("trunk holds {vlan}, which is its vlan: pods send that untagged"));
    }
    if !MTUS.contains(&network.mtu) {
        problems.push(format!("mtu {} must be 1280 to 9216", network.mtu));
    }
    problems
}

fn check_list_lengths(network: &Network) -> Vec<String> {
    let lengths = [
        ("subnets", network.subnets.len()),
        ("trunk VLANs", network.trunk.len()),
        ("routes", network.routes.len()),
        ("rules", network.rules.len()),
        ("networks that it reaches", network.reaches.len()),
        ("namespaces", network.namespaces.len()),
        ("allow rules", network.allow.len()),
        ("dns.nameservers", network.dns.nameservers.len()),
        ("dns.search", network.dns.search.len()),
        ("dns.options", network.dns.options.len()),
    ];
    let too_long = lengths.into_iter().filter(|(_, length)| *length > LONGEST_LIST);
    too_long
        .map(|(what, length)| format!("it has {length} {what}; {LONGEST_LIST} are the most"))
        .collect()
}

fn check_subnet(network: &Network, subnet: &Subnet) -> Vec<String> {
    let mut problems: Vec<String> = check_prefix(subnet.cidr).into_iter().collect();
    if !is_ordinary(subnet.cidr) {
        problems
            .push("pods can't have loopback, multicast, broadcast or unspecified addresses".into());
    }
    if holds_link_local(subnet.cidr) {
        problems.push(
            "fe80::/10 is link-local, and each interface has its own address in it: use another prefix, \
             such as fd00:1::/64"
                .into(),
        );
    }
    problems.extend(subnet.gateway.and_then(|gateway| check_gateway(network, subnet, gateway)));
    if network.first_hop && subnet.gateway.is_none() {
        problems
            .push("first_hop = true needs its gateway, through which pods reach everything".into());
    }
    for (key, length) in [("ranges", subnet.ranges.len()), ("exclude", subnet.exclude.len())] {
        if length > LONGEST_OF_SUBNET {
            problems
                .push(format!("{key} holds {length} entries; {LONGEST_OF_SUBNET} are the most"));
        }
    }
    problems.extend(subnet.ranges.iter().filter_map(|range| check_range(subnet, range)));
    problems.extend(check_ranges_apart(&subnet.ranges));
    problems.extend(subnet.exclude.iter().flat_map(|prefix| check_exclude(subnet, *prefix)));
    problems.into_iter().map(|problem| format!("subnet {}: {problem}", subnet.cidr)).collect()
}

/// Checks that each subnet has an address to lease. The sentences are the pool's own.
fn check_address_pools(network: &Network) -> impl Iterator<Item = String> {
    let pool = |subnet| Pool::<AttachmentId>::new(network.pool_of(subnet), 0);
    network.subnets.iter().filter_map(move |subnet| Some(pool(subnet).err()?.to_string()))
}

/// Whether the prefix contains an IPv6 link-local address.
fn holds_link_local(prefix: IpNetwork) -> bool {
    let first = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    let is_within =
        matches!(prefix.network(), IpAddr::V6(network) if network.is_unicast_link_local());
    is_within || prefix.contains(first.into())
}

fn check_gateway(network: &Network, subnet: &Subnet, gateway: IpAddr) -> Option<String> {
    if is_first_hop(network, subnet, gateway) {
        return None;
    }
    if !subnet.cidr.contains(gateway) {
        return Some(format!(
            "gateway {gateway} is outside: use an address of the subnet, or leave it out"
        ));
    }
    let is_unusable = has_broadcast(subnet.cidr)
        && (gateway == subnet.cidr.network() || gateway == subnet.cidr.broadcast());
    is_unusable.then(|| format!("gateway {gateway} is the network's or the broadcast address"))
}

/// Whether the gateway is link-local: any IPv6 router may be, an IPv4 router only as the pods' first hop.
fn is_first_hop(network: &Network, subnet: &Subnet, gateway: IpAddr) -> bool {
    let is_router = network.gateway_mode == GatewayMode::Router;
    match gateway {
        IpAddr::V6(v6) => v6.is_unicast_link_local() && subnet.cidr.is_ipv6(),
        IpAddr::V4(v4) => {
            v4.is_link_local() && subnet.cidr.is_ipv4() && network.first_hop && is_router
        }
    }
}

/// Checks the gateway mode and the keys that depend on it.
fn check_way_out(network: &Network) -> Vec<String> {
    let mut problems = Vec::new();
    if network.gateway_mode == GatewayMode::Router {
        let alone = [("nat", network.nat), ("reaches", !network.reaches.is_empty())];
        let alone = alone.into_iter().filter(|(_, is_set)| *is_set);
        problems.extend(alone.map(|(key, _)| {
            format!("{key} is for networks whose gateway is this DPU: set gateway_mode = \"dpu\"")
        }));
    } else if network.subnets.iter().all(|subnet| subnet.gateway.is_none()) {
        problems.push("gateway_mode = \"dpu\" needs a subnet that has a gateway".into());
    }
    if network.reaches.contains(&network.name) {
        problems
            .push("reaches holds the network itself, whose pods always reach each other".into());
    }
    problems
}

fn check_namespaces(network: &Network) -> impl Iterator<Item = String> {
    let wrong = network.namespaces.iter().filter(|namespace| !is_label(namespace));
    wrong.map(|namespace| {
        format!(
            "namespaces holds {namespace:?}, which can't name one: write 1 to 63 characters of a-z, \
             0-9 and -"
        )
    })
}

/// Checks that `reaches` names existing networks with this DPU as their gateway. Checks only what `concerns`
/// accepts, by a network and the name of a network in its `reaches`. Returns one sentence for each problem.
#[must_use]
pub fn check_reaches<'a>(
    networks: impl IntoIterator<Item = &'a Network> + Clone,
    concerns: impl Fn(&Network, &str) -> bool,
) -> Vec<String> {
    let modes: BTreeMap<&str, GatewayMode> = networks
        .clone()
        .into_iter()
        .map(|network| (network.name.as_str(), network.gateway_mode))
        .collect();
    let check = |name: &str, reached: &String| {
        let why = match modes.get(reached.as_str()) {
            Some(GatewayMode::Dpu) => return None,
            Some(GatewayMode::Router) => "whose gateway_mode is not \"dpu\"",
            None => "which does not exist: create it first",
        };
        Some(format!("network {name:?}: reaches holds {reached:?}, {why}"))
    };
    let all = networks.into_iter();
    all.flat_map(|network| network.reaches.iter().map(move |reached| (network, reached)))
        .filter(|(network, reached)| concerns(network, reached))
        .filter_map(|(network, reached)| check(&network.name, reached))
        .collect()
}

fn check_range(subnet: &Subnet, range: &AddressRange) -> Option<String> {
    let AddressRange { start, end } = range;
    let outside = [start, end].into_iter().find(|address| !subnet.cidr.contains(**address));
    if let Some(address) = outside {
        return Some(format!("range {start} to {end}: {address} is outside the subnet"));
    }
    (start > end).then(|| format!("range {start} to {end} runs backwards: swap its ends"))
}

fn check_ranges_apart(ranges: &[AddressRange]) -> Option<String> {
    let mut sorted: Vec<_> = ranges.iter().collect();
    sorted.sort_by_key(|range| range.start);
    let clash = sorted.windows(2).find(|pair| pair[0].end >= pair[1].start)?;
    Some(format!(
        "ranges {} to {} and {} to {} overlap: join them",
        clash[0].start, clash[0].end, clash[1].start, clash[1].end
    ))
}

fn check_exclude(subnet: &Subnet, prefix: IpNetwork) -> Vec<String> {
    let mut problems: Vec<String> = check_prefix(prefix).into_iter().collect();
    if !overlap(subnet.cidr, prefix) {
        problems.push(format!("exclude {prefix} is outside the subnet: correct or remove it"));
    }
    problems
}

fn check_dns(dns: &Dns) -> Vec<String> {
    let names = [&dns.domain].into_iter().chain(&dns.search).chain(&dns.options);
    names
        .filter(|name| !is_resolver_word(name))
        .map(|name| {
            let shown: String = name.chars().take(40).collect();
            format!(
                "dns: {shown:?} must be one word of at most {LONGEST_DOMAIN} visible characters"
            )
        })
        .collect()
}

fn is_resolver_word(text: &str) -> bool {
    text.len() <= LONGEST_DOMAIN && text.bytes().all(|b| b.is_ascii_graphic())
}

fn check_unique_names<'a>(networks: impl IntoIterator<Item = &'a Network>) -> Vec<String> {
    let names = networks.into_iter().map(|network| network.name.as_str());
    duplicates(names).map(|name| format!("two networks are named {name:?}: rename one")).collect()
}

fn check_one_default<'a>(networks: impl IntoIterator<Item = &'a Network>) -> Option<String> {
    let mut defaults = networks.into_iter().filter(|network| network.default);
    let (first, second) = (defaults.next()?, defaults.next()?);
    Some(format!(
        "networks {:?} and {:?} both have default = true: only one can",
        first.name, second.name
    ))
}

/// A subnet and its network.
type Owned<'a> = (IpNetwork, &'a Network);

/// Checks that no two subnets of one layer-2 domain overlap.
fn check_overlaps<'a>(
    networks: impl IntoIterator<Item = &'a Network>,
    bridges: &[String],
) -> BTreeSet<String> {
    let domains = Layer2Domains::of_bridges(bridges);
    let mut by_domain = BTreeMap::<Layer2Domain, Vec<Owned<'_>>>::new();
    for network in networks {
        for domain in domains.reached_from(network) {
            by_domain.entry(domain).or_default().extend(subnets_of(network));
        }
    }
    let tell = |(domain, subnets): (Layer2Domain, Vec<Owned<'a>>)| {
        overlaps(subnets, |_| true).into_iter().map(move |((cidr, network), (outer, owner))| {
            format!(
                "subnet {cidr} of network {:?} overlaps {outer} of network {:?} in {domain}: an address could be \
                 handed out twice",
                network.name, owner.name
            )
        })
    };
    by_domain.into_iter().flat_map(tell).collect()
}

/// Checks that a subnet which this DPU routes, as its network's gateway, overlaps no subnet of another layer-2
/// domain. The DPU has one route to a subnet, and `reaches` could lead to only one of the two. Returns one sentence
/// for each problem.
#[must_use]
pub fn check_routed_subnets<'a>(
    networks: impl IntoIterator<Item = &'a Network>,
    bridges: &[String],
) -> Vec<String> {
    let domains = Layer2Domains::of_bridges(bridges);
    let subnets = networks.into_iter().flat_map(subnets_of).collect();
    // `check_overlaps` reports overlaps in one domain.
    let is_apart = |((_, one), (_, other)): &(Owned<'_>, Owned<'_>)| {
        let reached: Vec<_> = domains.reached_from(other).collect();
        domains.reached_from(one).all(|domain| !reached.contains(&domain))
    };
    let found = overlaps(subnets, |network| network.gateway_mode == GatewayMode::Dpu);
    let tell = |((cidr, network), (outer, owner)): (Owned<'_>, Owned<'_>)| {
        let routed = if network.gateway_mode == GatewayMode::Dpu { network } else { owner };
        format!(
            "subnet {cidr} of network {:?} in {} overlaps {outer} of network {:?} in {}, and the gateway of {:?} is \
             this DPU, which has one route to a subnet. Use another subnet, or gateway_mode = \"router\" in both",
            network.name,
            domains.of(network),
            owner.name,
            domains.of(owner),
            routed.name
        )
    };
    found.into_iter().filter(is_apart).map(tell).collect()
}

fn subnets_of(network: &Network) -> impl Iterator<Item = Owned<'_>> {
    network.subnets.iter().map(move |subnet| (subnet.cidr, network))
}

/// The overlapping subnets where one of the two networks `counts`, each with the widest subnet that contains it.
/// Prefixes nest or are disjoint, so in sorted order a subnet follows the widest one that contains it.
fn overlaps<'a>(
    mut subnets: Vec<Owned<'a>>,
    counts: impl Fn(&Network) -> bool,
) -> Vec<(Owned<'a>, Owned<'a>)> {
    subnets.sort_by_key(|(cidr, network)| (cidr.network(), cidr.prefix(), &network.name));
    let mut found = Vec::new();
    let (mut widest, mut widest_that_counts) = (None::<Owned<'_>>, None::<Owned<'_>>);
    for subnet in subnets {
        let (cidr, network) = subnet;
        let is_within = |(outer, _): &Owned<'_>| outer.contains(cidr.network());
        let outer = if counts(network) { widest } else { widest_that_counts };
        found.extend(outer.filter(is_within).map(|outer| (subnet, outer)));
        if !widest.as_ref().is_some_and(is_within) {
            widest = Some(subnet);
        }
        if counts(network) && !widest_that_counts.as_ref().is_some_and(is_within) {
            widest_that_counts = Some(subnet);
        }
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    pub(in crate::check) fn network(text: &str) -> Network {
        toml::from_str(text).unwrap()
    }

    pub(in crate::check) fn assert_problem(text: &str, expected: &str) {
        let problems = check_network(&network(text));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?} does not tell {expected:?}");
    }

    #[test]
    fn namespaces_are_named_exactly() {
        let named = "name = \"a\"\nnamespaces = [\"prod\", \"team-a\"]";
        assert_eq!(check_network(&network(named)), [""; 0]);
        for wrong in ["team-*", "", "Prod"] {
            let text = format!("name = \"a\"\nnamespaces = [{wrong:?}]");
            assert_problem(&text, &format!("namespaces holds {wrong:?}"));
        }
    }

    #[test]
    fn an_interface_prefix_leaves_room_for_two_digits() {
        let of = |prefix: &str| format!("name = \"a\"\ninterface_prefix = {prefix:?}");
        for good in ["", "data", "thirteen-byte"] {
            assert_eq!(check_network(&network(&of(good))), [""; 0]);
        }
        for wrong in ["fourteen-bytes", "a/", "a b", "net%d"] {
            assert_problem(&of(wrong), "interface_prefix");
        }
    }

    #[test]
    fn a_full_network_is_fine() {
        let text = r#"
            name = "blue-1"
            vlan = 4094
            mtu = 9000
            bandwidth = { ingress_rate = 1000000, ingress_burst = 80000 }
            [[subnets]]
            cidr = "10.1.0.0/16"
            gateway = "10.1.0.1"
            ranges = [{ start = "10.1.1.0", end = "10.1.1.255" }, { start = "10.1.3.0", end = "10.1.3.9" }]
            exclude = ["10.1.1.5/32", "10.1.3.0/30"]
            [[subnets]]
            cidr = "fd00:1::/64"
            gateway = "fd00:1::1"
            [[routes]]
            destination = "10.9.0.0/16"
            gateway = "10.1.0.2"
            [[rules]]
            source = "10.1.0.0/16"
            table = 100
            [dns]
            nameservers = ["10.1.0.1"]
            search = ["svc.example"]
        "#;
        assert_eq!(check_network(&network(text)), [""; 0]);
    }

    #[test]
    fn first_hop_may_be_link_local() {
        let of = |rest: &str| format!("name = \"a\"\n{rest}");
        let link_local = "subnets = [{ cidr = \"10.1.0.0/16\", gateway = \"169.254.77.1\" }, \
                          { cidr = \"fd00:1::/64\", gateway = \"fe80::1\" }]";
        let first_hop = of(&format!("first_hop = true\n{link_local}"));
        assert_eq!(check_network(&network(&first_hop)), [""; 0]);
        assert_problem(&of(link_local), "gateway 169.254.77.1 is outside");
        assert_problem(
            &of(&format!("first_hop = true\ngateway_mode = \"dpu\"\n{link_local}")),
            "gateway 169.254.77.1 is outside",
        );
        let bare = "first_hop = true\nsubnets = [{ cidr = \"10.1.0.0/16\" }]";
        assert_problem(&of(bare), "first_hop = true");
        let subnet =
            "first_hop = true\nsubnets = [{ cidr = \"10.1.0.0/16\", gateway = \"10.1.0.1\" }]";
        let by = |hop: &str| {
            of(&format!(
                "{subnet}\nroutes = [{{ destination = \"10.9.0.0/16\", gateway = \"{hop}\" }}]"
            ))
        };
        assert_eq!(check_network(&network(&by("10.1.0.1"))), [""; 0]);
        assert_problem(&by("10.1.0.2"), "gateway 10.1.0.2 is not");
    }

    #[test]
    fn nat_and_reaches_need_a_dpu_gateway() {
        let subnet = "subnets = [{ cidr = \"10.1.0.0/16\", gateway = \"10.1.0.1\" }]";
        let dpu = |rest: &str| format!("name = \"a\"\ngateway_mode = \"dpu\"\n{rest}\n{subnet}");
        assert_eq!(check_network(&network(&dpu("nat = true\nreaches = [\"b\"]"))), [""; 0]);
        assert_problem(&dpu("reaches = [\"a\"]"), "reaches");
        let none = "name = \"a\"\ngateway_mode = \"dpu\"";
        assert_problem(none, "gateway_mode = \"dpu\" needs");
        assert_problem("name = \"a\"\nnat = true", "nat is ");
        assert_problem("name = \"a\"\nreaches = [\"b\"]", "reaches is ");
        let first_hop = "subnets = [{ cidr = \"fd00:1::/64\", gateway = \"fe80::1\" }]";
        assert_eq!(check_network(&network(&format!("name = \"a\"\n{first_hop}"))), [""; 0]);
    }

    #[test]
    fn reaches_names_networks_with_a_dpu_gateway() {
        let one = |name: &str, rest: &str| network(&format!("name = {name:?}\n{rest}"));
        let dpu = "gateway_mode = \"dpu\"";
        let blue = one("blue", &format!("{dpu}\nreaches = [\"green\", \"red\", \"none\"]"));
        let reported = check_reaches([&blue, &one("green", dpu), &one("red", "")], |_, _| true);
        let [unknown, not_led] = &reported[..] else { panic!("{reported:?}") };
        let not_led_by_us = |it: &str| it.contains("gateway_mode");
        assert!(unknown.starts_with("network \"blue\": reaches holds \"none\""), "{unknown}");
        assert!(!not_led_by_us(unknown), "{unknown}");
        assert!(not_led.starts_with("network \"blue\": reaches holds \"red\""), "{not_led}");
        assert!(not_led_by_us(not_led), "{not_led}");
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "Blue", "-a", "a-", "a_b", "a b", "é", &"a".repeat(64)] {
            assert_problem(&format!("name = {name:?}"), "name must");
        }
    }

    #[test]
    fn link_settings_are_checked() {
        assert_problem("name = \"a\"\nvlan = 0", "vlan 0 must be 1 to 4094");
        assert_problem("name = \"a\"\nvlan = 4095", "vlan 4095 must be 1 to 4094");
        assert_problem("name = \"a\"\nmtu = 1279", "mtu 1279 must be 1280 to 9216");
        assert_problem("name = \"a\"\nmtu = 9217", "mtu 9217 must be 1280 to 9216");
    }

    #[test]
    fn subnet_without_free_addresses_is_refused() {
        let subnets = "name = 'a'\nsubnets = [{ cidr = '10.1.0.0/30', gateway = '10.1.0.1' }]";
        assert_eq!(check_network(&network(subnets)), [""; 0]);
        let route = "routes = [{ destination = '10.9.0.0/16', gateway = '10.1.0.2' }]";
        let expected = r#"network "a": subnet 10.1.0.0/30 "#;
        let reported = check_network(&network(&format!("{subnets}\n{route}")));
        assert!(reported.len() == 1 && reported[0].starts_with(expected), "{reported:?}");
    }

    #[test]
    fn subnets_are_checked() {
        let cases = [
            (r#"cidr = "10.1.0.5/16""#, "has host bits set: write 10.1.0.0/16"),
            (r#"cidr = "fd00::1/64""#, "has host bits set: write fd00::/64"),
            (r#"cidr = "224.1.0.0/16""#, "loopback, multicast, broadcast or unspecified"),
            (r#"cidr = "255.255.255.255/32""#, "loopback, multicast, broadcast or unspecified"),
            (r#"cidr = "255.255.255.254/31""#, "loopback, multicast, broadcast or unspecified"),
            (r#"cidr = "fe80::/64""#, "fe80::/10 is link-local"),
            (r#"cidr = "fe80:0:0:7::/64""#, "fe80::/10 is link-local"),
            (r#"cidr = "fe00::/8""#, "fe80::/10 is link-local"),
            (r#"cidr = "0.0.0.0/0""#, "loopback, multicast, broadcast or unspecified"),
            (r#"cidr = "::ffff:10.1.0.0/112""#, "loopback, multicast, broadcast or unspecified"),
            (r#"cidr = "10.1.0.0/16", gateway = "10.2.0.1""#, "gateway 10.2.0.1 is outside"),
            (r#"cidr = "10.1.0.0/16", gateway = "fd00::1""#, "gateway fd00::1 is outside"),
            (r#"cidr = "10.1.0.0/16", gateway = "10.1.0.0""#, "is the network's or the broadcast"),
            (
                r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.1.0.9", end = "10.1.0.8" }]"#,
                "runs backwards",
            ),
            (
                r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.0.0.9", end = "10.1.0.8" }]"#,
                "10.0.0.9 is outside the subnet",
            ),
            (
                r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.1.0.5", end = "10.1.0.8" }, { start = "10.1.0.1", end = "10.1.0.5" }]"#,
                "overlap: join them",
            ),
            (
                r#"cidr = "10.1.0.0/16", exclude = ["10.2.0.0/30"]"#,
                "exclude 10.2.0.0/30 is outside",
            ),
            (r#"cidr = "10.1.0.0/16", exclude = ["10.1.0.1/30"]"#, "10.1.0.1/30 has host bits"),
        ];
        for (subnet, expected) in cases {
            assert_problem(&format!("name = \"a\"\nsubnets = [{{ {subnet} }}]"), expected);
        }
    }

    #[test]
    fn lists_of_a_subnet_are_bounded() {
        let of = |number: u32| {
            let addresses = (1..=number).map(|last| Ipv4Addr::from_bits(0x0a01_0000 + 2 * last));
            let (exclude, ranges): (Vec<_>, Vec<_>) = addresses
                .map(|it| (format!("'{it}/32'"), format!("{{ start = '{it}', end = '{it}' }}")))
                .unzip();
            let (exclude, ranges) = (exclude.join(", "), ranges.join(", "));
            let cidr = "cidr = '10.1.0.0/16'";
            [format!("exclude = [{exclude}]"), format!("ranges = [{ranges}]")]
                .map(|list| format!("name = 'a'\nsubnets = [{{ {cidr}, {list} }}]"))
        };
        of(256).iter().for_each(|text| assert_eq!(check_network(&network(text)), [""; 0]));
        let [exclude, ranges] = of(257);
        assert_problem(&exclude, "exclude holds 257 entries; 256 are the most");
        assert_problem(&ranges, "ranges holds 257 entries; 256 are the most");
    }

    #[test]
    fn rates_and_resolver_words_are_checked() {
        let cases = [
            ("bandwidth = { egress_burst = 8 }", "egress_burst needs bandwidth.egress_rate"),
            ("bandwidth = { ingress_rate = 7999 }", "must be at least 8000"),
            ("bandwidth = { egress_share = 7999 }", "egress_share 7999 must be at least 8000"),
            (
                "bandwidth = { egress_rate = 8000, egress_share = 8001 }",
                "egress_share 8001 must be at most bandwidth.egress_rate 8000",
            ),
            ("total_egress_rate = 7999", "total_egress_rate 7999 must be at least 8000"),
            (
                "total_egress_rate = 8000\nbandwidth = { egress_share = 8001 }",
                "egress_share 8001 must be at most total_egress_rate 8000",
            ),
            ("bandwidth = { ingress_rate = 8000, ingress_burst = 34359738361 }", "at most"),
            ("dns = { search = [\"a b\"] }", "\"a b\" must be one word"),
        ];
        for (lines, expected) in cases {
            assert_problem(&format!("name = \"a\"\n{lines}"), expected);
        }
    }

    #[test]
    fn networks_are_checked_against_each_other() {
        let with = |name: &str, cidr: &str| {
            network(&format!("name = {name:?}\nsubnets = [{{ cidr = {cidr:?} }}]"))
        };
        let inner = with("b", "10.1.2.0/24");
        let networks = [with("a", "10.1.0.0/16"), with("c", "10.2.0.0/16"), inner.clone()];
        let problems = check_networks(&networks, &[]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("10.1.2.0/24 of network \"b\" overlaps 10.1.0.0/16 of"));

        let problems = check_networks(&[network("name = \"a\""), network("name = \"a\"")], &[]);
        assert!(problems.len() == 1 && problems[0].contains("named \"a\""), "{problems:?}");

        let default = |name: &str| network(&format!("name = {name:?}\ndefault = true"));
        let problems = check_networks(&[default("a"), default("b")], &[]);
        assert!(problems[0].contains("default = true"), "{problems:?}");
    }

    #[test]
    fn subnets_of_one_network_are_apart() {
        let text = "name = \"a\"\nsubnets = [{ cidr = \"10.0.0.0/8\" }, { cidr = \"10.0.0.0/8\" }]";
        assert_eq!(check_networks(&[network(text)], &[]).len(), 1);
    }

    fn in_vlan(name: &str, cidr: &str, rest: &str) -> Network {
        network(&format!("name = {name:?}\n{rest}\nsubnets = [{{ cidr = {cidr:?} }}]"))
    }

    #[test]
    fn subnets_overlap_within_a_layer_2_domain() {
        let are_apart = |one: &str, other: &str| {
            let networks = [in_vlan("a", "10.1.0.0/16", one), in_vlan("b", "10.1.2.0/24", other)];
            check_networks(&networks, &["br0".into(), "br1".into()]).is_empty()
        };
        assert!(are_apart("vlan = 7", "vlan = 8") && are_apart("", "vlan = 8"));
        assert!(are_apart("vlan = 7", "vlan = 7\nbridge = 'br1'"));
        assert!(!are_apart("vlan = 7", "vlan = 7") && !are_apart("", "bridge = 'br0'"));
        assert!(!are_apart("vlan = 7\ntrunk = [8]", "vlan = 8"));
        assert!(!are_apart("vlan = 7\ntrunk = [9]", "vlan = 8\ntrunk = [9]"));
    }

    #[test]
    fn dpu_routed_subnet_is_in_one_domain() {
        let dpu = |name, cidr, vlan: u16| {
            in_vlan(name, cidr, &format!("vlan = {vlan}\ngateway_mode = 'dpu'"))
        };
        let plain = |name, cidr, vlan: u16| in_vlan(name, cidr, &format!("vlan = {vlan}"));
        let reported = |networks: &[Network]| check_routed_subnets(networks, &[]);
        let (wide, narrow) = ("10.0.0.0/8", "10.1.0.0/16");
        for networks in [
            [dpu("a", wide, 7), plain("b", narrow, 8)],
            [plain("a", wide, 7), dpu("b", narrow, 8)],
            [dpu("a", narrow, 7), dpu("b", narrow, 8)],
            [plain("a", narrow, 7), dpu("b", narrow, 8)],
        ] {
            let reported = reported(&networks);
            let named = ["\"a\" in VLAN 7", "\"b\" in VLAN 8"];
            assert!(
                reported.len() == 1 && named.iter().all(|it| reported[0].contains(it)),
                "{reported:?}"
            );
        }
        let apart = [plain("a", narrow, 7), plain("b", narrow, 8), dpu("c", "10.2.0.0/16", 9)];
        assert_eq!(reported(&apart), [""; 0]);
        let hidden =
            [plain("a", wide, 7), plain("b", "10.1.0.0/16", 8), dpu("c", "10.1.2.0/24", 9)];
        assert_eq!(reported(&hidden).len(), 1);
    }
}
