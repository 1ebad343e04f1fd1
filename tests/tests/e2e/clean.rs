//! What a pod does to its interface is the pod's own affair.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{Card, Lab, Netns, Settings, scenarios::clean, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn what_is_stacked_on_an_interface_reaches_no_later_pod() {
    // Of VLANs and ipvlan the kernel of the virtual machine knows in any case.
    assert!(clean::what_is_stacked_on_an_interface_reaches_no_later_pod(&Settings::default()) >= 2);
}

#[test]
fn what_is_set_of_an_interface_reaches_no_later_pod() {
    // An ordinary user's tests can't write files of sysfs; those in the virtual machine do.
    let _ = clean::what_is_set_of_an_interface_reaches_no_later_pod(&Settings::default());
}

#[test]
fn pods_that_change_their_interfaces_come_and_go_at_once() {
    let settings = Settings { vfs: 8, pool: 8, ..Settings::default() };
    clean::pods_that_change_their_interfaces_come_and_go_at_once(&settings);
}

#[test]
fn a_vf_is_made_anew_although_the_agent_is_killed() {
    clean::a_vf_is_made_anew_although_the_agent_is_killed(&Settings::default());
}

#[test]
fn what_a_network_relies_on_is_checked_and_set() {
    clean::what_a_network_relies_on_is_checked_and_set(&Settings::default());
}

/// The agent has seen the VF before, and so knows its MAC address as it knows its name and MTU.
#[test]
fn a_free_vf_that_somebody_changed_gets_its_mac_address_back() {
    // The kernel tells nobody of some changes of a link that is down.
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

/// Of which the kernel tells nobody: the agent looks because another VF comes and goes.
#[test]
fn a_free_vf_that_is_found_changed_as_vfs_are_listed_is_restored_at_once() {
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

/// The kernel tells nobody of it, and the agent does not look before the ADDs come.
#[test]
fn what_the_host_has_just_changed_of_a_free_vf_is_not_taken_for_its_own() {
    let timeouts = "reconcile_s = 3600".into();
    let lab = Lab::start(&Settings { vfs: 1, pool: 1, timeouts, ..Settings::default() });
    let host = &lab.card.host;
    host.ip(&["link", "set", "p0v0", "group", "7"]);
    let pod = Netns::new("pod");
    // If the agent has seen it first, it takes the VF back from the DPU until it is restored.
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

/// A pod may keep its namespace alive in a descriptor, to which no path leads once the runtime has removed its own.
#[test]
fn what_a_pod_stacked_is_found_though_its_namespace_is_out_of_reach_after_the_del() {
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
        assert_eq!(links_in(&kept_alive), ["lo"], "the VF was not made anew, killed: {is_killed}");
    }
    lab.assert_clean_slate();
}

/// The names of the links of a namespace to which no path leads.
fn links_in(netns: &File) -> Vec<String> {
    let stdin = Stdio::from(netns.try_clone().unwrap());
    let mut nsenter = Command::new("nsenter");
    let told = nsenter.args(["--net=/proc/self/fd/0", "ip", "-json", "link"]).stdin(stdin).output();
    let links: Vec<Value> = serde_json::from_slice(&told.unwrap().stdout).unwrap();
    links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

/// The VF was announced to be made anew, which waits for the key that the ADD holds; the ADD makes it anew itself.
#[test]
fn a_pod_that_comes_again_at_once_gets_the_only_vf_that_it_has_changed() {
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
