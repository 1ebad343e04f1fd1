//! Round trips of conversion, and refusals.

use ipnetwork::IpNetwork;
use mtls::ConnectionNumber;
use offload_proto::{Failure, FindingCode, Reason, v1};
use proptest::prelude::*;
use vf_alloc::Device;

use super::{read, show};
use crate::{
    attachments::NetworkView,
    host::{Examination, HostTime},
    sessions::Sessions,
};
use model::{AntiSpoofing, FurtherLease, HostName, HostRights, InterfaceRequest, Lease, Network};

const SESSION: &str = "6f0e2c1c-9b1c-4c52-9d29-3f3a7f4c8d10";
const ATTACHMENT: &str = "0190aaaa-bbbb-7000-8000-000000000001";

/// A change that makes a valid message invalid.
type Change<T> = fn(&mut T);

fn host() -> HostName {
    HostName("node-1".into())
}

fn key() -> v1::AttachmentKey {
    v1::AttachmentKey { container_id: "c1".into(), interface_name: "eth0".into() }
}

fn request() -> v1::AttachRequest {
    v1::AttachRequest { session_id: SESSION.into(), key: Some(key()), ..Default::default() }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Failure>, reason: Reason, words: &str) {
    let failure = result.unwrap_err();
    assert_eq!(failure.reason, reason, "{failure:?}");
    assert!(failure.message.contains(words), "{failure:?} does not tell {words:?}");
    assert!(failure.message.len() < 400, "{failure:?} is too long");
}

#[test]
fn a_small_request_is_enough() {
    let (spec, asked) = read::attach(&host(), request()).unwrap();
    assert_eq!(spec.key.to_string(), "node-1/c1/eth0");
    assert_eq!((asked.session.to_string().as_str(), asked.as_of), (SESSION, HostTime(0)));
    assert_eq!(spec.interface, InterfaceRequest::default());
}

#[test]
fn a_full_request_is_read() {
    let full = v1::AttachRequest {
        network: "blue".into(),
        pod: Some(v1::Pod { namespace: "shop".into(), name: "cart-0".into(), uid: "u".into() }),
        device: "D000:00:00.1".into(),
        mac: "02:00:00:00:00:0A".into(),
        addresses: vec!["10.1.0.5".into(), "fd00::5/64".into()],
        bandwidth: Some(v1::Bandwidth { ingress_rate: 1_000_000, ..Default::default() }),
        ..request()
    };
    let (spec, _) = read::attach(&host(), full).unwrap();
    assert_eq!(spec.interface.named_network(), Some("blue"));
    assert_eq!(spec.interface.device.as_ref().map(Device::as_str), Some("d000:00:00.1"));
    assert_eq!(spec.interface.mac.unwrap().to_string(), "02:00:00:00:00:0a");
    let addresses: Vec<_> = spec.interface.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.1.0.5", "fd00::5/64"]);
    assert_eq!(spec.interface.bandwidth.ingress_rate, 1_000_000);
}

#[test]
fn malformed_requests_are_refused_by_field_and_value() {
    let attach = |change: Change<v1::AttachRequest>| {
        let mut changed = request();
        change(&mut changed);
        read::attach(&host(), changed)
    };
    let cases: [(Change<v1::AttachRequest>, &str); 16] = [
        (|it| it.key = None, "names no attachment"),
        (|it| it.network = "Blue!".into(), "network \"Blue!\""),
        (|it| it.network = "x".repeat(64), "network \"xxx"),
        (|it| it.device = "03:00.2".into(), "device \"03:00.2\""),
        (|it| it.device = "0000.03.00:2".into(), "device"),
        (|it| it.device = "/sys/bus/pci".into(), "device"),
        (|it| it.mac = "02:00".into(), "mac: \"02:00\" is not a MAC address"),
        (|it| it.mac = "01:00:5e:00:00:01".into(), "is a multicast or zero address"),
        (|it| it.mac = "00:00:00:00:00:00".into(), "is a multicast or zero address"),
        (|it| it.addresses = vec!["10.1.0.256".into()], "address \"10.1.0.256\""),
        (|it| it.addresses = vec!["10.1.0.1".into(); 17], "17 addresses are requested"),
        (
            |it| it.pod = Some(v1::Pod { name: "a\u{1b}[2J".into(), ..Default::default() }),
            "pod name",
        ),
        (|it| it.pod = Some(v1::Pod { uid: "x".repeat(254), ..Default::default() }), "pod uid"),
        (
            |it| it.bandwidth = Some(v1::Bandwidth { egress_rate: 1, ..Default::default() }),
            "bandwidth.egressRate 1 must be at least 8000",
        ),
        (
            |it| it.bandwidth = Some(v1::Bandwidth { ingress_burst: 1, ..Default::default() }),
            "bandwidth.ingressBurst needs bandwidth.ingressRate",
        ),
        (
            |it| it.bandwidth = Some(v1::Bandwidth { egress_share: 8000, ..Default::default() }),
            "bandwidth.egressShare 8000 can't be requested",
        ),
    ];
    for (change, words) in cases {
        assert_refused(attach(change), Reason::InvalidRequest, words);
    }
    assert_refused(attach(|it| it.session_id.clear()), Reason::StaleSession, "no session \"\"");
}

fn hello() -> v1::Hello {
    v1::Hello {
        protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 1 }),
        boot_id: "boot-1".into(),
        inventory: Some(v1::Inventory { as_of_ns: 0, pfs: vec![pf(0, 2)] }),
        live: vec![v1::LiveAttachment {
            attachment_id: SESSION.into(),
            key: Some(key()),
            in_pod: true,
        }],
        pending: vec![key()],
        ..v1::Hello::default()
    }
}

fn pf(number: u32, vfs: u32) -> v1::PhysicalFunction {
    let vf = |vf| v1::VirtualFunction {
        vf,
        device: format!("0000:03:00.{}", vf % 8),
        condition: v1::VfCondition::Clean.into(),
        netdev: String::new(),
        use_by_host: String::new(),
    };
    v1::PhysicalFunction {
        pf: number,
        vendor_id: "15b3".into(),
        device_id: "101E".into(),
        vfs: (0..vfs).map(vf).collect(),
        ..v1::PhysicalFunction::default()
    }
}

#[test]
fn a_hello_is_read() {
    let (read, protocol) = read::hello(&host(), ConnectionNumber(7), hello()).unwrap();
    assert_eq!((protocol, read.connection), (1, ConnectionNumber(7)));
    let pf = &read.inventory.pfs[0];
    assert_eq!((pf.id.to_string().as_str(), pf.vendor_id, pf.device_id), ("p0", 0x15b3, 0x101e));
    assert_eq!((pf.vfs.len(), read.live.len(), read.pending.len()), (2, 1, 1));
}

#[test]
fn malformed_hellos_are_refused() {
    let cases: [(Change<v1::Hello>, Reason, &str); 9] = [
        (|it| it.protocol = None, Reason::Unsupported, "protocol versions 0 to 0"),
        (|it| it.boot_id.clear(), Reason::InvalidRequest, "boot_id is empty"),
        (|it| it.live[0].attachment_id = "x".into(), Reason::InvalidRequest, "attachment id \"x\""),
        (|it| it.pending[0].container_id.clear(), Reason::InvalidRequest, "container_id \"\""),
        (
            |it| it.pending[0].container_id = ".a".into(),
            Reason::InvalidRequest,
            "beginning with a letter or digit",
        ),
        (
            |it| it.inventory = Some(v1::Inventory { as_of_ns: 0, pfs: vec![pf(0, 1), pf(0, 1)] }),
            Reason::InvalidRequest,
            "the inventory has PF p0 twice",
        ),
        (
            |it| it.inventory = Some(v1::Inventory { as_of_ns: 0, pfs: vec![pf(70_000, 0)] }),
            Reason::InvalidRequest,
            "there is no PF 70000",
        ),
        (
            |it| it.inventory = Some(v1::Inventory { as_of_ns: 0, pfs: vec![pf(0, 4097)] }),
            Reason::InvalidRequest,
            "PF p0 has 4097 VFs",
        ),
        (
            |it| {
                let mut pf = pf(0, 1);
                pf.vfs[0].condition = 0;
                it.inventory = Some(v1::Inventory { as_of_ns: 0, pfs: vec![pf] });
            },
            Reason::InvalidRequest,
            "VF 0 has no condition",
        ),
    ];
    for (change, reason, words) in cases {
        let mut changed = hello();
        change(&mut changed);
        assert_refused(read::hello(&host(), ConnectionNumber(7), changed), reason, words);
    }
}

#[test]
fn a_network_reads_back_as_shown() {
    let network: Network = toml::from_str(
        r#"
        name = "blue"
        bridge = "br-storage"
        vlan = 100
        trunk = [200, 201]
        mtu = 9000
        anti_spoofing = "mac"
        allowed_sources = ["00:00:5e:00:01:07"]
        bandwidth = { ingress_rate = 1000000, ingress_burst = 80000, egress_share = 8000 }
        total_egress_rate = 90000
        first_hop = true
        interface_prefix = "data"
        link_group = 8
        link_alias = "tenant a"
        subnets = [{ cidr = "10.1.0.0/16", gateway = "10.1.0.1", exclude = ["10.1.9.0/24"],
                    ranges = [{ start = "10.1.1.0", end = "10.1.1.9" }] },
                   { cidr = "fd00::/64", gateway = "fe80::1" }]
        routes = [{ destination = "10.9.0.0/16", gateway = "10.1.0.1", mtu = 1400 },
                  { destination = "10.8.0.0/16", scope = "host" },
                  { destination = "fd09::/16", kind = "blackhole" },
                  { destination = "::/0", gateway = "fd07::1", onlink = true, table = 7 }]
        rules = [{ source = "10.1.0.0/16", table = 7 }, { source = "own-ipv6", table = 7 }]
        sysctls = { ipv4.rp_filter = 2, ipv6 = { accept_ra = 0, keep_addr_on_down = -1 } }
        dns = { nameservers = ["10.1.0.1"], search = ["svc"], options = ["ndots:2"] }
        gateway_mode = "dpu"
        reaches = ["green", "red"]
        nat = true
        namespaces = ["prod", "team-a"]
        "#,
    )
    .unwrap();
    assert_eq!(shown_and_read(&network), network);
}

fn shown_and_read(network: &Network) -> Network {
    let view = NetworkView::unused(network.clone());
    read::network(show::network_status(&view, None).network).unwrap()
}

#[test]
fn further_leases_include_routes_to_their_first_hop() {
    let network: Network = toml::from_str(
        "name = 'green'\nfirst_hop = true\nroutes = [{ destination = '10.5.0.0/16', gateway = '10.9.0.1' }]",
    )
    .unwrap();
    let [address, gateway] = ["10.9.0.7/32", "10.9.0.1/32"].map(|it| it.parse().unwrap());
    let gateway = Some(IpNetwork::ip(&gateway));
    let leases = vec![Lease { address, gateway }];
    let its = FurtherLease { interface_name: "net1".into(), network: network.into(), leases };
    let shown = show::further_lease(&its).routes;
    let output: Vec<_> = shown.iter().map(|it| (&*it.destination, &*it.gateway)).collect();
    let expected = [("10.9.0.1/32", ""), ("10.5.0.0/16", "10.9.0.1"), ("0.0.0.0/0", "10.9.0.1")];
    assert_eq!(output, expected);
}

#[test]
fn rules_read_back_as_shown() {
    let rules = r#"[{ from_networks = ["green"], from = ["10.7.0.0/16"], protocol = "tcp",
                      ports = ["80", "8000-8100"] }, { protocol = "icmp" }]"#;
    for rules in [rules, "[{ deny_all = true }]"] {
        let network = toml::from_str(&format!("name = \"blue\"\nallow = {rules}")).unwrap();
        assert_eq!(shown_and_read(&network), network);
    }
}

#[test]
fn a_network_gets_the_files_defaults_and_rules() {
    let small = v1::Network { name: "a".into(), ..v1::Network::default() };
    let expected: Network = toml::from_str("name = 'a'").unwrap();
    assert_eq!(read::network(Some(small.clone())).unwrap(), expected);
    let wide = v1::Network { vlan: 70_000, mtu: 1, ..small.clone() };
    assert_refused(read::network(Some(wide)), Reason::InvalidRequest, "vlan");
    let wide = v1::Network { trunk: vec![70_000], ..small.clone() };
    assert_refused(read::network(Some(wide)), Reason::InvalidRequest, "trunk");
    let odd = v1::Network { allowed_sources: vec!["all".into()], ..small.clone() };
    assert_refused(
        read::network(Some(odd)),
        Reason::InvalidRequest,
        "network \"a\": allowed_sources: \"all\"",
    );
    for (route, output) in [
        (v1::Route { kind: "multicast".into(), ..v1::Route::default() }, "kind \"multicast\" must"),
        (v1::Route { scope: "site".into(), ..v1::Route::default() }, "scope \"site\" must be"),
    ] {
        let route = v1::Route { destination: "10.9.0.0/16".into(), ..route };
        let wrong = v1::Network { routes: vec![route], ..small.clone() };
        assert_refused(read::network(Some(wrong)), Reason::InvalidRequest, output);
    }
    let rule = v1::PolicyRule { source: "mine".into(), table: 1, priority: 0 };
    let wrong = v1::Network { rules: vec![rule], ..small.clone() };
    let output = "rule source \"mine\"";
    assert_refused(read::network(Some(wrong)), Reason::InvalidRequest, output);
    let of_nobody = v1::Network { gateway_mode: "host".into(), ..small.clone() };
    assert_refused(read::network(Some(of_nobody)), Reason::InvalidRequest, "gateway_mode");
    let good = v1::AllowRule { protocol: "tcp".into(), ..v1::AllowRule::default() };
    let rule = good.clone();
    for (rule, words) in [
        (v1::AllowRule { protocol: "TCP".into(), ..rule.clone() }, "2: protocol \"TCP\" must"),
        (
            v1::AllowRule { ports: vec!["9-1".into()], ..rule.clone() },
            "allow rule 2: \"9-1\" names no",
        ),
        (
            v1::AllowRule { from: vec!["any".into()], ..rule.clone() },
            "allow rule 2: from \"any\" is not",
        ),
        (v1::AllowRule::default(), "network \"a\": allow rule 2: "),
    ] {
        let wrong = v1::Network { allow: vec![good.clone(), rule], ..small.clone() };
        assert_refused(read::network(Some(wrong)), Reason::InvalidRequest, words);
    }
}

#[test]
fn anti_spoofing_is_full_by_default() {
    let level = |text: &str| {
        let anti_spoofing = text.into();
        let network = v1::Network { name: "a".into(), anti_spoofing, ..v1::Network::default() };
        read::network(Some(network)).map(|network| network.anti_spoofing)
    };
    for (text, expected) in [
        ("", AntiSpoofing::Full),
        ("full", AntiSpoofing::Full),
        ("mac", AntiSpoofing::Mac),
        ("off", AntiSpoofing::Off),
    ] {
        assert_eq!(level(text).unwrap(), expected, "{text:?}");
    }
    assert_refused(level("half"), Reason::InvalidRequest, "\"half\" must be \"full\"");
}

#[test]
fn refusal_of_a_network_is_bounded() {
    let route = v1::Route { destination: "10.0.0.0/8".into(), mtu: 1, ..v1::Route::default() };
    let name = "x".repeat(4096);
    let wrong = v1::Network { name, routes: vec![route; 5000], ..v1::Network::default() };
    let failure = read::network(Some(wrong)).unwrap_err();
    assert!(failure.message.len() < 2500, "{} bytes", failure.message.len());
    assert!(failure.message.ends_with(" more"), "{failure:?}");
}

#[test]
fn an_id_may_be_begun() {
    assert_eq!(read::id_prefix("0199AB").unwrap(), "0199ab");
    for text in ["xyz1", &"0".repeat(37)] {
        assert_refused(read::id_prefix(text), Reason::AttachmentUnknown, text);
    }
}

proptest! {
    /// Any text of a peer gets an answer, and never a long one.
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,300}") {
        let attach = v1::AttachRequest {
            network: text.clone(),
            device: text.clone(),
            mac: text.clone(),
            addresses: vec![text.clone()],
            ..request()
        };
        let subnet = v1::Subnet { cidr: text.clone(), ..v1::Subnet::default() };
        let network = v1::Network { name: text.clone(), subnets: vec![subnet], ..Default::default() };
        let key = v1::AttachmentKey { container_id: text.clone(), interface_name: text.clone() };
        let refusals = [
            read::attach(&host(), attach).err(),
            read::network(Some(network)).err(),
            read::key(&host(), Some(key)).err(),
            read::attachment_id(&text).err(),
            read::id_prefix(&text).err(),
        ];
        for failure in refusals.into_iter().flatten() {
            prop_assert!(failure.message.len() < 1200, "{}", failure.message);
        }
    }
}

fn examined_vf() -> v1::ExaminedVf {
    v1::ExaminedVf {
        vf: Some(v1::Vf { controller: 0, pf: 0, vf: 3, device: "0000:03:00.4".into() }),
        place: v1::VfPlace::Pod.into(),
        netdev: "eth0".into(),
        netns: "/run/netns/a".into(),
        attachment_id: ATTACHMENT.into(),
        use_by_host: String::new(),
        mac: "02:00:00:00:00:07".into(),
        addresses: vec!["10.1.0.5/24".into(), "fd00:1::5/64".into()],
    }
}

fn examination(vf: v1::ExaminedVf) -> Result<Examination, String> {
    read::examination(&v1::Examination { vfs: vec![vf], ..v1::Examination::default() })
}

#[test]
fn examinations_round_trip_unchanged() {
    let unanswered = v1::ExaminedVf { mac: String::new(), addresses: vec![], ..examined_vf() };
    let free = v1::ExaminedVf { attachment_id: String::new(), ..unanswered.clone() };
    for told in [examined_vf(), unanswered, free] {
        let read = examination(told.clone()).unwrap();
        assert_eq!(show::examined_vf(&read.vfs[0]), told);
    }
}

#[test]
fn unreadable_examinations_are_refused_by_field() {
    let spoilt: [(Change<v1::ExaminedVf>, &str); 5] = [
        (|vf| vf.vf = None, "no VF"),
        (|vf| vf.attachment_id = "a".into(), "attachment id"),
        (|vf| vf.mac = "eth0".into(), "mac"),
        (|vf| vf.addresses[0] = "10.1.0.500/24".into(), "address"),
        (|vf| vf.vf.as_mut().unwrap().vf = 65_536, "no VF 65536"),
    ];
    for (spoil, words) in spoilt {
        let mut vf = examined_vf();
        spoil(&mut vf);
        let problem = examination(vf).unwrap_err();
        assert!(problem.contains(words), "{problem} does not tell {words}");
    }
}

#[test]
fn texts_of_hosts_are_cut_and_cleaned() {
    let hostile = "\u{1b}[2J".repeat(5000);
    let mut finding = FindingCode::VfDiffers.of(&hostile, hostile.clone());
    (finding.host, finding.why) = ("node-2".into(), hostile.clone());
    let repair =
        v1::Repair { message: hostile.clone(), host: "node-2".into(), ..Default::default() };
    let output = v1::Examination {
        vfs: vec![v1::ExaminedVf { netdev: hostile.clone(), ..examined_vf() }],
        findings: vec![finding],
        repairs: vec![repair],
        ..Default::default()
    };
    let read = read::examination(&output).unwrap();
    let (found, repair) = (&read.findings[0], &read.repairs[0]);
    assert_eq!((found.host.as_str(), repair.host.as_str()), ("", ""));
    let problem = v1::Examination { problem: hostile.clone(), ..Default::default() };
    let problem = read::examination(&problem).unwrap_err();
    let texts = [
        &found.subject,
        &found.message,
        &found.why,
        &repair.message,
        &read.vfs[0].netdev,
        &problem,
    ];
    for text in texts {
        assert!(text.len() < 2200 && !text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn host_is_shown_with_its_rights() {
    let view = Sessions::default().view(&host());
    let free = show::host(&view, HostRights::default(), true);
    assert!(free.networks.is_empty() && !free.own_macs_only && free.maintenance);
    let bound = HostRights { networks: ["blue".into()].into(), any_mac: false };
    let bound = show::host(&view, bound, false);
    assert_eq!((bound.networks, bound.own_macs_only), (vec!["blue".to_owned()], true));
}

#[test]
fn pod_findings_are_bounded_and_clean() {
    let id = "0190aaaa-bbbb-7000-8000-000000000001";
    let found = |subject: &str| FindingCode::PodDiffers.of(subject, "lost\u{1b}[2J");
    let mut findings = vec![found("no id")];
    findings.extend((0..100).map(|_| found(id)));
    findings.push(FindingCode::KubeletVfUnused.of(id, "it is unused"));
    let output = v1::PodFindings {
        findings,
        left_out: 5,
        kubelet_vf_unused_left_out: 2,
        ..Default::default()
    };
    let read = read::pod_findings(&output);
    assert_eq!((read.findings.len(), read.left_out), (63, 43), "{read:?}");
    assert_eq!(read.kubelet_vf_unused_left_out, 3);
    let is_clean = |it: &v1::Finding| it.subject == id && !it.message.contains('\u{1b}');
    assert!(read.findings.iter().all(is_clean), "{read:?}");
}

#[test]
fn failed_add_of_a_host_is_clean() {
    let output = |reason: &str| {
        read::failed_add(&v1::FailedAdd { reason: reason.into(), message: "lost\u{1b}[2J".into() })
    };
    let failure = output("MOVE_FAILED").unwrap();
    assert_eq!((failure.reason, &*failure.message), (Reason::MoveFailed, "lost\u{fffd}[2J"));
    assert_eq!(output("LATER"), None);
}

#[test]
fn unknown_states_of_findings_are_readable_as_json() {
    let later = v1::Finding { state: 77, ..FindingCode::PodDiffers.of(ATTACHMENT, "lost") };
    let findings = vec![later];
    let pods = v1::PodFindings { findings: findings.clone(), ..v1::PodFindings::default() };
    let look = v1::Examination { findings, ..v1::Examination::default() };
    let (pods, look) = (read::pod_findings(&pods), read::examination(&look).unwrap());
    for found in [&pods.findings[0], &look.findings[0]] {
        assert_eq!(serde_json::to_value(found).unwrap()["state"], "FINDING_STATE_FOUND");
    }
}
