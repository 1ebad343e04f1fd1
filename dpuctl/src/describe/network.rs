//! Description of one network.

use offload_proto::v1::{AllowRule, GatewayStatus, Network, NetworkStatus, Subnet, SubnetUsage};

use super::settings::{bandwidth, routing};
use crate::{
    description::Description,
    outdated::outdated,
    rows::vlan,
    text::{count, or, or_dash, rate, yes_or_no},
};

pub(super) fn network_text(status: &NetworkStatus) -> String {
    let network = status.network.clone().unwrap_or_default();
    let mut text = Description::default();
    text.field("Name", &network.name);
    text.field("Origin", &status.origin);
    text.field("Default", yes_or_no(network.default));
    text.field("Bridge", or(&network.bridge, "the fabric's first"));
    text.field("VLAN", &vlan(network.vlan));
    text.field("Trunk", &network.trunk.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    text.field("Pool", &network.pool);
    text.field("MTU", &network.mtu.to_string());
    text.field("Anti-spoofing", &network.anti_spoofing);
    text.list("Sources", sources(&network));
    allow(&mut text, &network.allow);
    bandwidth(&mut text, network.bandwidth.as_ref());
    if network.total_egress_rate != 0 {
        text.field("From all pods", &rate(network.total_egress_rate));
    }
    text.field("Attachments", &status.attachments.to_string());
    text.field_if_any("Outdated", &outdated(status).unwrap_or_default());
    text.field("Namespaces", or(&network.namespaces.join(", "), "all"));
    if network.first_hop {
        text.field("First hop", "the gateways: addresses have no prefix");
    }
    text.field("Name prefix", &network.interface_prefix);
    if network.link_group != 0 {
        text.field("Link group", &network.link_group.to_string());
    }
    text.field("Link alias", &network.link_alias);
    gateway(&mut text, &network, status.gateway.as_ref());
    let sysctls = network.sysctls.clone().unwrap_or_default();
    routing(&mut text, &network.routes, &network.rules, &sysctls);
    resolver(&mut text, &network);
    let columns = ["SUBNET", "GATEWAY", "ADDRESSES", "HELD", "COOLING"];
    let subnets = network.subnets.iter().map(|subnet| subnet_row(subnet, &status.subnets));
    text.table("Subnets", &columns, subnets);
    text.finish()
}

/// The source addresses that pods may use, always and on request.
fn sources(network: &Network) -> Vec<String> {
    let Network { allowed_sources, optional_sources, .. } = network;
    let lists = [("allowed", allowed_sources), ("optional", optional_sources)];
    let lists = lists.into_iter().filter(|(_, sources)| !sources.is_empty());
    lists.map(|(list, sources)| format!("{list}: {}", sources.join(", "))).collect()
}

fn allow(text: &mut Description, rules: &[AllowRule]) {
    match rules {
        [] => text.field("Allow", "any"),
        [rule] if rule.deny_all => text.field("Allow", "none"),
        rules => text.list("Allow", rules.iter().map(allow_rule)),
    }
}

fn allow_rule(rule: &AllowRule) -> String {
    let AllowRule { from_networks, from, protocol, ports, .. } = rule;
    let networks = from_networks.iter().map(|name| format!("network {name}"));
    let from: Vec<_> = networks.chain(from.iter().cloned()).collect();
    let what = [&[or(protocol, "anything").to_owned()][..], ports].concat();
    format!("{}: {}", or(&from.join(", "), "any"), what.join(" "))
}

/// The gateway's owner and target; for the DPU's gateway also its state.
fn gateway(text: &mut Description, network: &Network, status: Option<&GatewayStatus>) {
    text.field("Gateway", or(&network.gateway_mode, "router"));
    let Some(status) = status else { return };
    text.field("Gateway link", &status.link);
    text.field("Answers", &status.addresses.join(", "));
    text.field("Reaches", &network.reaches.join(", "));
    text.field("NAT", yes_or_no(network.nat));
    text.list("Problems", status.problems.iter().cloned());
}

fn resolver(text: &mut Description, network: &Network) {
    let dns = network.dns.clone().unwrap_or_default();
    text.field("Name servers", &dns.nameservers.join(", "));
    text.field("Search", &dns.search.join(", "));
}

fn subnet_row(subnet: &Subnet, usages: &[SubnetUsage]) -> Vec<String> {
    let usage = usages.iter().find(|usage| usage.cidr == subnet.cidr);
    let usage = usage.cloned().unwrap_or_default();
    vec![
        subnet.cidr.clone(),
        or_dash(&subnet.gateway).into(),
        count(usage.capacity),
        usage.held.to_string(),
        usage.cooling.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::AttachmentName;

    use super::*;

    fn assert_shown(network: Network, lines: &str) {
        let status = NetworkStatus { network: Some(network), ..NetworkStatus::default() };
        let shown = network_text(&status);
        assert!(shown.contains(lines), "{shown}");
    }

    #[test]
    fn network_text_has_guard_and_sources() {
        let network = Network { anti_spoofing: "off".into(), ..Network::default() };
        assert_shown(network.clone(), "\nAnti-spoofing: off\nSources:       none\n");
        let with_sources = Network {
            allowed_sources: vec!["10.1.0.7/32".into(), "fd07::/64".into()],
            optional_sources: vec!["00:00:5e:00:01:07".into()],
            ..network
        };
        let lines = "Sources:\n  allowed: 10.1.0.7/32, fd07::/64\n  optional: 00:00:5e:00:01:07\n";
        assert_shown(with_sources, lines);
    }

    #[test]
    fn outdated_pods_are_named_only_if_any() {
        let named = AttachmentName { attachment_id: "0190".into(), ..AttachmentName::default() };
        let status = NetworkStatus {
            network: Some(Network::default()),
            outdated_attachments: 1,
            outdated: vec![named],
            ..NetworkStatus::default()
        };
        let shown = network_text(&status);
        assert!(shown.contains("\nOutdated:      1 attachment: 0190\n"), "{shown}");
        let current = NetworkStatus { outdated_attachments: 0, ..status };
        assert!(!network_text(&current).contains("Outdated"));
    }

    #[test]
    fn network_text_has_ingress_rules() {
        let with = |allow| Network { allow, ..Network::default() };
        assert_shown(with(Vec::new()), "\nAllow:         any\n");
        let deny_all = AllowRule { deny_all: true, ..AllowRule::default() };
        assert_shown(with(vec![deny_all]), "\nAllow:         none\n");
        let web = AllowRule {
            from_networks: vec!["green".into()],
            from: vec!["10.7.0.0/16".into()],
            protocol: "tcp".into(),
            ports: vec!["80".into(), "8000-8100".into()],
            ..AllowRule::default()
        };
        let pings = AllowRule { protocol: "icmp".into(), ..AllowRule::default() };
        let lines = "Allow:\n  network green, 10.7.0.0/16: tcp 80 8000-8100\n  any: icmp\n";
        assert_shown(with(vec![web, pings]), lines);
    }
}
