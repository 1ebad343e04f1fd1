//! `dpuctl describe`: all about one thing.

use jiff::Timestamp;
use offload_proto::v1::{
    AllowRule, AttachmentDetail, Bandwidth, Capability, Card, Dpu, Event, FurtherLease,
    GatewayStatus, HostStatus, Network, NetworkStatus, PolicyRule, PortCounters, PortMapping,
    Route, StepStatus, Subnet, SubnetUsage, Sysctls,
};

use crate::{
    arguments::Described,
    client::Client,
    console::Console,
    description::Description,
    error::{CallError, Kind},
    get::{attachment, network_named, networks},
    rows::{anti_spoofing, attachment_state, in_hardware, pod_name, vlan},
    status::{dpu, host_table},
    table::table,
    text::{bytes, count, or_dash, rate, short_id, vf_name, yes_or_no},
    watch::event_line,
};

pub(crate) async fn describe(
    client: &mut Client,
    what: Described,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let text = match what {
        Described::Attachment { id } => attachment_text(&attachment(client, &id).await?),
        Described::Dpu => dpu_text(&dpu(client).await?),
        Described::Host { name } => host_text(&host_named(dpu(client).await?.hosts, &name)?),
        Described::Network { name } => {
            network_text(&network_named(networks(client).await?.networks, &name)?)
        }
    };
    console.print(&text)
}

fn attachment_text(detail: &AttachmentDetail) -> String {
    let attachment = detail.attachment.clone().unwrap_or_default();
    let (key, pod) =
        (attachment.key.clone().unwrap_or_default(), attachment.pod.clone().unwrap_or_default());
    let mut text = Description::default();
    text.field("Id", &attachment.id);
    text.field("State", &attachment_state(&attachment));
    text.field("Created", &attachment.created_at);
    text.field("Host", &attachment.host);
    text.field("Container", &key.container_id);
    text.field("Interface", &key.interface_name);
    if !attachment.lead.is_empty() {
        text.field("Comes with", &attachment.lead);
    }
    text.field("Pod", &pod_name(&attachment));
    text.field("Pod uid", &pod.uid);
    text.field("Network", &attachment.network);
    text.field("VF", &vf_name(attachment.vf.as_ref()));
    text.field("PCI address", attachment.vf.as_ref().map_or("", |vf| &vf.device));
    text.field("Representor", &detail.representor);
    text.field("MAC", &attachment.mac);
    text.field("VLAN", &vlan(attachment.vlan));
    text.field("MTU", &attachment.mtu.to_string());
    let level = anti_spoofing(&attachment.anti_spoofing, attachment.allow_mac_spoofing);
    text.field("Anti-spoofing", level);
    if !attachment.allowed_sources.is_empty() {
        text.field("Sources", &attachment.allowed_sources.join(", "));
    }
    bandwidth(&mut text, attachment.bandwidth.as_ref());
    let address =
        |a: &offload_proto::v1::Address| format!("{} via {}", a.address, or_dash(&a.gateway));
    text.list("Addresses", &attachment.addresses.iter().map(address).collect::<Vec<_>>());
    if !attachment.further_leases.is_empty() {
        let leases: Vec<_> = attachment.further_leases.iter().map(further_lease).collect();
        text.list("Leases", &leases);
    }
    let sysctls = attachment.sysctls.unwrap_or_default();
    routing(&mut text, &attachment.routes, &attachment.rules, &sysctls);
    if !attachment.port_mappings.is_empty() {
        let mapped: Vec<_> = attachment.port_mappings.iter().map(port_mapping).collect();
        text.list("Mapped ports", &mapped);
    }
    if let Some(counters) = &detail.counters {
        traffic(&mut text, counters);
    }
    if !detail.unknown.is_empty() {
        text.list("Unknown", &detail.unknown);
    }
    text.block("Steps", &step_table(&detail.steps));
    text.block("Events", &event_lines(&detail.events));
    text.finish()
}

/// Addresses for an interface that others make.
fn further_lease(lease: &FurtherLease) -> String {
    let FurtherLease { interface_name, network, addresses, .. } = lease;
    let addresses: Vec<_> = addresses.iter().map(|held| held.address.as_str()).collect();
    format!("{} of {network} for {interface_name}", addresses.join(", "))
}

fn bandwidth(text: &mut Description, bandwidth: Option<&Bandwidth>) {
    let bandwidth = bandwidth.copied().unwrap_or_default();
    text.field("To the pod", &rate(bandwidth.ingress_rate));
    text.field("From the pod", &rate(bandwidth.egress_rate));
    if bandwidth.egress_share != 0 {
        text.field("Its share", &rate(bandwidth.egress_share));
    }
}

/// What its port has carried and dropped.
fn traffic(text: &mut Description, counters: &PortCounters) {
    let carried = |count: u64, packets: u64| format!("{} in {packets} packets", bytes(count));
    text.field("Sent", &carried(counters.sent_bytes, counters.sent_packets));
    text.field("Received", &carried(counters.received_bytes, counters.received_packets));
    text.field("Guard drops", &counters.guard_drops.to_string());
    text.field("Allow drops", &counters.allow_drops.to_string());
    let PortCounters { ingress_limit_drops, egress_limit_drops, .. } = counters;
    let limits = format!("{ingress_limit_drops} to the pod, {egress_limit_drops} from the pod");
    text.field("Limit drops", &limits);
    text.field("In hardware", &in_hardware(counters));
}

fn port_mapping(mapping: &PortMapping) -> String {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let address = if host_ip.is_empty() { "all addresses" } else { host_ip };
    format!("{host_port}/{protocol} of {address} to {container_port}")
}

/// Routes, rules and settings of a pod's interface, or of a network's.
fn routing(text: &mut Description, routes: &[Route], rules: &[PolicyRule], sysctls: &Sysctls) {
    text.list("Routes", &routes.iter().map(route).collect::<Vec<_>>());
    if !rules.is_empty() {
        text.list("Rules", &rules.iter().map(rule).collect::<Vec<_>>());
    }
    let settings = sysctl_lines(sysctls);
    if !settings.is_empty() {
        text.list("Sysctls", &settings);
    }
}

/// As `ip route` has it.
fn route(route: &Route) -> String {
    let way = if route.kind.is_empty() {
        format!("{} via {}", route.destination, or_dash(&route.gateway))
    } else {
        format!("{} {}", route.kind, route.destination)
    };
    let numbers = [
        ("table", route.table),
        ("metric", route.priority),
        ("mtu", route.mtu),
        ("advmss", route.advmss),
    ];
    let numbers = numbers.into_iter().filter(|(_, number)| *number != 0);
    let mut words = vec![way];
    words.extend(route.onlink.then(|| "onlink".into()));
    words.extend((!route.scope.is_empty()).then(|| format!("scope {}", route.scope)));
    words.extend(numbers.map(|(word, number)| format!("{word} {number}")));
    words.join(" ")
}

/// As `ip rule` has it.
fn rule(rule: &PolicyRule) -> String {
    let PolicyRule { source, table, priority } = rule;
    match priority {
        0 => format!("from {source} lookup {table}"),
        priority => format!("from {source} lookup {table} priority {priority}"),
    }
}

fn sysctl_lines(sysctls: &Sysctls) -> Vec<String> {
    let families = [("ipv4", &sysctls.ipv4), ("ipv6", &sysctls.ipv6)];
    let lines = families.into_iter().flat_map(|(family, settings)| {
        settings.iter().map(move |(key, value)| format!("{family}.{key} = {value}"))
    });
    lines.collect()
}

fn event_lines(events: &[Event]) -> String {
    events.iter().map(|event| event_line(event, short_id(&event.subject)) + "\n").collect()
}

fn step_table(steps: &[StepStatus]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let row = |step: &StepStatus| {
        let in_place = if step.unknown { "unknown" } else { yes_or_no(step.in_place) };
        vec![step.name.clone(), in_place.into(), or_dash(&step.detail).into()]
    };
    table(&["STEP", "IN PLACE", "DETAIL"], steps.iter().map(row))
}

fn dpu_text(dpu: &Dpu) -> String {
    let mut text = Description::default();
    text.field("Name", &dpu.name);
    text.field("Version", &dpu.version);
    text.field("Started", &dpu.started_at);
    text.field("Eswitch", &dpu.eswitch_driver);
    text.field("Fabric", &dpu.fabric_driver);
    text.field("Attachments", &dpu.attachments.to_string());
    text.list("Problems", &dpu.problems);
    text.block("Cards", &card_table(&dpu.cards));
    text.block("Hosts", &host_table(&dpu.hosts, true, Timestamp::now()));
    text.block("Capabilities", &capability_table(dpu));
    text.finish()
}

fn host_named(hosts: Vec<HostStatus>, name: &str) -> Result<HostStatus, CallError> {
    let found = hosts.into_iter().find(|host| host.name == name);
    found.ok_or_else(|| CallError::Unknown { kind: Kind::Host, name: name.into() })
}

fn host_text(host: &HostStatus) -> String {
    let mut text = Description::default();
    text.field("Name", &host.name);
    text.field("State", if host.connected { "Connected" } else { "Disconnected" });
    text.field("Since", &host.since);
    if !host.absence.is_empty() {
        text.field("Why", &host.absence);
    }
    text.field("Agent", &host.agent_version);
    text.field("Boot id", &host.boot_id);
    text.field("Networks", or(&host.networks.join(", "), "all"));
    text.field("MACs", if host.own_macs_only { "with the DPU's prefix" } else { "any" });
    text.finish()
}

fn card_table(cards: &[Card]) -> String {
    if cards.is_empty() {
        return String::new();
    }
    let row = |card: &Card| {
        let Card { device, eswitch_mode, representors, .. } = card;
        vec![device.clone(), eswitch_mode.clone(), representors.to_string()]
    };
    table(&["DEVICE", "ESWITCH MODE", "REPRESENTORS"], cards.iter().map(row))
}

/// What each card can do, and then what the DPU can that no card tells of.
fn capability_table(dpu: &Dpu) -> String {
    let of_cards = dpu
        .cards
        .iter()
        .flat_map(|card| card.capabilities.iter().map(move |can| (&*card.device, can)));
    let is_cards = |name: &str| of_cards.clone().any(|(_, can)| can.name == name);
    let of_dpu = dpu.capabilities.iter().filter(|can| !is_cards(&can.name)).map(|can| ("-", can));
    let row = |(device, capability): (&str, &Capability)| {
        let Capability { name, detail, .. } = capability;
        vec![device.into(), name.clone(), done_by(capability).into(), or_dash(detail).into()]
    };
    let rows: Vec<_> = of_cards.clone().chain(of_dpu).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["DEVICE", "NAME", "DONE", "DETAIL"], rows)
}

fn done_by(capability: &Capability) -> &'static str {
    match (capability.available, capability.offloaded) {
        (false, _) => "no",
        (true, false) => "in software",
        (true, true) => "in hardware",
    }
}

fn network_text(status: &NetworkStatus) -> String {
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
    let level = anti_spoofing(&network.anti_spoofing, network.allow_mac_spoofing);
    text.field("Anti-spoofing", level);
    text.list("Sources", &sources(&network));
    allow(&mut text, &network.allow);
    bandwidth(&mut text, network.bandwidth.as_ref());
    if network.total_egress_rate != 0 {
        text.field("From all pods", &rate(network.total_egress_rate));
    }
    text.field("Attachments", &status.attachments.to_string());
    text.field("Namespaces", or(&network.namespaces.join(", "), "all"));
    if network.first_hop {
        text.field("First hop", "the gateways: addresses have no prefix");
    }
    text.field("Interface prefix", &network.interface_prefix);
    if network.link_group != 0 {
        text.field("Link group", &network.link_group.to_string());
    }
    text.field("Link alias", &network.link_alias);
    gateway(&mut text, &network, status.gateway.as_ref());
    let sysctls = network.sysctls.clone().unwrap_or_default();
    routing(&mut text, &network.routes, &network.rules, &sysctls);
    resolver(&mut text, &network);
    text.block("Subnets", &subnet_table(&network.subnets, &status.subnets));
    text.finish()
}

/// Whom pods may send for, and whom if they ask for it.
fn sources(network: &Network) -> Vec<String> {
    let Network { allowed_sources, optional_sources, .. } = network;
    let lists = [("allowed", allowed_sources), ("optional", optional_sources)];
    let lists = lists.into_iter().filter(|(_, sources)| !sources.is_empty());
    lists.map(|(list, sources)| format!("{list}: {}", sources.join(", "))).collect()
}

/// Who may open what to its pods.
fn allow(text: &mut Description, rules: &[AllowRule]) {
    match rules {
        [] => text.field("Allow", "anybody"),
        [rule] if rule.nobody => text.field("Allow", "nobody"),
        rules => text.list("Allow", &rules.iter().map(allow_rule).collect::<Vec<_>>()),
    }
}

fn allow_rule(rule: &AllowRule) -> String {
    let AllowRule { from_networks, from, protocol, ports, .. } = rule;
    let networks = from_networks.iter().map(|name| format!("network {name}"));
    let from: Vec<_> = networks.chain(from.iter().cloned()).collect();
    let what = [&[or(protocol, "anything").to_owned()][..], ports].concat();
    format!("{}: {}", or(&from.join(", "), "anybody"), what.join(" "))
}

/// Who is the gateway, and where it leads; of the DPU, too, how it stands.
fn gateway(text: &mut Description, network: &Network, status: Option<&GatewayStatus>) {
    text.field("Gateway", or(&network.gateway_mode, "router"));
    let Some(status) = status else { return };
    text.field("Gateway link", &status.link);
    text.field("Answers", &status.addresses.join(", "));
    text.field("Reaches", &network.reaches.join(", "));
    text.field("NAT", yes_or_no(network.nat));
    text.list("Problems", &status.problems);
}

fn or<'a>(text: &'a str, usual: &'a str) -> &'a str {
    if text.is_empty() { usual } else { text }
}

fn resolver(text: &mut Description, network: &Network) {
    let dns = network.dns.clone().unwrap_or_default();
    text.field("Name servers", &dns.nameservers.join(", "));
    text.field("Search", &dns.search.join(", "));
}

fn subnet_table(subnets: &[Subnet], usages: &[SubnetUsage]) -> String {
    if subnets.is_empty() {
        return String::new();
    }
    let row = |subnet: &Subnet| {
        let usage = usages.iter().find(|usage| usage.cidr == subnet.cidr);
        let usage = usage.cloned().unwrap_or_default();
        vec![
            subnet.cidr.clone(),
            or_dash(&subnet.gateway).into(),
            count(usage.capacity),
            usage.held.to_string(),
            usage.cooling.to_string(),
        ]
    };
    let headings = ["SUBNET", "GATEWAY", "ADDRESSES", "HELD", "COOLING"];
    table(&headings, subnets.iter().map(row))
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{Address, Attachment, AttachmentKey, AttachmentState, Pod, Vf};

    use super::*;

    #[test]
    fn a_dpu_is_told_with_its_cards_and_what_they_can_do() {
        let dpu = Dpu {
            name: "dpu-1".into(),
            version: "0.1.0".into(),
            eswitch_driver: "devlink".into(),
            fabric_driver: "bridge".into(),
            capabilities: vec![
                Capability { name: "egress-rate".into(), available: true, ..Capability::default() },
                Capability {
                    name: "vlan-filtering".into(),
                    detail: "the kernel has none".into(),
                    ..Capability::default()
                },
            ],
            cards: vec![Card {
                device: "pci/0000:03:00.0".into(),
                eswitch_mode: "switchdev".into(),
                representors: 16,
                capabilities: vec![
                    Capability {
                        name: "filters".into(),
                        available: true,
                        offloaded: true,
                        ..Capability::default()
                    },
                    Capability {
                        name: "ingress-rate".into(),
                        available: true,
                        detail: "by the queue".into(),
                        ..Capability::default()
                    },
                    Capability { name: "egress-rate".into(), ..Capability::default() },
                ],
            }],
            started_at: "2026-03-01T10:58:00Z".into(),
            ..Dpu::default()
        };
        assert_eq!(
            dpu_text(&dpu),
            "\
Name:          dpu-1
Version:       0.1.0
Started:       2026-03-01T10:58:00Z
Eswitch:       devlink
Fabric:        bridge
Attachments:   0
Problems:      none

Cards:
DEVICE             ESWITCH MODE   REPRESENTORS
pci/0000:03:00.0   switchdev      16

Capabilities:
DEVICE             NAME             DONE          DETAIL
pci/0000:03:00.0   filters          in hardware   -
pci/0000:03:00.0   ingress-rate     in software   by the queue
pci/0000:03:00.0   egress-rate      no            -
-                  vlan-filtering   no            the kernel has none
"
        );
        let virtual_card = Dpu { cards: Vec::new(), ..dpu };
        let told = dpu_text(&virtual_card);
        assert!(!told.contains("Cards") && told.contains("\n-        egress-rate "), "{told}");
    }

    #[test]
    fn a_host_is_told_with_what_it_may_ask_for() {
        let host = HostStatus {
            name: "node-1".into(),
            connected: true,
            agent_version: "0.1.0".into(),
            boot_id: "b007".into(),
            since: "2026-03-01T11:00:00Z".into(),
            networks: vec!["blue".into(), "green".into()],
            own_macs_only: true,
            ..HostStatus::default()
        };
        assert_eq!(
            host_text(&host),
            "\
Name:          node-1
State:         Connected
Since:         2026-03-01T11:00:00Z
Agent:         0.1.0
Boot id:       b007
Networks:      blue, green
MACs:          with the DPU's prefix
"
        );
        let free = host_text(&HostStatus { networks: Vec::new(), own_macs_only: false, ..host });
        assert!(free.ends_with("Networks:      all\nMACs:          any\n"), "{free}");
        let unknown = host_named(Vec::new(), "node-9").unwrap_err();
        assert_eq!(unknown.to_string(), "there is no host \"node-9\"");
    }

    #[test]
    fn a_network_is_told_with_what_is_checked_and_whom_pods_may_send_for() {
        let network =
            Network { allow_mac_spoofing: true, anti_spoofing: "off".into(), ..Network::default() };
        let told = |network: &Network| {
            let network = Some(network.clone());
            network_text(&NetworkStatus { network, ..NetworkStatus::default() })
        };
        let has = |text: &str, lines: &str| assert!(text.contains(lines), "{text}");
        has(&told(&network), "\nAnti-spoofing: off\nSources:       none\n");
        let of_before = Network { anti_spoofing: String::new(), ..network.clone() };
        has(&told(&of_before), "\nAnti-spoofing: off\n");
        let with_sources = Network {
            allowed_sources: vec!["10.1.0.7/32".into(), "fd07::/64".into()],
            optional_sources: vec!["00:00:5e:00:01:07".into()],
            ..network
        };
        let lines = "Sources:\n  allowed: 10.1.0.7/32, fd07::/64\n  optional: 00:00:5e:00:01:07\n";
        has(&told(&with_sources), lines);
    }

    #[test]
    fn a_network_is_told_with_who_may_open_connections_to_its_pods() {
        let told = |allow: Vec<AllowRule>| {
            let network = Some(Network { allow, ..Network::default() });
            network_text(&NetworkStatus { network, ..NetworkStatus::default() })
        };
        let has = |text: &str, lines: &str| assert!(text.contains(lines), "{text}");
        has(&told(Vec::new()), "\nAllow:         anybody\n");
        let nobody = AllowRule { nobody: true, ..AllowRule::default() };
        has(&told(vec![nobody]), "\nAllow:         nobody\n");
        let web = AllowRule {
            from_networks: vec!["green".into()],
            from: vec!["10.7.0.0/16".into()],
            protocol: "tcp".into(),
            ports: vec!["80".into(), "8000-8100".into()],
            ..AllowRule::default()
        };
        let pings = AllowRule { protocol: "icmp".into(), ..AllowRule::default() };
        let lines = "Allow:\n  network green, 10.7.0.0/16: tcp 80 8000-8100\n  anybody: icmp\n";
        has(&told(vec![web, pings]), lines);
    }

    #[test]
    fn routes_rules_and_settings_are_told_as_ip_and_sysctl_have_them() {
        let routes = [
            Route {
                destination: "0.0.0.0/0".into(),
                gateway: "169.254.1.1".into(),
                onlink: true,
                table: 100,
                priority: 7,
                mtu: 1400,
                advmss: 1300,
                ..Route::default()
            },
            Route { destination: "10.9.0.0/16".into(), scope: "host".into(), ..Route::default() },
            Route { destination: "::/0".into(), kind: "unreachable".into(), ..Route::default() },
        ];
        let rules = [
            PolicyRule { source: "own".into(), table: 100, priority: 0 },
            PolicyRule { source: "fd00::/64".into(), table: 7, priority: 9 },
        ];
        let sysctls = Sysctls {
            ipv4: [("rp_filter".into(), 2)].into(),
            ipv6: [("accept_ra".into(), 1)].into(),
        };
        let told = |routes: &[Route], rules: &[PolicyRule], sysctls: &Sysctls| {
            let mut text = Description::default();
            routing(&mut text, routes, rules, sysctls);
            text.finish()
        };
        assert_eq!(
            told(&routes, &rules, &sysctls),
            "\
Routes:
  0.0.0.0/0 via 169.254.1.1 onlink table 100 metric 7 mtu 1400 advmss 1300
  10.9.0.0/16 via - scope host
  unreachable ::/0
Rules:
  from own lookup 100
  from fd00::/64 lookup 7 priority 9
Sysctls:
  ipv4.rp_filter = 2
  ipv6.accept_ra = 1
"
        );
        assert_eq!(told(&[], &[], &Sysctls::default()), "Routes:        none\n");
    }

    #[test]
    fn an_attachment_is_told_with_its_steps_and_events() {
        let detail = AttachmentDetail {
            attachment: Some(Attachment {
                id: "0190aaaa-bbbb-7000-8000-000000000001".into(),
                host: "node-1".into(),
                key: Some(AttachmentKey {
                    container_id: "c1".into(),
                    interface_name: "eth0".into(),
                }),
                network: "blue".into(),
                pod: Some(Pod {
                    namespace: "web".into(),
                    name: "shop\u{1b}[2J".into(),
                    uid: "u1".into(),
                }),
                vf: Some(Vf { pf: 0, vf: 3, controller: 0, device: "d000:00:00.4".into() }),
                mac: "02:00:00:00:00:01".into(),
                vlan: 100,
                addresses: vec![Address {
                    address: "10.1.0.5/16".into(),
                    gateway: "10.1.0.1".into(),
                }],
                mtu: 1500,
                anti_spoofing: "full".into(),
                allowed_sources: vec!["10.1.0.7/32".into(), "fd07::/64".into()],
                state: AttachmentState::Attached.into(),
                created_at: "2026-03-01T12:00:00Z".into(),
                ..Attachment::default()
            }),
            representor: "pf0vf3".into(),
            steps: vec![StepStatus {
                name: "vlan".into(),
                in_place: false,
                detail: "missing".into(),
                unknown: false,
            }],
            events: vec![Event {
                sequence: 1,
                time: "2026-03-01T12:00:00Z".into(),
                kind: "AttachmentReserved".into(),
                subject: "0190".into(),
                message: "for web/shop".into(),
            }],
            counters: Some(PortCounters {
                sent_bytes: 1_250_000,
                sent_packets: 1000,
                received_bytes: 98,
                received_packets: 1,
                guard_drops: 7,
                ingress_limit_drops: 3,
                egress_limit_drops: 2,
                allow_drops: 1,
                rules: 4,
                rules_in_hardware: 1,
            }),
            unknown: Vec::new(),
        };
        assert_eq!(
            attachment_text(&detail),
            "\
Id:            0190aaaa-bbbb-7000-8000-000000000001
State:         Attached
Created:       2026-03-01T12:00:00Z
Host:          node-1
Container:     c1
Interface:     eth0
Pod:           web/shop\u{fffd}[2J
Pod uid:       u1
Network:       blue
VF:            pf0vf3
PCI address:   d000:00:00.4
Representor:   pf0vf3
MAC:           02:00:00:00:00:01
VLAN:          100
MTU:           1500
Anti-spoofing: full
Sources:       10.1.0.7/32, fd07::/64
To the pod:    unlimited
From the pod:  unlimited
Addresses:
  10.1.0.5/16 via 10.1.0.1
Routes:        none
Sent:          1.25 MB in 1000 packets
Received:      98 B in 1 packets
Guard drops:   7
Allow drops:   1
Limit drops:   3 to the pod, 2 from the pod
In hardware:   1 of 4

Steps:
STEP   IN PLACE   DETAIL
vlan   no         missing

Events:
2026-03-01T12:00:00Z  AttachmentReserved  0190  for web/shop
"
        );
    }
}
