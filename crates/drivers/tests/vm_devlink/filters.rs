//! Hardware filters: what a card forwards by itself, and which filters it refuses.

use std::process::Command;

use model::{AntiSpoofing, PortSettings};
use serde_json::{Value, json};
use test_clock::wait_until;

use crate::{
    dpu::{Dpu, NO_FILTERS, VF, of_pod, send, settings},
    netdevsim::WithoutTrap,
};

/// mlx5's answers for the ports of a BlueField: see hack/vm.d/switchdevsim.
#[test]
fn guard_works_with_few_bridge_flags() {
    let dpu = Dpu::new();
    dpu.programmer.program(&settings()).unwrap();
    let port = dpu.representor().name;
    for flag in ["locked on", "isolated on", "hairpin on", "bcast_flood off"] {
        let mut bridge = Command::new("bridge");
        bridge.args(["link", "set", "dev", &port]).args(flag.split(' '));
        let output = dpu.netns.netns.run(|| bridge.output().unwrap()).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains("Flag is not supported"),
            "{flag}: {text}"
        );
    }
    let shown = dpu.netns.json(&format!("bridge -d -j link show dev {port}"));
    assert_eq!((&shown[0]["learning"], &shown[0]["flood"]), (&json!(false), &json!(false)));
    let shown = dpu.netns.json(&format!("tc -j filter show dev {port} ingress"));
    assert!(shown.to_string().contains("direct-action"), "{shown}");
    let found = dpu.programmer.inspect(&settings()).unwrap();
    assert!(found.steps.iter().all(|step| step.in_place), "{:?}", found.steps);
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
}

/// The card forwards by itself only what may certainly be sent; everything else goes to the kernel.
/// hack/vm.d/switchdevsim counts for each filter what a card would decide by it.
#[test]
fn card_forwards_only_verified_frames() {
    let dpu = Dpu::new();
    assert!(dpu.filters().0, "{:?}", dpu.filters());
    let settings = PortSettings { vlan: None, trunk: [].into(), ..of_pod() };
    dpu.programmer.program(&settings).unwrap();
    let port = dpu.representor();
    let known = dpu.netns.json(&format!("bridge -j fdb show dev {} state static", port.name));
    assert!(known[0]["flags"].to_string().contains("offload"), "{known}");
    // For both families, with the link-local address: the answers to DHCP clients, then TCP and UDP, and everything
    // else.
    let flowers = dpu.flowers(&port.name);
    assert_eq!(flowers.len(), 9, "{flowers:?}");
    assert!(
        flowers.iter().all(|one| one["in_hw"] == true && one["skip_sw"] == true),
        "{flowers:?}"
    );
    assert!(dpu.guard_detail(&settings).ends_with("so for sure"));

    let pod = dpu.pod_behind(&port);
    let is_forwarded = |to: &str| {
        let (passed, trapped) = dpu.decided(&port.name);
        send(&pod, to);
        wait_until("the card decides", || dpu.decided(&port.name) > (passed, trapped));
        dpu.decided(&port.name).0 > passed
    };
    assert!(is_forwarded("10.9.0.2:80") && is_forwarded("[fd09::2]:80"));
    assert!(!is_forwarded("10.9.0.2:68"), "as a server of DHCP");
    assert!(!is_forwarded("10.9.0.255:80"), "to all");
    for (change, to) in [
        ("address add 10.9.0.66/32 dev lo", "10.9.0.2:80"),
        ("link set eth0 address 02:00:00:00:01:99", "[fd09::2]:80"),
    ] {
        pod.run(&format!("ip {change}"));
        pod.run("ip route replace 10.9.0.2/32 dev eth0 src 10.9.0.66");
        assert!(!is_forwarded(to), "{change}");
    }

    let removed = &flowers[3];
    let (pref, handle) = (&removed["pref"], &removed["handle"]);
    let protocol = removed["protocol"].as_str().unwrap();
    dpu.netns.run(&format!(
        "tc filter del dev {} ingress pref {pref} protocol {protocol} handle {handle} flower",
        port.name
    ));
    assert_eq!(dpu.programmer.repair(&settings).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name).len(), 9);
    let anti_spoofing = PortSettings { anti_spoofing: AntiSpoofing::Mac, ..settings.clone() };
    assert_eq!(dpu.programmer.repair(&anti_spoofing).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name).len(), 3);
    let anti_spoofing = PortSettings { anti_spoofing: AntiSpoofing::Off, ..settings };
    assert_eq!(dpu.programmer.repair(&anti_spoofing).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    dpu.programmer.program(&of_pod()).unwrap();
    dpu.programmer.unprogram(VF).unwrap();
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    dpu.assert_idle();
}

#[test]
fn refused_filters_fall_back_to_software() {
    let dpu = Dpu::new();
    assert!(dpu.filters().0, "{:?}", dpu.filters());
    dpu.set_filters("off");
    dpu.programmer.program(&of_pod()).unwrap();
    let port = dpu.representor();
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    let detail = dpu.guard_detail(&of_pod());
    assert!(detail.contains("software alone") && detail.contains(NO_FILTERS), "{detail}");
    assert_eq!(dpu.programmer.repair(&of_pod()).unwrap().steps, [""; 0]);
    dpu.set_filters("on");
    dpu.programmer.program(&of_pod()).unwrap();
    assert!(!dpu.guard_detail(&of_pod()).contains("software alone"));
    assert_eq!(dpu.flowers(&port.name).len(), 9);
}

/// Passing filters are useless without the one that sends everything else to the kernel.
#[test]
fn card_without_fallback_is_guarded_in_software() {
    let dpu = Dpu::new();
    let without_trap = WithoutTrap::new();
    let (takes_filters, why) = dpu.filters();
    assert!(!takes_filters && why.contains("that traps ingress frames"), "{why}");
    assert!(why.ends_with("Not implemented offload action"), "{why}");
    dpu.programmer.program(&of_pod()).unwrap();
    let port = dpu.representor().name;
    assert_eq!(dpu.flowers(&port), [Value::Null; 0]);
    assert!(!dpu.guard_detail(&of_pod()).contains("the card"), "{}", dpu.guard_detail(&of_pod()));
    drop(without_trap);
    assert!(dpu.filters().0, "{:?}", dpu.filters());
    assert_eq!(dpu.programmer.repair(&of_pod()).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port).len(), 9);
}

#[test]
fn refused_filters_are_retried_later() {
    let dpu = Dpu::new();
    dpu.set_filters("off");
    for _ in 0..2 {
        let (takes_filters, why) = dpu.filters();
        assert!(!takes_filters && why.ends_with(NO_FILTERS), "{why}");
    }
    dpu.set_filters("on");
    assert!(dpu.filters().0, "{:?}", dpu.filters());
}

/// The words of mlx5's driver about filters.
#[test]
fn filters_are_refused_as_mlx5_refuses_them() {
    let dpu = Dpu::new();
    let port = dpu.representor().name;
    dpu.netns.run(&format!("tc qdisc add dev {port} clsact"));
    let refusals = [
        ("arp", "arp_sip 10.9.0.1 action pass", "Unsupported key"),
        ("ip", "action mirred egress redirect dev lo", "not on same switch HW"),
        ("ip", "action skbedit mark 3", "Not implemented offload action"),
        ("ip", "ip_flags firstfrag action drop", "Unsupported match on control.flags"),
    ];
    for (protocol, filter, why) in refusals {
        let mut tc = Command::new("tc");
        tc.args(["filter", "add", "dev", &port, "ingress", "protocol", protocol]);
        tc.args(["flower", "skip_sw"]).args(filter.split(' '));
        let output = dpu.netns.netns.run(|| tc.output().unwrap()).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(why), "{filter}: {text}");
    }
}
