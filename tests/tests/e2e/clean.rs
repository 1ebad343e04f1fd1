//! Changes by a pod to its interface affect only that pod.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{Card, Lab, Netns, Settings, scenarios::clean, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn upper_devices_reach_no_later_pod() {
    // The virtual machine's kernel always has VLANs and ipvlan.
    assert!(clean::upper_devices_reach_no_later_pod(&Settings::default()) >= 2);
}

#[test]
fn changed_settings_reach_no_later_pod() {
    // An ordinary user's tests cannot write to sysfs; those in the virtual machine do.
    let _ = clean::changed_settings_reach_no_later_pod(&Settings::default());
}

#[test]
fn tampering_pods_attach_and_detach_concurrently() {
    let settings = Settings { vfs: 8, pool: 8, ..Settings::default() };
    clean::tampering_pods_attach_and_detach_concurrently(&settings);
}

#[test]
fn vf_reset_survives_agent_kill() {
    clean::vf_reset_survives_agent_kill(&Settings::default());
}

#[test]
fn damaged_network_is_reported_and_repaired() {
    clean::damaged_network_is_reported_and_repaired(&Settings::default());
}

/// The agent has seen the VF before, so it knows the MAC address as well as name and MTU.
#[test]
fn changed_free_vf_gets_its_mac_back() {
    // The kernel sends no event for some changes of a link that is down.
    let lab = Lab::start(&Settings { timeouts: "reconcile_s = 2".into(), ..Settings::default() });
    let host = &lab.card.host;
    for change in [
        ["address", "02:00:00:00:00:99"],
        ["name", "lost0"],
        ["mtu", "1400"],
        ["gso_max_size", "2000"],
    ] {
        host.ip(&["link", "set", "p0v1", change[0], change[1]]);
        let is_back = || (&Card::ends_in(host) == lab.card.clean()).then_some(());
        wait_for(&format!("the end of {change:?}"), LIMIT, is_back);
    }
    lab.assert_invariants();
}

/// The kernel sends no event for this change: the agent looks because another VF comes and goes.
#[test]
fn listed_free_vf_is_restored_at_once() {
    let timeouts = "reconcile_s = 3600".into();
    let lab = Lab::start(&Settings { vfs: 2, timeouts, ..Settings::default() });
    let (host, pod) = (&lab.card.host, Netns::new("pod"));
    let _ = lab.add("blue", &pod, "eth0").result();
    let links = host.json("ip", &["link", "show"]);
    let is_taken = links.iter().all(|link| link["ifname"] != "p0v0");
    let free = if is_taken { "p0v1" } else { "p0v0" };
    host.ip(&["link", "set", free, "group", "7"]);
    lab.del("blue", &pod, "eth0").nothing();
    let is_back = || (&Card::ends_in(host) == lab.card.clean()).then_some(());
    wait_for("the VF as it was", LIMIT, is_back);
    lab.assert_clean_slate();
}

/// The kernel sends no event for this change, and the agent does not look before the ADDs come.
#[test]
fn fresh_host_change_is_not_the_baseline() {
    let timeouts = "reconcile_s = 3600".into();
    let lab = Lab::start(&Settings { vfs: 1, pool: 1, timeouts, ..Settings::default() });
    let host = &lab.card.host;
    host.ip(&["link", "set", "p0v0", "group", "7"]);
    let pod = Netns::new("pod");
    // If the agent sees the change first, it withdraws the VF from the DPU until it is restored.
    let add = || {
        let answer = lab.add("blue", &pod, "eth0");
        (!answer.stdout.contains("VFS_EXHAUSTED")).then_some(answer)
    };
    let _ = wait_for("a VF to be had", LIMIT, add).result();
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    let is_back = || (&Card::ends_in(host) == lab.card.clean()).then_some(());
    wait_for("the VF as it was", LIMIT, is_back);
    lab.assert_clean_slate();
}

/// A process may keep the namespace open, although no path leads to it after the runtime has removed its own.
#[test]
fn upper_device_in_unreachable_namespace_is_found() {
    let mut lab = Lab::start(&Settings { vfs: 1, pool: 1, ..Settings::default() });
    for is_killed in [false, true, false, true] {
        let pod = Netns::new("pod");
        let kept_alive = File::open(pod.path()).unwrap();
        let _ = lab.add("blue", &pod, "eth0").result();
        pod.ip(&["link", "add", "stacked", "link", "eth0", "type", "macvlan"]);
        lab.del("blue", &pod, "eth0").nothing();
        drop(pod);
        if is_killed {
            lab.agent.crash();
            lab.start_agent();
        }
        lab.await_settled();
        assert_eq!(links_in(&kept_alive), ["lo"], "the VF was not recreated, killed: {is_killed}");
    }
    lab.assert_clean_slate();
}

/// Names of the links in a namespace without a path.
fn links_in(netns: &File) -> Vec<String> {
    let stdin = Stdio::from(netns.try_clone().unwrap());
    let mut nsenter = Command::new("nsenter");
    let reported =
        nsenter.args(["--net=/proc/self/fd/0", "ip", "-json", "link"]).stdin(stdin).output();
    let links: Vec<Value> = serde_json::from_slice(&reported.unwrap().stdout).unwrap();
    links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

/// The scheduled reset waits for the key that the ADD holds, so the ADD resets the VF itself.
#[test]
fn immediate_repeat_gets_its_changed_vf() {
    let lab = Lab::start(&Settings { vfs: 1, pool: 1, ..Settings::default() });
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    for _ in 0..5 {
        pod.ip(&["link", "set", "eth0", "gso_max_size", "2000"]);
        lab.del("blue", &pod, "eth0").nothing();
        let _ = lab.add("blue", &pod, "eth0").result();
    }
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
