//! The main task: pods get their network from the DPU and release it.

use std::time::Duration;

use e2e::{
    Call, Lab, Netns, Settings, run,
    scenarios::{first_hop, pods},
    wait_for,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn two_pods_ping_in_both_families() {
    pods::two_pods_ping_in_both_families(&Settings::default());
}

/// No call waits for TCP and TLS handshakes.
#[test]
fn calls_use_the_open_connection() {
    let lab = Lab::start(&Settings::default());
    let accepted = || {
        let counter = run(lab.card.dpu.command("nstat").args(["-jasz", "TcpPassiveOpens"]));
        let counter: Value = serde_json::from_slice(&counter.stdout).unwrap();
        counter["kernel"]["TcpPassiveOpens"].as_u64().unwrap()
    };
    let before = accepted();
    assert!(before > 0);
    for _ in 0..3 {
        let pod = Netns::new("pod");
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.del("blue", &pod, "eth0").nothing();
    }
    assert_eq!(accepted(), before);
}

#[test]
fn pod_has_interfaces_in_several_networks() {
    pods::pod_has_interfaces_in_several_networks(&Settings::default());
}

#[test]
fn pods_communicate_by_link_router() {
    first_hop::pods_communicate_by_link_router(&Settings::default());
}

#[test]
fn layer_2_interface_carries_frames_without_address() {
    pods::layer_2_interface_carries_frames_without_address(&Settings::default());
}

#[test]
fn added_interface_matches_its_network() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let result = lab.add("green", &pod, "net1").result();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["dns"]["nameservers"], json!(["10.2.0.53"]));
    let interface = &result["interfaces"][0];
    assert_eq!(interface["name"], "net1");
    assert_eq!(interface["mtu"], 1400);
    assert_eq!(interface["sandbox"], pod.path().to_str().unwrap());
    assert!(interface["pciID"].as_str().unwrap().starts_with("d000:"), "{result}");
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{result}");

    let link = &pod.json("ip", &["link", "show", "net1"])[0];
    assert_eq!(link["mtu"], 1400);
    assert_eq!(link["address"], interface["mac"]);
    let routes = pod.json("ip", &["route"]);
    let has = |destination: &str, gateway: &str| {
        routes.iter().any(|route| route["dst"] == destination && route["gateway"] == gateway)
    };
    assert!(has("default", "10.2.0.1"), "{routes:?}");
    assert!(has("172.16.0.0/12", "10.2.0.254"), "{routes:?}");
    let lo = &pod.json("ip", &["link", "show", "lo"])[0];
    assert!(lo["flags"].as_array().unwrap().contains(&json!("UP")), "{lo}");
    lab.assert_invariants();
}

/// Both interfaces bring the network's routes, of which the kernel accepts no second one with the same metric.
#[test]
fn pod_has_two_interfaces_in_one_network() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    for interface in ["net1", "net2"] {
        let _ = lab.add("green", &pod, interface).result();
        lab.assert_invariants();
    }
    let routes = pod.json("ip", &["route"]);
    let of_green = routes.iter().filter(|route| route["dst"] == "172.16.0.0/12");
    let by: Vec<_> = of_green.map(|route| route["dev"].as_str().unwrap()).collect();
    assert_eq!(by, ["net1", "net2"], "{routes:?}");
    for interface in ["net1", "net2"] {
        lab.del("green", &pod, interface).nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn adding_again_gives_the_same_result() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let first = lab.add("blue", &pod, "eth0").result();
    let second = lab.add("blue", &pod, "eth0").result();
    assert_eq!(first, second);
    assert_eq!(lab.operator().get("attachments").len(), 1);
    lab.assert_invariants();
}

#[test]
fn repeated_and_unknown_dels_succeed() {
    let lab = Lab::start(&Settings::default());
    let (pod, stranger) = (Netns::new("pod"), Netns::new("stranger"));
    let _ = lab.add("blue", &pod, "eth0").result();
    for _ in 0..3 {
        lab.del("blue", &pod, "eth0").nothing();
    }
    lab.del("blue", &stranger, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn late_del_without_netns_releases_everything() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let call = Call::new("DEL", &lab.configuration("blue")).of(pod.name(), None, "eth0");
    lab.execute(&call).nothing();
    lab.assert_clean_slate();
}

#[test]
fn check_names_each_change() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let result = lab.add("blue", &pod, "eth0").result();
    let mut configuration = lab.configuration("blue");
    configuration["prevResult"] = result;
    let check = Call::new("CHECK", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    lab.execute(&check).nothing();
    // The agent may look at the pod at any time and repair the damage.
    let fails_after = |change: &[&str]| {
        wait_for("a CHECK that fails", LIMIT, || {
            pod.ip(change);
            Some(lab.execute(&check)).filter(|answer| !answer.status.success())
        })
    };
    fails_after(&["link", "set", "eth0", "down"]).fails(132, &["is down"]);
    pod.ip(&["link", "set", "eth0", "up"]);
    fails_after(&["addr", "flush", "dev", "eth0", "scope", "global"]).fails(132, &["10.1."]);
}

#[test]
fn gc_keeps_listed_attachments() {
    let lab = Lab::start(&Settings::default());
    let (kept, stale, green) = (Netns::new("kept"), Netns::new("stale"), Netns::new("green"));
    let _ = lab.add("blue", &kept, "eth0").result();
    let _ = lab.add("blue", &stale, "eth0").result();
    let _ = lab.add("green", &green, "eth0").result();

    let without_a_list = lab.execute(&Call::new("GC", &lab.configuration("blue")));
    without_a_list.fails(7, &["cni.dev/valid-attachments"]);
    assert_eq!(lab.operator().get("attachments").len(), 3);

    let mut configuration = lab.configuration("blue");
    configuration["cni.dev/valid-attachments"] =
        json!([{ "containerID": kept.name(), "ifname": "eth0" }]);
    lab.execute(&Call::new("GC", &configuration)).nothing();
    lab.assert_invariants();
    let left: Vec<Value> = lab.operator().get("attachments");
    let ids: Vec<_> = left.iter().map(|a| a["key"]["containerId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 2);
    assert!(ids.contains(&kept.name()) && ids.contains(&green.name()), "{ids:?}");

    configuration["cni.dev/valid-attachments"] = json!([]);
    lab.execute(&Call::new("GC", &configuration)).nothing();
    assert_eq!(lab.operator().get("attachments").len(), 1);
    lab.assert_invariants();
}

#[test]
fn host_keeps_vfs_that_it_uses() {
    let lab = Lab::start(&Settings::with_vfs(2));
    let host = &lab.card.host;
    host.ip(&["addr", "add", "192.0.2.1/24", "dev", "p0v0"]);
    host.ip(&["link", "add", "br0", "type", "bridge"]);
    host.ip(&["link", "set", "p0v1", "up", "master", "br0"]);
    for interface in ["eth0", "eth1"] {
        // The first attach may come before the DPU knows about it.
        assert!(!lab.add("blue", &Netns::new("pod"), interface).status.success());
    }
    assert_eq!(host.json("ip", &["addr", "show", "p0v0"])[0]["addr_info"][0]["local"], "192.0.2.1");
    assert_eq!(host.json("ip", &["link", "show", "p0v1"])[0]["master"], "br0");

    host.ip(&["link", "set", "p0v1", "nomaster"]);
    host.ip(&["addr", "del", "192.0.2.1/24", "dev", "p0v0"]);
    lab.agent.signal(Signal::SIGHUP);
    lab.assert_clean_slate();
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}
