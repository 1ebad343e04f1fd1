//! Checks of a network's `allow` rules: who may open connections to its pods.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;

use super::form::{LONGEST_LIST, check_prefix, is_label};
use crate::{
    AllowRule, AllowedProtocol, AntiSpoofing, IngressRule, Network, Prefixes,
    allow::{MOST_COMBINATIONS, ingress_rules, named_networks},
    anti_spoofing::macs,
};

/// Checks the rules of one network. Returns one sentence for each problem.
pub(super) fn check_allow(network: &Network) -> Vec<String> {
    let mut problems: Vec<_> = check_pods(network).into_iter().collect();
    if network.allow.len() > 1 && network.allow.iter().any(|rule| rule.deny_all) {
        problems.push(
            "allow has a rule with deny_all = true and others: leave that one or the others out"
                .into(),
        );
    }
    for (index, rule) in network.allow.iter().enumerate() {
        let of_rule = check_rule(rule).into_iter();
        problems.extend(of_rule.map(|problem| format!("allow rule {}: {problem}", index + 1)));
    }
    problems
}

/// Rules match a pod's MAC address, so the pod must be the only one that can have it.
fn check_pods(network: &Network) -> Option<String> {
    if network.allow.is_empty() {
        return None;
    }
    if network.anti_spoofing == AntiSpoofing::Off {
        return Some(
            "allow needs anti_spoofing = \"full\" or \"mac\": rules need a pod's MAC \
             address, and with \"off\" a pod may have any"
                .into(),
        );
    }
    let mac = macs(&network.allowed_sources).chain(macs(&network.optional_sources)).next()?;
    Some(format!(
        "allow can't be combined with {mac} among its sources, which several pods may have: rules need a MAC \
         address of one pod; leave either out"
    ))
}

fn check_rule(rule: &AllowRule) -> Vec<String> {
    let AllowRule { from_networks, from, protocol, ports, deny_all } = rule;
    let says_nothing =
        from_networks.is_empty() && from.is_empty() && protocol.is_none() && ports.is_empty();
    match (deny_all, says_nothing) {
        (true, true) => return Vec::new(),
        (true, false) => return vec!["deny_all = true must be alone in its rule".into()],
        (false, true) => {
            return vec![
                "it is empty, so it would allow every connection: leave allow out for that, or write \
                 deny_all = true for the opposite"
                    .into(),
            ];
        }
        (false, false) => {}
    }
    let mut problems: Vec<_> = from.iter().filter_map(|prefix| check_from(*prefix)).collect();
    let wrong = from_networks.iter().filter(|name| !is_label(name));
    problems.extend(
        wrong.map(|name| format!("from_networks holds {name:?}, which can't name a network")),
    );
    if !ports.is_empty() && !protocol.is_some_and(AllowedProtocol::has_ports) {
        problems.push("ports need protocol = \"tcp\", \"udp\" or \"sctp\"".into());
    }
    let lengths =
        [("from_networks", from_networks.len()), ("from", from.len()), ("ports", ports.len())];
    let too_long = lengths.into_iter().filter(|(_, length)| *length > LONGEST_LIST);
    problems.extend(
        too_long.map(|(key, length)| {
            format!("{key} holds {length} entries; {LONGEST_LIST} are the most")
        }),
    );
    problems
}

fn check_from(prefix: IpNetwork) -> Option<String> {
    let problem = check_prefix(prefix).or_else(|| {
        let is_multicast = prefix.network().is_multicast();
        is_multicast.then(|| format!("{prefix} is multicast, which is no source address"))
    });
    problem.map(|problem| format!("from: {problem}"))
}

/// Checks that rules name existing networks with subnets, and that they need no more flows than a port may have.
/// Checks only what `concerns` accepts, by a network and the name of a network in its rules. Returns one sentence
/// for each problem.
#[must_use]
pub fn check_named_networks<'a>(
    networks: impl IntoIterator<Item = &'a Network> + Clone,
    concerns: impl Fn(&Network, &str) -> bool,
) -> Vec<String> {
    let known: Prefixes = networks
        .clone()
        .into_iter()
        .map(|network| (network.name.clone(), prefixes_of(network)))
        .collect();
    let is_concerned = |network: &&Network| {
        let mut named = named_networks(&network.allow).chain([&network.name]);
        named.any(|name| concerns(network, name))
    };
    let concerned = networks.into_iter().filter(is_concerned);
    concerned.flat_map(|network| check_named(network, &known)).collect()
}

/// The prefixes of the pods' addresses.
pub fn prefixes_of(network: &Network) -> BTreeSet<IpNetwork> {
    network.subnets.iter().map(|subnet| subnet.cidr).collect()
}

fn check_named(network: &Network, known: &BTreeMap<String, BTreeSet<IpNetwork>>) -> Vec<String> {
    let subject = format!("network {:?}", network.name);
    let unusable = named_networks(&network.allow).filter_map(|name| {
        let why = match known.get(name) {
            Some(prefixes) if !prefixes.is_empty() => return None,
            Some(_) => "which has no subnets, so its pods' addresses are unknown",
            None => {
                "which does not exist: create it first; of networks that name each other, apply one without \
                 its allow first, and with its allow last"
            }
        };
        Some(format!("{subject}: allow names {name:?}, {why}"))
    });
    let mut problems: Vec<_> = unusable.collect();
    let ingress_rules = ingress_rules(&network.allow, known).unwrap_or_default();
    let combinations: usize = ingress_rules.iter().map(IngressRule::combinations).sum();
    if combinations > MOST_COMBINATIONS {
        problems.push(format!(
            "{subject}: allow comes to {combinations} combinations of a prefix and a block of ports; \
             {MOST_COMBINATIONS} are the most: name wider prefixes, or fewer ranges of ports"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{
        check_network,
        networks::tests::{assert_problem, network},
    };

    fn with(rules: &str) -> String {
        format!("name = \"a\"\n{rules}")
    }

    #[test]
    fn rules_say_who_may_open_what() {
        let good = r#"
            [[allow]]
            from_networks = ["green", "a"]
            from = ["10.9.0.0/16", "fd09::/16", "10.8.0.7", "0.0.0.0/0"]
            protocol = "tcp"
            ports = ["80", "8000-8100", 443]
            [[allow]]
            protocol = "icmp"
        "#;
        assert_eq!(check_network(&network(&with(good))), [""; 0]);
        assert_eq!(check_network(&network(&with("allow = [{ deny_all = true }]"))), [""; 0]);
        for (rules, reported) in [
            ("[{}]", "allow rule 1: it is empty, so it would allow every connection: leave"),
            (
                "[{ deny_all = true, protocol = \"tcp\" }]",
                "deny_all = true must be alone in its rule",
            ),
            ("[{ deny_all = true }, { protocol = \"tcp\" }]", "leave that one or the others out"),
            ("[{ protocol = \"icmp\", ports = [\"8\"] }]", "ports need protocol = \"tcp\","),
            ("[{ ports = [\"80\"] }]", "ports need protocol = \"tcp\","),
            ("[{ protocol = \"tcp\" }, { from = [\"10.0.0.1/8\"] }]", "allow rule 2: from: 10.0"),
            ("[{ from_networks = [\"Green\"] }]", "holds \"Green\", which can't name a network"),
            (
                "[{ from = [\"224.0.0.0/4\"] }]",
                "from: 224.0.0.0/4 is multicast, which is no source",
            ),
        ] {
            assert_problem(&with(&format!("allow = {rules}")), reported);
        }
        for wrong in ["ports = [\"99999\"]", "ports = [0]", "protocol = \"TCP\"", "form = []"] {
            let text = with(&format!("allow = [{{ {wrong} }}]"));
            assert!(toml::from_str::<Network>(&text).is_err(), "{wrong}");
        }
    }

    #[test]
    fn allow_needs_a_mac_address_per_pod() {
        let allow = "allow = [{ protocol = \"tcp\" }]";
        let off = with(&format!("anti_spoofing = \"off\"\n{allow}"));
        assert_problem(&off, "allow needs anti_spoofing = \"full\" or \"mac\"");
        for key in ["allowed_sources", "optional_sources"] {
            let shared = with(&format!("{key} = [\"00:00:5e:00:01:07\"]\n{allow}"));
            assert_problem(
                &shared,
                "allow can't be combined with 00:00:5e:00:01:07 among its sources",
            );
        }
        let mac = with(&format!("anti_spoofing = \"mac\"\n{allow}"));
        assert_eq!(check_network(&network(&mac)), [""; 0]);
        let addresses = with(&format!("allowed_sources = [\"10.0.0.7\"]\n{allow}"));
        assert_eq!(check_network(&network(&addresses)), [""; 0]);
    }

    #[test]
    fn allow_names_networks_with_subnets() {
        let subnet = |name: &str, octet: usize| {
            network(&format!("name = {name:?}\nsubnets = [{{ cidr = \"10.{octet}.0.0/16\" }}]"))
        };
        let blue = network(
            "name = \"blue\"\nallow = [{ from_networks = [\"blue\", \"green\", \"red\", \"none\"] }]",
        );
        let (green, red) = (subnet("green", 2), network("name = \"red\""));
        let reported = check_named_networks([&blue, &green, &red], |_, _| true);
        let expected = [("blue", "no subnets"), ("none", "create it"), ("red", "no subnets")];
        assert_eq!(reported.len(), expected.len(), "{reported:?}");
        for (reported, (named, why)) in reported.iter().zip(expected) {
            let begins = format!("network \"blue\": allow names \"{named}\", ");
            assert!(reported.starts_with(&begins) && reported.contains(why), "{reported}");
        }
        let of_green = |network: &Network, named: &str| [&*network.name, named].contains(&"yellow");
        assert_eq!(check_named_networks([&blue, &green, &red], of_green), [""; 0]);
    }

    #[test]
    fn what_rules_come_to_has_an_end() {
        // 30 blocks for each prefix.
        let rules = |prefixes: usize| {
            let from: Vec<_> = (0..prefixes).map(|number| format!("10.{number}.0.0/16")).collect();
            let ports = "protocol = \"tcp\", ports = [\"1-65534\"]";
            network(&with(&format!("allow = [{{ from = {from:?}, {ports} }}]")))
        };
        let most = MOST_COMBINATIONS / 30;
        assert_eq!(check_named_networks([&rules(most)], |_, _| true), [""; 0]);
        let reported = check_named_networks([&rules(most + 1)], |_, _| true);
        assert!(reported[0].contains("270 combinations"), "{reported:?}");
    }
}
