//! Cards of kind veth as a process: plugged in, unplugged, reset, killed, and with VFs in pods that end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod scene;

use std::{path::Path, process::Command, time::Duration};

use nix::sys::signal::Signal;
use scene::{Scene, flags, support::TestNetns};
use serde_json::json;
use test_clock::{Stopwatch, sleep_until_moment, wait_until};

/// Number of removals while pods end: the kernel deletes the VFs at some moment of each.
const ENDS: u32 = 10;

#[test]
fn veth_card_leaves_nothing() {
    let scene = Scene::new();
    let card = scene.plug("--vfs 3");
    assert_eq!(scene.host.link_names(), ["mgmt0", "p0v0", "p0v1", "p0v2"]);
    assert_eq!(scene.dpu.link_names(), ["mgmt0", "pf0vf0", "pf0vf1", "pf0vf2"]);
    let vf = scene.host.link("p0v2");
    assert_eq!(vf["ifalias"], "virtual-nic d000:00:00.3 pf0vf2");
    let representor = scene.dpu.link("pf0vf2");
    assert_eq!(representor["ifalias"], "virtual-nic representor pf0vf2");
    for link in [vf, representor] {
        assert!(!flags(&link).contains("UP"), "{link}");
        assert_eq!(link["mtu"], 1500);
    }
    scene.host.run("ping -c 1 -W 5 192.168.100.2");
    card.pull();
    scene.assert_empty();
}

#[test]
fn card_has_several_pfs_and_uplinks() {
    let scene = Scene::new();
    let wire = TestNetns::new();
    let path = wire.path();
    let few = "--pfs 2 --vfs 1 --no-management --uplink --wire-netns";
    let card = scene.plug(&format!("{few} {}", path.display()));
    assert_eq!(scene.host.link_names(), ["p0v0", "p1v0"]);
    assert_eq!(scene.dpu.link_names(), ["p0", "p1", "pf0vf0", "pf1vf0"]);
    assert_eq!(wire.link_names(), ["wire0", "wire1"]);
    assert_eq!(scene.host.link("p1v0")["ifalias"], "virtual-nic d001:00:00.1 pf1vf0");
    assert_eq!(scene.dpu.link("p1")["ifalias"], "virtual-nic uplink p1");
    card.pull();
    scene.assert_empty();
    assert_eq!(wire.link_names(), Vec::<String>::new());
}

#[test]
fn vf_returns_as_the_pod_left_it() {
    let scene = Scene::new();
    let pod = TestNetns::new();
    let card = scene.plug("--vfs 2");
    scene.dpu.run("ip link add name br type bridge");
    scene.dpu.run("ip link set dev pf0vf1 master br up mtu 1400");
    scene.give(&card, "p0v1", &pod, "net1");
    pod.run("ip link set dev net1 mtu 1400 address 02:00:00:00:00:07 up");
    pod.run("ip link property add dev net1 altname other");
    pod.run("ip addr add 192.0.2.7/24 dev net1");
    // Alternative names cause no event, but this change does.
    pod.run("ip link set dev net1 txqueuelen 900");
    drop(pod);

    let vf = scene.vf("d000:00:00.2");
    assert_eq!((&vf["ifname"], &vf["mtu"]), (&json!("net1"), &json!(1400)));
    assert_eq!((&vf["address"], &vf["altnames"]), (&json!("02:00:00:00:00:07"), &json!(["other"])));
    assert!(!flags(&vf).contains("UP") && vf["addr_info"] == json!([]), "{vf}");
    let representor = scene.dpu.link("pf0vf1");
    assert_eq!(representor["ifalias"], "virtual-nic representor pf0vf1");
    assert!(!flags(&representor).contains("UP") && representor["master"].is_null());

    // The VF works as before, also a second time.
    let pod = TestNetns::new();
    scene.give(&card, "net1", &pod, "eth0");
    drop(pod);
    assert_eq!(scene.vf("d000:00:00.2")["ifname"], "eth0");
    card.pull();
    assert_eq!(scene.dpu.link_names(), ["br"]);
    assert_eq!(scene.host.link_names(), Vec::<String>::new());
}

#[test]
fn card_is_removed_while_pods_end() {
    for moment in 0..ENDS {
        let scene = Scene::new();
        let card = scene.plug("--vfs 8");
        let pods: Vec<_> = (0..8).map(|_| TestNetns::new()).collect();
        for (number, pod) in pods.iter().enumerate() {
            scene.give(&card, &format!("p0v{number}"), pod, "eth0");
        }
        drop(pods);
        // Not a wait for a condition: the pauses spread the removals over the deletion of the namespaces.
        sleep_until_moment(Duration::from_millis(4) * moment);
        card.pull();
        scene.assert_empty();
    }
}

#[test]
fn changes_of_idle_vf_are_known() {
    let scene = Scene::new();
    let pod = TestNetns::new();
    let card = scene.plug("--vfs 1");
    // The representor stays down and unchanged: none of this causes an event of its own.
    scene.give(&card, "p0v0", &pod, "first");
    pod.run("ip link set dev first name second");
    pod.run("ip link set dev second mtu 1300");
    pod.run("ip link set dev second address 02:00:00:00:00:08");
    drop(pod);
    let vf = scene.vf("d000:00:00.1");
    assert_eq!((&vf["ifname"], &vf["mtu"]), (&json!("second"), &json!(1300)));
    assert_eq!(vf["address"], "02:00:00:00:00:08");
    card.pull();
    scene.assert_empty();
}

#[test]
fn vf_with_taken_name_is_named_by_index() {
    let scene = Scene::new();
    let (pod, another) = (TestNetns::new(), TestNetns::new());
    let card = scene.plug("--vfs 2");
    scene.host.run("ip link add name eth0 type bridge");
    scene.give(&card, "p0v0", &pod, "eth0");
    let index = pod.link("eth0")["ifindex"].clone();
    drop(pod);
    let vf = scene.vf("d000:00:00.1");
    assert_eq!(vf["ifname"], format!("dev{index}"));
    assert_eq!(vf["ifindex"], index);

    // This name is taken as well.
    let index = scene.host.link("p0v1")["ifindex"].clone();
    scene.host.run(&format!("ip link add name dev{index} type bridge"));
    scene.give(&card, "p0v1", &another, "eth0");
    drop(another);
    let vf = scene.vf("d000:00:00.2");
    assert_eq!((&vf["ifname"], &vf["ifindex"]), (&json!("dev0"), &index));
    card.pull();
    assert_eq!(scene.host.link_names(), [format!("dev{index}"), "eth0".to_owned()]);
}

#[test]
fn many_pods_end_at_once() {
    let scene = Scene::new();
    let card = scene.plug("--vfs 24");
    let pods: Vec<_> = (0..24).map(|_| TestNetns::new()).collect();
    for (number, pod) in pods.iter().enumerate() {
        scene.give(&card, &format!("p0v{number}"), pod, &format!("net{number}"));
    }
    assert_eq!(scene.host.link_names(), ["mgmt0"]);
    drop(pods);
    wait_until("all VFs are back", || scene.host.link_names().len() == 25);
    let names = scene.host.link_names();
    assert!((0..24).all(|number| names.contains(&format!("net{number}"))), "{names:?}");
    card.pull();
    scene.assert_empty();
}

#[test]
fn reset_recreates_all_links() {
    let scene = Scene::new();
    let pod = TestNetns::new();
    let card = scene.plug("--vfs 2");
    let before = scene.dpu.link("pf0vf0")["ifindex"].clone();
    scene.give(&card, "p0v1", &pod, "net1");
    card.signal(Signal::SIGHUP);
    wait_until("the VF is back", || scene.host.link_names() == ["mgmt0", "p0v0", "p0v1"]);
    let address = || scene.dpu.run("ip addr show").contains("192.168.100.2/30");
    wait_until("the management link, the last that is made, has its addresses", address);
    assert_eq!(pod.link_names(), Vec::<String>::new());
    assert_ne!(scene.dpu.link("pf0vf0")["ifindex"], before);
    scene.host.run("ping -c 1 -W 5 192.168.100.2");
    // The card watches again: it restores even a representor that another program deletes.
    scene.dpu.run("ip link del dev pf0vf0");
    wait_until("the deleted pair is back", || scene.host.link_names().contains(&"p0v0".to_owned()));
    let another = TestNetns::new();
    scene.give(&card, "p0v1", &another, "net1");
    drop(another);
    assert_eq!(scene.vf("d000:00:00.2")["ifname"], "net1");
    card.pull();
    scene.assert_empty();
}

#[test]
fn two_cards_do_not_interfere() {
    let scene = Scene::new();
    let (pod, other) = (TestNetns::new(), TestNetns::new());
    let first = scene.plug("--pfs 2 --vfs 1");
    let second = scene.plug("--controller 1 --pfs 2 --vfs 1");
    let of_first = ["mgmt0", "p0v0", "p1v0"];
    let of_both = ["c1p0v0", "c1p1v0", "mgmt0", "mgmt1", "p0v0", "p1v0"];
    assert_eq!(scene.host.link_names(), of_both);
    scene.host.run("ping -c 1 -W 5 192.168.101.2");
    let vf = scene.vf("d011:00:00.1");
    assert_eq!(
        (&vf["ifname"], &vf["ifalias"]),
        (&json!("c1p1v0"), &json!("virtual-nic d011:00:00.1 c1pf1vf0"))
    );

    scene.give(&first, "p1v0", &pod, "net1");
    scene.give(&second, "c1p1v0", &other, "net1");
    let in_pod = pod.link("net1")["ifindex"].clone();
    second.signal(Signal::SIGHUP);
    wait_until("the second card's VFs are back", || {
        scene.host.link_names() == ["c1p0v0", "c1p1v0", "mgmt0", "mgmt1", "p0v0"]
    });
    assert_eq!(other.link_names(), Vec::<String>::new());
    assert_eq!(pod.link("net1")["ifindex"], in_pod, "it is the first card's");
    drop(pod);
    assert_eq!(scene.vf("d001:00:00.1")["ifname"], "net1");

    second.kill();
    let reported = scene.refusal("--controller 1");
    assert!(reported.contains("plugged in already"), "{reported}");
    assert!(scene.command("unplug").args(["--controller", "1"]).status().unwrap().success());
    assert_eq!(scene.host.link_names(), ["mgmt0", "net1", "p0v0"]);
    first.signal(Signal::SIGHUP);
    wait_until("the first card's VFs are back", || scene.host.link_names() == of_first);
    first.pull();
    scene.assert_empty();
}

#[test]
fn taken_name_leaves_nothing() {
    let scene = Scene::new();
    scene.host.run("ip link add name p0v7 type bridge");
    let reported = scene.refusal("--vfs 8");
    assert!(reported.contains(" name p0v7, but the host's "), "{reported}");
    assert_eq!(scene.host.link_names(), ["p0v7"]);
    assert_eq!(scene.dpu.link_names(), Vec::<String>::new());
}

#[test]
fn impossible_plans_are_refused() {
    let scene = Scene::new();
    let reported = scene.refusal("--vfs 5000");
    assert!(reported.contains(" 4096 VFs ") && reported.ends_with(", not 5000\n"), "{reported}");
    let reported = scene.refusal("--controller 16");
    assert!(
        reported.contains(" controller 0 to 15 ") && reported.ends_with(", not 16\n"),
        "{reported}"
    );
    let missing = Command::new(env!("CARGO_BIN_EXE_virtual-nic"))
        .args(["plug", "--dpu-netns", "no-such-netns", "--host-netns"])
        .arg(scene.host.path())
        .output()
        .unwrap();
    let reported = String::from_utf8(missing.stderr).unwrap();
    assert!(reported.contains("no network namespace /run/netns/no-such-netns"), "{reported}");
}

#[test]
fn missing_netdevsim_is_reported() {
    let scene = Scene::of_kind("netdevsim");
    let reported = scene.refusal("--vfs 2");
    let wanted = if Path::new("/sys/bus/netdevsim").exists() {
        "virtual-nic: cannot make"
    } else {
        "virtual-nic: this kernel has no netdevsim"
    };
    assert!(reported.starts_with(wanted), "{reported}");
    let reported = scene.refusal("--pfs 2");
    assert!(reported.contains("one PF"), "{reported}");
    let reported = scene.refusal("--controller 1");
    assert!(reported.contains("controller 0"), "{reported}");
    scene.assert_empty();
}

#[test]
fn leftovers_of_killed_card_are_removed() {
    let scene = Scene::new();
    let pod = TestNetns::new();
    let card = scene.plug("--vfs 2");
    scene.give(&card, "p0v0", &pod, "net1");
    card.kill();
    let reported = scene.refusal("--vfs 2");
    assert!(reported.contains("plugged in already"), "{reported}");
    assert!(scene.command("unplug").output().unwrap().status.success());
    scene.assert_empty();
    assert_eq!(pod.link_names(), Vec::<String>::new());
    scene.plug("--vfs 2").pull();
}

#[test]
fn large_card_is_plugged_in_quickly() {
    let scene = Scene::new();
    let start = Stopwatch::start();
    let card = scene.plug("--vfs 256");
    let plugged = start.elapsed();
    let start = Stopwatch::start();
    card.pull();
    println!("256 VFs: plugged in {plugged:?}, pulled out in {:?}", start.elapsed());
    assert!(plugged.as_secs() < 30);
    scene.assert_empty();
}
