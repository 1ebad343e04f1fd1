//! Speculative moves: an ADD moves a VF before the DPU has answered which one the pod gets.

use std::{thread, time::Duration};

use e2e::{
    Call, Fault, FaultAction, Lab, Netns, Settings, openmetrics, run, scenarios::several, wait_for,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const AGENT: &str = "host-shim-agent";
const LIMIT: Duration = Duration::from_secs(60);
/// VFs of a lab.
const VFS: usize = 4;
/// Callers of a busy runtime, each with its own pod.
const CALLERS: u32 = 16;

fn settings() -> Settings {
    Settings { has_metrics: true, cool_down: 0, proxied: true, ..Settings::default() }
}

fn lab() -> Lab {
    Lab::start(&settings())
}

fn add(lab: &Lab, pod: &Netns) -> Call {
    Call::new("ADD", &lab.configuration("blue")).of(pod.name(), Some(&pod.path()), "eth0")
}

/// Numbers of right and wrong speculative moves of the agent.
fn counted_moves(lab: &Lab) -> (f64, f64) {
    let page = openmetrics::scrape(&lab.card.host).unwrap();
    let number = |outcome| {
        let labels = [("outcome", outcome)];
        openmetrics::value(&page, "dpu_offload_agent_speculative_moves", "_total", &labels).unwrap()
    };
    (number("right"), number("wrong"))
}

/// VFs in a pod's namespace, by their links.
fn vfs_in(pod: &Netns) -> Vec<Value> {
    let links = pod.json("ip", &["-d", "link", "show"]).into_iter();
    let is_vf = |link: &Value| {
        link["ifalias"].as_str().is_some_and(|alias| alias.starts_with("virtual-nic"))
    };
    links.filter(is_vf).collect()
}

/// Asserts that each VF can be attached in the present session: none is held for a finished ADD.
fn assert_all_can_be_had(lab: &Lab) {
    let pods: Vec<_> = (0..VFS).map(|_| Netns::new("pod")).collect();
    pods.iter().for_each(|pod| drop(lab.add("blue", pod, "eth0").result()));
    lab.assert_invariants();
    pods.iter().for_each(|pod| lab.del("blue", pod, "eth0").nothing());
    lab.assert_clean_slate();
}

/// Starts an ADD while the DPU does not answer, and waits until its VF has moved.
fn add_unanswered(lab: &Lab, pod: &Netns) -> std::process::Child {
    add_during(lab, pod, Fault::HoldDown)
}

fn add_during(lab: &Lab, pod: &Netns, fault: Fault) -> std::process::Child {
    lab.proxy().strike(fault);
    let plugin = add(lab, pod).begin(&lab.card.host);
    wait_for("the VF in the pod", LIMIT, || (!vfs_in(pod).is_empty()).then_some(()));
    plugin
}

#[test]
fn right_speculative_move_moves_one_vf() {
    let lab = lab();
    for _ in 0..8 {
        let pod = Netns::new("pod");
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.assert_invariants();
        lab.del("blue", &pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
    assert_eq!(counted_moves(&lab), (8.0, 0.0));
}

/// A VF taken by one ADD is not used by another: no VF moves in vain.
#[test]
fn sixteen_speculative_moves_are_right() {
    let lab = Lab::start(&Settings { vfs: CALLERS, pool: CALLERS, ..settings() });
    let pods: Vec<_> = (0..CALLERS).map(|_| Netns::new("pod")).collect();
    for _ in 0..4 {
        let at_once = |work: &(dyn Fn(&Netns) + Sync)| {
            thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(move || work(pod)))));
        };
        at_once(&|pod| drop(lab.add("blue", pod, "eth0").result()));
        lab.assert_invariants();
        at_once(&|pod| lab.del("blue", pod, "eth0").nothing());
    }
    lab.assert_clean_slate();
    let (right, wrong) = counted_moves(&lab);
    assert!(
        right > f64::from(2 * CALLERS) && wrong <= right / 100.0,
        "{right} right, {wrong} wrong"
    );
}

/// The DPU has changed its pool and its offers, and the agent learns it too late.
#[test]
fn expired_offer_moves_another_vf() {
    let lab = lab();
    let pool_is_smaller = || (lab.operator().get("pools")[0]["free"] == 3).then_some(());
    let pod = Netns::new("pod");
    lab.proxy().strike(Fault::HoldDown);
    lab.configure_service(&Settings { pool: 3, ..settings() });
    lab.service.signal(Signal::SIGHUP);
    wait_for("the DPU to have a smaller pool", LIMIT, pool_is_smaller);
    let plugin = add(&lab, &pod).begin(&lab.card.host);
    wait_for("the VF in the pod", LIMIT, || (!vfs_in(&pod).is_empty()).then_some(()));
    lab.proxy().heal();
    let output = plugin.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(vfs_in(&pod).len(), 1);
    lab.assert_invariants();
    assert_eq!(counted_moves(&lab), (0.0, 1.0));
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn speculatively_moved_link_is_down_until_answered() {
    let lab = lab();
    let pod = Netns::new("pod");
    let plugin = add_unanswered(&lab, &pod);
    let link = vfs_in(&pod).remove(0);
    assert_eq!(link["operstate"], "DOWN", "{link}");
    assert_ne!(link["ifname"], "eth0", "{link}");
    let shown = pod.json("ip", &["address", "show"]);
    let addresses = shown.iter().filter(|shown| shown["ifname"] == link["ifname"]);
    let held: Vec<_> = addresses.flat_map(|shown| shown["addr_info"].as_array().unwrap()).collect();
    assert!(held.is_empty(), "{held:?}");
    lab.proxy().heal();
    let output = plugin.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.assert_invariants();
    assert_eq!(counted_moves(&lab), (1.0, 0.0));
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn dead_callers_speculative_vf_returns() {
    let lab = lab();
    let pod = Netns::new("pod");
    let mut plugin = add_unanswered(&lab, &pod);
    plugin.kill().unwrap();
    let _ = plugin.wait().unwrap();
    lab.proxy().heal();
    wait_for("the VF to leave the pod", LIMIT, || vfs_in(&pod).is_empty().then_some(()));
    lab.assert_clean_slate();
    assert_all_can_be_had(&lab);
}

#[test]
fn dead_agents_speculative_vf_returns() {
    let mut lab = lab();
    let pod = Netns::new("pod");
    let mut plugin = add_unanswered(&lab, &pod);
    lab.agent.crash();
    plugin.kill().unwrap();
    let _ = plugin.wait().unwrap();
    lab.proxy().heal();
    assert_eq!(vfs_in(&pod).len(), 1);
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_clean_slate();
    assert!(vfs_in(&pod).is_empty());
}

/// The new session's hello lists the VF as used, and its offer has ended.
#[test]
fn add_during_service_restart_gets_last_vf() {
    let mut lab = Lab::start(&Settings {
        has_metrics: true,
        cool_down: 0,
        proxied: true,
        timeouts: "reconnect_ms = 3000".into(),
        ..Settings::with_vfs(1)
    });
    let pod = Netns::new("pod");
    let plugin = add_during(&lab, &pod, Fault::HoldUp);
    lab.service.crash();
    lab.proxy().heal();
    lab.start_service();
    let output = plugin.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn namespace_end_during_request_loses_no_vf() {
    let lab = lab();
    let pod = Netns::new("pod");
    let plugin = add_unanswered(&lab, &pod);
    drop(pod);
    lab.proxy().heal();
    let output = plugin.wait_with_output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    lab.assert_clean_slate();
    assert_all_can_be_had(&lab);
}

/// A runtime repeats ADDs of a network that refuses: no VF moves for them.
#[test]
fn refusing_network_moves_no_vf() {
    let lab = lab();
    let pod = Netns::new("pod");
    let refused = |step| {
        lab.arm("dpu-service", FaultAction::Fail, step);
        lab.add("blue", &pod, "eth0").fails(115, &[step]);
    };
    refused("fabric-join");
    let trace = lab.trace(AGENT);
    refused("fabric-join");
    let passed = std::fs::read_to_string(&trace).unwrap();
    assert!(!passed.contains("move-speculative"), "{passed}");
    lab.assert_clean_slate();
    let _ = lab.add("blue", &pod, "eth0").result();
    let other = Netns::new("other");
    let _ = lab.add("blue", &other, "eth0").result();
    assert_eq!(counted_moves(&lab), (1.0, 0.0), "it speculates again once it has a VF");
    lab.assert_invariants();
    [&pod, &other].iter().for_each(|pod| lab.del("blue", pod, "eth0").nothing());
    assert_all_can_be_had(&lab);
}

#[test]
fn taken_vf_name_does_not_prevent_move() {
    let lab = lab();
    let pod = Netns::new("pod");
    for vf in 0..4 {
        let (name, peer) = (format!("p0v{vf}"), format!("peer{vf}"));
        pod.ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer]);
    }
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!(counted_moves(&lab), (0.0, 0.0));
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// An ADD that will be refused also takes a VF and returns it. Another ADD that needs this VF waits.
#[test]
fn add_gets_last_vf_beside_refused_adds() {
    let lab = lab();
    let pods: Vec<_> = (1..VFS).map(|_| Netns::new("pod")).collect();
    let results: Vec<_> = pods.iter().map(|pod| lab.add("blue", pod, "eth0").result()).collect();
    let mut in_use = lab.configuration("blue");
    in_use["runtimeConfig"] = json!({ "mac": results[0]["interfaces"][0]["mac"] });
    let (refused, good) = (Netns::new("refused"), Netns::new("good"));
    let refused = Call::new("ADD", &in_use).of(refused.name(), Some(&refused.path()), "eth0");
    for _ in 0..20 {
        let others = [refused.begin(&lab.card.host), refused.begin(&lab.card.host)];
        let _ = lab.add("blue", &good, "eth0").result();
        for other in others {
            let output = other.wait_with_output().unwrap();
            assert!(!output.status.success(), "{output:?}");
        }
        lab.assert_invariants();
        lab.del("blue", &good, "eth0").nothing();
    }
    pods.iter().for_each(|pod| lab.del("blue", pod, "eth0").nothing());
    assert_all_can_be_had(&lab);
}

#[test]
fn add_gets_last_vf_beside_larger_add() {
    let lab = Lab::start(&Settings { cool_down: 0, ..Settings::with_vfs(1) });
    for _ in 0..8 {
        let (greedy, good) = (Netns::new("greedy"), Netns::new("good"));
        let greedy = several::call(&lab, "ADD", &greedy, "green").begin(&lab.card.host);
        let answer = add(&lab, &good).execute(&lab.card.host);
        let refused = greedy.wait_with_output().unwrap();
        let refused: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!(refused["code"], 102, "{refused}");
        let _ = answer.result();
        lab.del("blue", &good, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn chosen_vf_moves_speculatively() {
    let lab = lab();
    let chosen = lab.operator().get("vfs")[2]["vf"]["device"].clone();
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({ "deviceID": chosen });
    let pod = Netns::new("pod");
    let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    let result = lab.execute(&add).result();
    assert_eq!(result["interfaces"][0]["pciID"], chosen);
    assert_eq!(counted_moves(&lab), (1.0, 0.0));
    lab.del("blue", &pod, "eth0").nothing();
    assert_all_can_be_had(&lab);
}

/// Otherwise it would be in the pod's network while the host uses it.
#[test]
fn vf_used_by_host_is_not_programmed() {
    let lab = lab();
    let host = &lab.card.host;
    host.ip(&["address", "add", "192.0.2.1/24", "dev", "p0v1"]);
    host.ip(&["link", "set", "p0v1", "up"]);
    let of_host = || {
        let vfs = lab.operator().get("vfs");
        let state = vfs[1]["state"] == "VF_STATE_ABSENT";
        state.then(|| vfs[1]["vf"]["device"].clone())
    };
    let device = wait_for("the DPU to hear of it", LIMIT, of_host);
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({ "deviceID": device });
    let pod = Netns::new("pod");
    let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    let trace = lab.trace("dpu-service");
    lab.execute(&add).fails(108, &[]);
    let passed = std::fs::read_to_string(&trace).unwrap_or_default();
    assert!(!passed.contains("representor"), "{passed}");
    host.ip(&["address", "flush", "dev", "p0v1"]);
    host.ip(&["link", "set", "p0v1", "down"]);
    let is_free = || (lab.operator().get("vfs")[1]["state"] == "VF_STATE_FREE").then_some(());
    wait_for("it to be had", LIMIT, is_free);
    assert_all_can_be_had(&lab);
}

/// Changes so much that the kernel's event queue overflows, so that later events are lost.
fn flood(host: &Netns) {
    let script = "ip link add flood type veth peer name other && \
                  for mtu in $(seq 1000 2999); do echo link set flood mtu $mtu; done | ip -batch - && \
                  ip link delete flood";
    let flooded = run(host.command("sh").args(["-c", script]));
    assert!(flooded.status.success(), "{flooded:?}");
}

/// The host's change is noticed at once, even after an overflow of the event queue.
#[test]
fn vf_with_upper_device_is_not_moved() {
    let lab = lab();
    let host = &lab.card.host;
    let (device, _) = lab.card.clean().iter().find(|(_, end)| end.name == "p0v1").unwrap();
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({ "deviceID": device });
    let pod = Netns::new("pod");
    let call = |verb| Call::new(verb, &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    let trace = lab.trace(AGENT);
    let moves = || std::fs::read_to_string(&trace).unwrap().matches("move-speculative").count();
    let is_free = || (lab.operator().get("vfs")[1]["state"] == "VF_STATE_FREE").then_some(());
    for floods in [false, true, false] {
        if floods {
            flood(host);
        }
        host.ip(&["link", "add", "link", "p0v1", "name", "mine", "type", "macvlan"]);
        let before = moves();
        lab.execute(&call("ADD")).fails(108, &[]);
        assert_eq!(moves(), before, "it moved though it is the host's");
        host.ip(&["link", "delete", "mine"]);
        let added = || lab.execute(&call("ADD")).status.success().then_some(());
        wait_for("the VF to be had again", LIMIT, added);
        lab.execute(&call("DEL")).nothing();
        // Otherwise the next upper device counts as the pod's, and the VF is reset.
        wait_for("the VF to be looked at", LIMIT, is_free);
    }
    lab.assert_clean_slate();
    assert!(moves() > 0, "none of the others moved ahead");
}

/// The DPU learns about the free VF and address after a DEL's answer. The next ADD must still get the pool's only VF,
/// chosen or not, and an address that it asks for.
#[test]
fn next_add_gets_released_vf_and_address() {
    let lab = Lab::start(&Settings { vfs: 1, pool: 1, cool_down: 0, ..Settings::default() });
    let pods = [Netns::new("a"), Netns::new("b")];
    let first = lab.add("blue", &pods[0], "eth0").result();
    let (device, address) = (&first["interfaces"][0]["pciID"], &first["ips"][0]["address"]);
    let option_sets = [json!({}), json!({ "deviceID": device }), json!({ "ips": [address] })];
    for (turn, options) in option_sets.iter().cycle().take(30).enumerate() {
        let (old, new) = (&pods[turn % 2], &pods[(turn + 1) % 2]);
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = options.clone();
        lab.del("blue", old, "eth0").nothing();
        assert!(vfs_in(old).is_empty(), "the pod has it no more once the DEL is answered");
        let add = Call::new("ADD", &configuration).of(new.name(), Some(&new.path()), "eth0");
        let again = lab.execute(&add).result();
        assert_eq!(again["interfaces"][0]["pciID"], *device, "{options}");
        if options["ips"].is_array() {
            assert_eq!(again["ips"][0]["address"], *address);
        }
    }
    lab.assert_invariants();
    pods.iter().for_each(|pod| lab.del("blue", pod, "eth0").nothing());
    lab.assert_clean_slate();
}
