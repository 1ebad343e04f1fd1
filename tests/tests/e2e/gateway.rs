//! The DPU as the gateway of networks: what pods reach and what not, also after damage.

use std::{
    fs,
    io::Write,
    net::{IpAddr, TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};

pub(crate) use e2e::{DPU_OUTSIDE, OUTSIDE};
use e2e::{
    Lab, Netns, Settings, outside_of, run,
    scenarios::{
        first_hop::{lengths, routes},
        pods::addresses,
    },
    wait_for,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::configuration::bridge_filters_vlans;

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn settings() -> Settings {
    Settings::with_gateways()
}

/// A lab whose DPU has the link `out`, with a host behind it that has routes to the subnets of `blue`.
pub(crate) fn lab() -> (Lab, Netns) {
    lab_of(&settings())
}

/// Such a lab with further settings.
pub(crate) fn lab_of(settings: &Settings) -> (Lab, Netns) {
    let lab = Lab::start(settings);
    let outside = outside_of(&lab);
    (lab, outside)
}

fn problems(lab: &Lab) -> Vec<Value> {
    lab.operator().faults().into_iter().map(|mut condition| condition["message"].take()).collect()
}

/// A new pod of a network with its addresses of both families.
pub(crate) fn pod(lab: &Lab, network: &str) -> (Netns, [String; 2]) {
    let pod = Netns::new("pod");
    let given = addresses(&lab.add(network, &pod, "eth0").result());
    (pod, given.try_into().unwrap())
}

pub(crate) fn nft(netns: &Netns, arguments: &[&str]) -> String {
    let output = run(netns.command("nft").args(arguments));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names of nftables tables of the family `inet`: the gateway's and others.
fn tables(netns: &Netns) -> Vec<String> {
    let listed: Value = serde_json::from_str(&nft(netns, &["-j", "list", "tables"])).unwrap();
    let all = listed["nftables"].as_array().unwrap().iter();
    let of_inet = all.filter(|object| object["table"]["family"] == "inet");
    of_inet.filter_map(|object| Some(object["table"]["name"].as_str()?.to_owned())).collect()
}

/// Gateway links on the DPU.
fn gateway_links(lab: &Lab) -> Vec<String> {
    let links = lab.card.dpu.json("ip", &["link", "show"]);
    let names = links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("gw-") || name.starts_with("gp-")).collect()
}

/// Repairs of gateways in the events, each with its count.
fn repairs(lab: &Lab) -> Vec<(String, u64)> {
    let listed = lab.operator().json(&["events", "--type", "Repaired", "--object", "gateways"]);
    let repair = |event: &Value| {
        (event["message"].as_str().unwrap().to_owned(), event["count"].as_u64().unwrap())
    };
    listed["events"].as_array().unwrap().iter().map(repair).collect()
}

/// Causes damage, and waits until the service reports a repair with all these words.
#[track_caller]
fn assert_repaired(lab: &mut Lab, words: &[&str], damage: impl FnOnce(&mut Lab)) {
    let is_meant = |message: &str| words.iter().all(|word| message.contains(word));
    let count = |lab: &Lab| -> u64 {
        let meant = repairs(lab).into_iter().filter(|(message, _)| is_meant(message));
        meant.map(|(_, count)| count).sum()
    };
    let before = count(lab);
    damage(lab);
    let what = format!("a repair of {words:?}");
    wait_for(&what, LIMIT, || (count(lab) > before).then_some(()));
}

/// Waits until the addresses of new links are no longer tentative.
#[track_caller]
fn assert_reaches(pod: &Netns, addresses: &[&str]) {
    for address in addresses {
        let way = format!("a way from {} to {address}", pod.name());
        wait_for(&way, LIMIT, || pod.pings(address).then_some(()));
    }
}

#[track_caller]
fn assert_out_of_reach(pod: &Netns, addresses: &[&str]) {
    for address in addresses {
        let ping = ["-n", "-q", "-c", "1", "-W", "1", address];
        let output = run(pod.command("ping").args(ping));
        assert!(!output.status.success(), "{} reaches {address}", pod.name());
    }
}

/// The source address of a pod's connection, as the outside sees it.
fn seen_outside(outside: &Netns, pod: &Netns, address: &str) -> String {
    let listener = outside.run(|| TcpListener::bind((address, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let _connection = pod.run(|| TcpStream::connect_timeout(&target, LIMIT).unwrap());
    listener.accept().unwrap().1.ip().to_string()
}

#[test]
fn pods_reach_gateway_outside_and_named_networks() {
    let (lab, outside) = lab();
    let (blue, of_blue) = pod(&lab, "blue");
    let (green, of_green) = pod(&lab, "green");
    let (nated, _) = pod(&lab, "nated");
    assert_reaches(&blue, &["10.1.0.1", "fd00:10:1::1"]);
    assert_reaches(&green, &["10.2.0.1", "fd00:10:2::1"]);
    assert_reaches(&nated, &["10.3.0.1", "fe80::1%eth0"]);

    assert_reaches(&blue, &OUTSIDE);
    assert_reaches(&nated, &OUTSIDE);
    for (family, address) in OUTSIDE.iter().enumerate() {
        assert_eq!(seen_outside(&outside, &blue, address), of_blue[family]);
        assert_eq!(seen_outside(&outside, &nated, address), DPU_OUTSIDE[family]);
    }
    assert_reaches(&outside, &[&of_blue[0], &of_blue[1]]);

    assert_reaches(&blue, &[&of_green[0], &of_green[1]]);
    assert_out_of_reach(&green, &[&of_blue[0], &of_blue[1]]);
    assert_out_of_reach(&nated, &[&of_blue[0], &of_green[1]]);
    lab.assert_invariants();

    let shown = lab.operator().output(&["describe", "network", "blue"]);
    for line in ["dpu", "gw-blue", "10.1.0.1/16, fd00:10:1::1/64", "Reaches:       green"] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
}

/// The DPU's API listens on all addresses, and its management link leads to the host.
#[test]
fn pods_do_not_reach_dpu_programs() {
    let (lab, outside) = lab();
    let (pod, _) = pod(&lab, "nated");
    let connects = |netns: &Netns, address: &str| {
        let call = format!("exec 3<>/dev/tcp/{address}/7443");
        run(netns.command("timeout").args(["1", "bash", "-c", &call])).status.success()
    };
    assert!(connects(&outside, DPU_OUTSIDE[0]), "the API does not answer at all");
    for address in ["10.3.0.1", "10.1.0.1", DPU_OUTSIDE[0], DPU_OUTSIDE[1], "192.168.100.2"] {
        assert!(!connects(&pod, address), "{address}");
    }
    assert_out_of_reach(&pod, &["192.168.100.1"]);
}

#[test]
fn foreign_gateway_changes_are_repaired() {
    let (lab, _outside) = lab();
    let (pod, _) = pod(&lab, "nated");
    let dpu = &lab.card.dpu;
    let is_whole = || {
        let shown = run(dpu.command("nft").args(["list", "table", "inet", "dpu-offload"]));
        let shown = String::from_utf8(shown.stdout).unwrap();
        ["masquerade", "\"gw-blue\" . \"gw-green\"", "iifname @gateways drop"]
            .iter()
            .all(|part| shown.contains(part))
            .then_some(())
    };
    let put_right = |what: &str| {
        wait_for(what, LIMIT, || {
            is_whole().filter(|()| OUTSIDE.iter().all(|address| pod.pings(address)))
        });
    };
    nft(dpu, &["flush", "ruleset"]);
    put_right("the table after a flush");
    nft(dpu, &["add", "table", "inet", "kept"]);
    let kept = nft(dpu, &["list", "table", "inet", "kept"]);
    nft(dpu, &["flush", "chain", "inet", "dpu-offload", "leaving"]);
    put_right("a chain that was emptied");
    dpu.ip(&["link", "delete", "gw-nated"]);
    put_right("a link that was deleted");
    dpu.ip(&["link", "set", "gw-nated", "down"]);
    put_right("a link that was switched off");
    dpu.ip(&["link", "set", "gp-nated", "nomaster"]);
    put_right("a port that was taken out of the bridge");
    let elsewhere = Netns::new("elsewhere");
    dpu.ip(&["link", "set", "gw-nated", "netns", elsewhere.name()]);
    put_right("a link that was taken into another namespace");
    let taken = elsewhere.json("ip", &["link", "show"]);
    assert!(taken.iter().all(|link| link["ifname"] != "gw-nated"), "{taken:?}");
    assert_eq!(nft(dpu, &["list", "table", "inet", "kept"]), kept);
    assert_eq!(tables(dpu), ["kept", "dpu-offload"]);
}

/// The kernel adds the route with the address only. Its removal causes no link event.
#[test]
fn deleted_route_to_pods_is_restored() {
    let (mut lab, _outside) = lab();
    let (blue, _) = pod(&lab, "blue");
    let (nated, _) = pod(&lab, "nated");
    let dpu = &lab.card.dpu;
    dpu.ip(&["route", "delete", "10.1.0.0/16", "dev", "gw-blue"]);
    dpu.ip(&["-6", "route", "delete", "fd00:10:1::/64", "dev", "gw-blue"]);
    dpu.ip(&["route", "delete", "10.3.0.0/24", "dev", "gw-nated"]);
    // A host that connects makes the DPU compare everything, as it does each minute.
    lab.agent.stop();
    lab.start_agent();
    assert_reaches(&blue, &OUTSIDE);
    assert_reaches(&nated, &OUTSIDE);
    lab.assert_invariants();
}

#[test]
fn service_reports_gateway_repairs() {
    let (mut lab, _outside) = lab();
    let (pod, _) = pod(&lab, "nated");
    assert_reaches(&pod, &OUTSIDE);
    assert!(repairs(&lab).is_empty());
    let dpu = Arc::clone(&lab.card.dpu);
    assert_repaired(&mut lab, &["nftables"], |_lab| {
        let _ = nft(&dpu, &["flush", "ruleset"]);
    });
    assert_repaired(&mut lab, &["nated", "link"], |_lab| {
        dpu.ip(&["link", "delete", "gw-nated"]);
    });
    assert_reaches(&pod, &OUTSIDE);
    // The kernel reports only links: the DPU compares the rest when a host connects, as it does each minute.
    let ours = ["-6", "route", "show", "dev", "gw-nated", "proto", "213"];
    let has = dpu.ip(&ours);
    assert!(!has.is_empty(), "the gateway of nated is link-local");
    for (what, damage) in [
        ("addresses", "-4 addr flush dev gw-nated"),
        ("addresses", "route delete 10.3.0.0/24 dev gw-nated"),
        ("routes", "-6 route flush dev gw-nated proto 213"),
    ] {
        assert_repaired(&mut lab, &["nated", what], |lab| {
            dpu.ip(&damage.split(' ').collect::<Vec<_>>());
            lab.agent.stop();
            lab.start_agent();
        });
    }
    assert_eq!(dpu.ip(&ours), has);
    assert_reaches(&pod, &OUTSIDE);
    lab.wait_until_good();
    lab.assert_invariants();
}

#[test]
fn gateways_survive_service_death_and_card_reset() {
    let (mut lab, _outside) = lab();
    let (pod, _) = pod(&lab, "nated");
    lab.service.crash();
    assert_reaches(&pod, &OUTSIDE);
    nft(&lab.card.dpu, &["delete", "table", "inet", "dpu-offload"]);
    lab.card.dpu.ip(&["addr", "flush", "dev", "gw-nated"]);
    lab.start_service();
    lab.wait_until_good();
    assert_reaches(&pod, &OUTSIDE);
    lab.reset_card();
    assert_reaches(&pod, &OUTSIDE);
    lab.assert_invariants();
}

#[test]
fn foreign_link_with_gateway_name_survives_start() {
    let mut lab = Lab::start(&Settings::default());
    lab.card.dpu.ip(&["link", "add", "gw-lan", "type", "veth", "peer", "name", "lan0"]);
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(gateway_links(&lab), ["gw-lan"]);
    let subnet = "subnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n";
    let _ = apply(&lab, &format!("name: lan\ngateway_mode: dpu\n{subnet}"));
    let reported = problems(&lab);
    assert!(
        reported.iter().any(|reported| reported.as_str().unwrap().contains("gw-lan")),
        "{reported:?}"
    );
    let _ = lab.operator().output(&["delete", "network", "lan"]);
    assert_eq!(gateway_links(&lab), ["gw-lan"]);
}

fn apply(lab: &Lab, text: &str) -> String {
    let file = lab.path().join("network.yaml");
    fs::write(&file, text).unwrap();
    lab.operator().output(&["apply", "-f", file.to_str().unwrap()])
}

#[test]
fn gateways_follow_network_changes() {
    let networks = "[gateway]\nuplinks = [\"lo\"]\n[[network]]\nname = \"blue\"\n";
    let lab = Lab::start(&Settings { networks: networks.into(), ..Settings::default() });
    let dpu = &lab.card.dpu;
    assert_eq!((gateway_links(&lab), tables(dpu)), (Vec::new(), Vec::new()));
    let red = |rest: &str| {
        format!("name: red\n{rest}subnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n")
    };
    let _ = apply(&lab, &red("gateway_mode: dpu\nnat: true\n"));
    let pod = Netns::new("pod");
    let _ = lab.add("red", &pod, "eth0").result();
    assert_reaches(&pod, &["10.8.0.1"]);
    assert_eq!(tables(dpu), ["dpu-offload"]);
    let forwards = || {
        let shown = run(dpu.command("cat").arg("/proc/sys/net/ipv4/conf/lo/forwarding"));
        String::from_utf8(shown.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(forwards(), "1");

    let shown = lab.operator().get("networks");
    let shown = shown.iter().find(|network| network["network"]["name"] == "red").unwrap();
    assert_eq!(shown["gateway"]["link"], "gw-red");
    assert!(apply(&lab, &shown["network"].to_string()).contains("unchanged"));

    let _ = apply(&lab, &red(""));
    assert_eq!((gateway_links(&lab), tables(dpu)), (Vec::new(), Vec::new()));
    assert_eq!(forwards(), "0");
    assert_out_of_reach(&pod, &["10.8.0.1"]);
    let _ = apply(&lab, &red("gateway_mode: dpu\n"));
    assert_reaches(&pod, &["10.8.0.1"]);
    lab.del("red", &pod, "eth0").nothing();
    lab.await_settled();
    let _ = lab.operator().output(&["delete", "network", "red"]);
    assert_eq!((gateway_links(&lab), tables(dpu)), (Vec::new(), Vec::new()));
    lab.assert_clean_slate();
}

#[test]
fn unsupported_gateway_settings_are_refused() {
    let lab = Lab::start(&Settings::default());
    let refused = |text: &str| {
        let file = lab.path().join("network.yaml");
        fs::write(&file, text).unwrap();
        lab.operator().is_refused(&["apply", "-f", file.to_str().unwrap()])
    };
    let subnets = "subnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n";
    let red = |rest: &str| format!("name: red\n{rest}\n{subnets}");
    for (rest, expected) in [
        ("gateway_mode: dpu\nnat: true", "nat = true"),
        ("gateway_mode: dpu\nreaches: [nowhere]", "reaches holds \"nowhere\""),
        ("gateway_mode: dpu\nreaches: [blue]", "\"blue\", whose gateway_mode is not \"dpu\""),
        ("gateway_mode: host", "gateway_mode \"host\" must be \"router\" or \"dpu\""),
        ("nat: true", "nat is "),
    ] {
        let reported = refused(&red(rest));
        assert!(reported.contains(expected), "{reported}");
    }
    let _ = apply(&lab, &red("gateway_mode: dpu"));
    let rose = "name: rose\ngateway_mode: dpu\nreaches: [red]\n\
                subnets:\n- cidr: 10.9.0.0/24\n  gateway: 10.9.0.1\n";
    let _ = apply(&lab, rose);
    let reported = lab.operator().is_refused(&["delete", "network", "red"]);
    assert!(reported.contains("NETWORK_NAMED") && reported.contains("rose"), "{reported}");
    assert!(refused(&red("")).contains("\"red\", whose gateway_mode"));
}

#[test]
fn gateway_address_conflict_is_reported() {
    let lab = Lab::start(&Settings::default());
    let other = Netns::new("other");
    let _ = lab.add("wire", &other, "eth0").result();
    for address in ["10.8.0.1/24", "fd00:10:8::1/64"] {
        other.ip(&["addr", "add", address, "dev", "eth0", "nodad"]);
    }
    let subnets = "- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n\
                   - cidr: fd00:10:8::/64\n  gateway: fd00:10:8::1\n";
    let _ = apply(&lab, &format!("name: red\ngateway_mode: dpu\nsubnets:\n{subnets}"));
    for address in ["10.8.0.1", "fd00:10:8::1"] {
        wait_for("the telling of the other", LIMIT, || {
            let expected = format!("address {address}");
            let is_it = |problem: &Value| {
                let reported = problem.as_str().unwrap();
                reported.contains("network red: ") && reported.contains(&expected)
            };
            problems(&lab).iter().any(is_it).then_some(())
        });
    }
    let shown = lab.operator().output(&["describe", "network", "red"]);
    assert!(shown.contains("gateway's address 10.8.0.1"), "{shown}");

    for address in ["10.8.0.1/24", "fd00:10:8::1/64"] {
        other.ip(&["addr", "delete", address, "dev", "eth0"]);
    }
    wait_for("the end of the telling", LIMIT, || problems(&lab).is_empty().then_some(()));
    let shown = lab.operator().output(&["describe", "network", "red"]);
    assert!(!shown.contains("gateway's address 10.8.0.1"), "{shown}");
}

/// Asserts that a pod cannot connect to the DPU's programs, by the gateway's or another address of the DPU.
#[track_caller]
fn assert_programs_out_of_reach(pod: &Netns, gateway: &str) {
    for address in [gateway, "192.168.100.2"] {
        let target = (address.parse::<IpAddr>().unwrap(), 7443).into();
        let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(1));
        assert!(pod.run(connect).is_err(), "{} connects to {target}", pod.name());
    }
}

#[test]
fn damaged_gateway_does_not_expose_the_dpu() {
    let (lab, _outside) = lab();
    let (nated, _) = pod(&lab, "nated");
    let dpu = &lab.card.dpu;
    let alias_of = |link: &str| {
        let shown = dpu.json("ip", &["link", "show", link]).remove(0);
        shown["ifalias"].as_str().unwrap_or_default().to_owned()
    };
    let ours = alias_of("gw-nated");
    // The kernel accepts connections for a suspended service, which repairs nothing.
    lab.service.signal(Signal::SIGSTOP);
    dpu.ip(&["link", "set", "gw-nated", "alias", "mine"]);
    assert_programs_out_of_reach(&nated, "10.3.0.1");
    lab.service.signal(Signal::SIGCONT);
    wait_for("the alias", LIMIT, || (alias_of("gw-nated") == ours).then_some(()));
}

#[test]
fn removed_changed_gateway_does_not_expose_the_dpu() {
    let (lab, _outside) = lab();
    let red = |mode: &str| {
        let subnets = "subnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n";
        apply(&lab, &format!("name: red\ngateway_mode: {mode}\n{subnets}"))
    };
    let _ = red("dpu");
    let pod = Netns::new("pod");
    let _ = lab.add("red", &pod, "eth0").result();
    assert_reaches(&pod, &["10.8.0.1"]);
    lab.card.dpu.ip(&["link", "set", "gw-red", "alias", "mine"]);
    let _ = red("router");
    let is_gone = || gateway_links(&lab).iter().all(|link| !link.ends_with("-red"));
    wait_for("the end of the link", LIMIT, || is_gone().then_some(()));
    assert_programs_out_of_reach(&pod, "10.8.0.1");
}

#[test]
fn taken_gateway_link_does_not_expose_the_dpu() {
    let (lab, _outside) = lab();
    let (nated, _) = pod(&lab, "nated");
    let dpu = &lab.card.dpu;
    // Take both ends at once, and suspend the service, which would replace the damaged half.
    lab.service.signal(Signal::SIGSTOP);
    for end in ["gw-nated", "gp-nated"] {
        dpu.ip(&["link", "set", end, "alias", "mine"]);
    }
    lab.service.signal(Signal::SIGCONT);
    wait_for("the problem", LIMIT, || (!problems(&lab).is_empty()).then_some(()));
    assert_programs_out_of_reach(&nated, "10.3.0.1");
}

/// A process that owns the table with the gateway's name while it runs.
fn owner_of_our_table(netns: &Netns) -> Child {
    let mut owner = netns.command("nft").arg("-i").stdin(Stdio::piped()).spawn().unwrap();
    let command = b"table inet dpu-offload { flags owner; }\n";
    owner.stdin.as_mut().unwrap().write_all(command).unwrap();
    wait_for("the owner's table", LIMIT, || (tables(netns) == ["dpu-offload"]).then_some(()));
    owner
}

#[test]
fn gateway_waits_for_its_rules() {
    let (mut lab, _outside) = lab();
    let (pod, _) = pod(&lab, "nated");
    lab.service.stop();
    nft(&lab.card.dpu, &["delete", "table", "inet", "dpu-offload"]);
    let mut owner = owner_of_our_table(&lab.card.dpu);
    lab.start_service();
    lab.wait_until_good();
    wait_for("no gateway", LIMIT, || gateway_links(&lab).is_empty().then_some(()));
    assert_out_of_reach(&pod, &OUTSIDE);
    assert_programs_out_of_reach(&pod, "10.3.0.1");
    let reported = problems(&lab);
    let sentence = "rules of the gateways";
    assert!(
        reported.iter().any(|reported| reported.as_str().unwrap().contains(sentence)),
        "{reported:?}"
    );
    lab.assert_invariants();

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_for("the gateways", LIMIT, || problems(&lab).is_empty().then_some(()));
    assert_reaches(&pod, &OUTSIDE);
    assert_programs_out_of_reach(&pod, "10.3.0.1");
}

#[test]
fn uplink_traffic_reaches_only_gateways() {
    let (lab, outside) = lab();
    let (blue, [of_blue, _]) = pod(&lab, "blue");
    assert_reaches(&blue, &[OUTSIDE[0]]);
    assert_reaches(&outside, &[&of_blue]);
    outside.ip(&["route", "add", "192.168.100.0/24", "via", DPU_OUTSIDE[0]]);
    let host = &lab.card.host;
    host.ip(&["route", "add", "192.0.2.0/24", "via", "192.168.100.2"]);
    let received = || {
        let links = host.json("ip", &["-s", "link", "show", "mgmt0"]);
        links[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
    };
    let assert_closed = || {
        let before = received();
        // 50 packets of 1400 bytes: more than all other traffic.
        let flood = ["-n", "-q", "-f", "-c", "50", "-s", "1400", "-W", "1", "192.168.100.1"];
        let output = run(outside.command("ping").args(flood));
        assert!(!output.status.success(), "{output:?}");
        assert!(received() - before < 50 * 1400, "packets from outside have passed");
    };
    assert_closed();

    // As on older kernels, where gateways need it to forward IPv6. It does not enable IPv4 forwarding.
    let forward = "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
    let forwards = run(lab.card.dpu.command("sh").args(["-c", forward]));
    assert!(forwards.status.success(), "{forwards:?}");
    nft(&lab.card.dpu, &["delete", "table", "inet", "dpu-offload"]);
    let is_back = || tables(&lab.card.dpu).contains(&"dpu-offload".into()).then_some(());
    wait_for("the table", LIMIT, is_back);
    assert_closed();
}

#[test]
fn foreign_source_leaves_by_no_gateway() {
    let (lab, _outside) = lab();
    let (nated, _) = pod(&lab, "nated");
    let (green, [_, of_green]) = pod(&lab, "green");
    // Through the link of another network's gateway, which is in the same VLAN.
    let links = lab.card.dpu.json("ip", &["link", "show", "gw-blue"]);
    let mac = links[0]["address"].as_str().unwrap();
    nated.ip(&[
        "-6",
        "neigh",
        "replace",
        "fe80::b1",
        "lladdr",
        mac,
        "dev",
        "eth0",
        "nud",
        "permanent",
    ]);
    nated.ip(&["-6", "route", "replace", "fd00:10:2::/64", "via", "fe80::b1", "dev", "eth0"]);
    assert_out_of_reach(&nated, &[&of_green]);
    assert_reaches(&green, &["fd00:10:2::1"]);
}

#[test]
fn subnet_of_another_dpu_link_gets_no_gateway() {
    let (lab, _outside) = lab();
    let rose = "name: rose\ngateway_mode: dpu\nsubnets:\n- cidr: 192.168.100.0/30\n  gateway: 192.168.100.1\n";
    apply(&lab, rose);
    wait_for("the problem", LIMIT, || {
        let reported =
            problems(&lab).iter().any(|problem| problem.to_string().contains("192.168.100.2/30"));
        reported.then_some(())
    });
    let links = lab.card.dpu.json("ip", &["addr", "show", "gw-rose"]);
    assert!(!links[0].to_string().contains("192.168.100.1"), "{links:?}");
    let (blue, _) = pod(&lab, "blue");
    assert_reaches(&blue, &["10.1.0.1"]);
}

#[test]
fn link_local_gateway_routes_follow_their_subnet() {
    let lab = Lab::start(&settings());
    let dpu = &lab.card.dpu;
    dpu.ip(&["link", "add", "theirs", "type", "veth", "peer", "name", "theirs1"]);
    dpu.ip(&["link", "set", "theirs", "up"]);
    let routes_to = |subnet: &str| -> Vec<String> {
        let routes = dpu.json("ip", &["-6", "route", "show", subnet]);
        routes.iter().map(|route| route["dev"].as_str().unwrap().to_owned()).collect()
    };
    let red = |subnets: &[&str]| {
        let line = |subnet: &&str| format!("- cidr: {subnet}\n  gateway: fe80::1\n");
        let lines: String = subnets.iter().map(line).collect();
        apply(&lab, &format!("name: red\ngateway_mode: dpu\nsubnets:\n{lines}"))
    };
    let _ = red(&["fd00:20:1::/64", "fd00:20:2::/64"]);
    assert_eq!(routes_to("fd00:20:2::/64"), ["gw-red"]);
    dpu.ip(&["-6", "route", "add", "fd00:20:9::/64", "dev", "gw-red"]);
    let _ = red(&["fd00:20:1::/64"]);
    assert_eq!(routes_to("fd00:20:1::/64"), ["gw-red"]);
    assert_eq!(routes_to("fd00:20:2::/64"), [""; 0]);
    assert_eq!(routes_to("fd00:20:9::/64"), ["gw-red"], "it is somebody else's");

    dpu.ip(&["-6", "route", "add", "fd00:20:3::/64", "dev", "theirs"]);
    let _ = red(&["fd00:20:3::/64"]);
    let shown = lab.operator().output(&["describe", "network", "red"]);
    let expected = "route to fd00:20:3::/64 by theirs";
    assert!(shown.contains(expected), "{shown}");
    assert_eq!(routes_to("fd00:20:3::/64"), ["theirs"]);
    dpu.ip(&["-6", "route", "delete", "fd00:20:3::/64", "dev", "theirs"]);
    let _ = red(&["fd00:20:3::/64"]);
    let _ = lab.operator().output(&["delete", "network", "red"]);
    assert_eq!(routes_to("fd00:20:3::/64"), [""; 0]);
}

/// On a kernel without VLAN filtering, this is reported and there is no gateway.
#[test]
fn vlan_networks_meet_only_at_gateways() {
    let networks = r#"
[gateway]
uplinks = ["out"]

[[network]]
name = "seven"
vlan = 7
gateway_mode = "dpu"
reaches = ["eight"]
subnets = [{ cidr = "10.7.0.0/24", gateway = "10.7.0.1" }, { cidr = "fd00:7::/64", gateway = "fe80::1" }]

[[network]]
name = "eight"
vlan = 8
gateway_mode = "dpu"
subnets = [{ cidr = "10.8.0.0/24", gateway = "10.8.0.1" }, { cidr = "fd00:8::/64", gateway = "fe80::1" }]
"#;
    let settings = Settings { networks: networks.into(), ..Settings::default() };
    if !bridge_filters_vlans() {
        let lab = Lab::start(&settings);
        let reported = problems(&lab);
        for vlan in ["has VLAN 7", "has VLAN 8"] {
            let is_it = |reported: &Value| reported.as_str().unwrap().contains(vlan);
            assert!(reported.iter().any(is_it), "{reported:?}");
        }
        assert_eq!(gateway_links(&lab), [""; 0]);
        return;
    }
    let (lab, _outside) = lab_of(&settings);
    let (seven, of_seven) = pod(&lab, "seven");
    let (eight, of_eight) = pod(&lab, "eight");
    assert_reaches(&seven, &["10.7.0.1", "fe80::1%eth0"]);
    assert_reaches(&eight, &["10.8.0.1", "fe80::1%eth0"]);
    assert_reaches(&seven, &[&of_eight[0], &of_eight[1]]);
    assert_out_of_reach(&eight, &[&of_seven[0], &of_seven[1]]);
    // Nor by Ethernet, which the gateway does not see.
    eight.ip(&["route", "add", "10.7.0.0/24", "dev", "eth0"]);
    assert_out_of_reach(&eight, &[&of_seven[0], "10.7.0.1"]);
    lab.assert_invariants();
}

#[test]
fn pods_reach_others_by_first_hop() {
    let settings = settings();
    let networks = settings.networks.replace("gateway_mode =", "first_hop = true\ngateway_mode =");
    let (lab, _outside) = lab_of(&Settings { networks, ..settings });
    let [(first, _), (second, of_second), (nated, _)] =
        ["blue", "green", "nated"].map(|network| pod(&lab, network));
    for pod in [&first, &second, &nated] {
        assert_eq!(lengths(pod), [32, 128]);
    }
    let by = |destination: &str, gateway: &str| (destination.into(), gateway.into());
    let on_link = |gateway: &str| (gateway.into(), Value::Null);
    assert_eq!(routes(&first, "-4"), [by("default", "10.1.0.1"), on_link("10.1.0.1")]);
    assert_eq!(routes(&first, "-6"), [on_link("fd00:10:1::1"), by("default", "fd00:10:1::1")],);
    assert_eq!(routes(&nated, "-6"), [by("default", "fe80::1")]);
    for gateway in ["10.1.0.1", "fd00:10:1::1"] {
        assert!(first.pings(gateway), "{gateway}");
    }
    assert_reaches(&first, &OUTSIDE);
    assert_reaches(&nated, &OUTSIDE);
    assert_reaches(&first, &of_second.each_ref().map(String::as_str));
    lab.assert_invariants();
    for (network, pod) in [("blue", &first), ("green", &second), ("nated", &nated)] {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}
