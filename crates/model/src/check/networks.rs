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
pub(super) mod tests;
