//! Real VFs of a real driver on the host's side: QEMU's igb cards. The cards have no DPU, so their PFs restrict pods to
//! MAC addresses and VLANs, and the cards switch between VFs. The service has neither eswitch nor fabric. The host is
//! the machine itself, because VFs return only to the initial namespace.

mod card;
mod drivers;
mod kubelet;
mod lab;

use e2e::{Netns, eventually, run, wait_for};
use offload_proto::log_event;

use lab::{Attached, LIMIT, Lab, Vf};

fn pings(pod: &Netns, address: &str) -> bool {
    let once = ["-n", "-q", "-c", "1", "-W", "2", address];
    run(pod.command("ping").args(once)).status.success()
}

#[track_caller]
fn assert_comes_to_ping(pod: &Netns, address: &str) {
    let reached = eventually(LIMIT, || pings(pod, address).then_some(()));
    assert!(reached.is_some(), "{} does not reach {address}", pod.name());
}

/// Changes by a pod to its interface.
const DONE_TO_A_VF: [&str; 4] = [
    "ip link add stacked link net1 type macvlan mode passthru && ip link set stacked up",
    "ip link add stacked link net1 type vlan id 7 && ip link set stacked up",
    "ip link set net1 arp off && ip link set net1 gso_max_size 2000",
    "ethtool -G net1 rx 128 tx 128 && ethtool -C net1 rx-usecs 77 && ethtool -K net1 tx off",
];

/// A VF that differs after its pod is bound to its driver again before the next pod gets it.
#[test]
fn igb_changes_reach_no_later_pod() {
    let lab = Lab::start(2);
    let clean = lab.clean();
    let resident = Netns::new("resident");
    let reached = lab.add("blue", &resident).address;
    for done in DONE_TO_A_VF {
        let (pod, next) = (Netns::new("pod"), Netns::new("next"));
        lab.add("blue", &pod);
        let output = run(pod.command("sh").args(["-c", done]));
        assert!(output.status.success(), "{done}: {output:?}");
        lab.call("DEL", "blue", &pod).nothing();
        wait_for("a free VF", LIMIT, || (lab.free() == 1).then_some(()));
        lab.add("blue", &next);
        assert_comes_to_ping(&next, &reached);
        let links = pod.json("ip", &["link"]);
        assert_eq!(links.len(), 1, "only lo is left after {done}: {links:?}");
        lab.call("DEL", "blue", &next).nothing();
        wait_for("a free VF", LIMIT, || (lab.free() == 1).then_some(()));
    }
    let resets = lab.agent.events(log_event::VF_RESET);
    assert!(resets >= DONE_TO_A_VF.len(), "{resets}");
    lab.call("DEL", "blue", &resident).nothing();
    lab.assert_invariants(&clean);
}

/// Pods get VFs by PCI address, reach each other through the card within their VLAN only, and return the VFs with their
/// baselines. The same holds for a namespace that ends with its VF inside.
#[test]
fn igb_vfs_return_with_their_baseline() {
    let lab = Lab::start(3);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    lab.assert_invariants(&clean);
    let (one, two, other) = (Netns::new("one"), Netns::new("two"), Netns::new("other"));
    let Attached { vf, mac, address, result } = lab.add("blue", &one);
    let its_address = lab.add("blue", &two).address;
    lab.add("green", &other);
    let expected = Vf { name: "net1".into(), mac: mac.clone(), mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&one, vf), Some(expected));
    let port = lab.card.port(vf);
    assert_eq!(port["address"], mac.as_str(), "{port}");
    assert_eq!(port["vlan_list"][0]["vlan"], 100, "{port}");
    assert_eq!(port["spoofchk"], true, "{port}");
    lab.check("blue", &one, &result);
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&one, &its_address);
    assert_comes_to_ping(&two, &address);
    other.ip(&["address", "add", "10.1.0.200/24", "dev", "net1"]);
    assert!(!pings(&other, &address), "another VLAN is another network");

    lab.call("DEL", "blue", &one).nothing();
    drop(two);
    lab.call("DEL", "green", &other).nothing();
    lab.assert_becomes(&before);
    lab.wait_for_free(3);
    lab.assert_invariants(&clean);
    for _ in 0..2 {
        lab.add("green", &one);
        lab.call("DEL", "green", &one).nothing();
    }
    lab.assert_becomes(&before);
}

/// A PF checks source addresses unless the network allows others, and does not support trunks.
#[test]
fn igb_pf_enforces_network_rights() {
    let lab = Lab::start(1);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let pod = Netns::new("pod");
    let vf = lab.add("open", &pod).vf;
    assert_eq!(lab.card.port(vf)["spoofchk"], false);
    lab.assert_invariants(&clean);
    lab.call("DEL", "open", &pod).nothing();
    lab.assert_becomes(&before);

    let (_, refused) = lab.call("ADD", "trunked", &pod).error();
    assert!(refused.contains("trunk of VLANs 300, 301 "), "{refused}");
    lab.assert_becomes(&before);
    lab.wait_for_free(1);
}

/// A VF without a record returns to the host with its baseline, and its PF no longer restricts it.
#[test]
fn igb_vf_without_record_is_restored() {
    let mut lab = Lab::start(1);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let pod = Netns::new("pod");
    let vf = lab.add("blue", &pod).vf;
    assert_eq!(lab.card.port(vf)["vlan_list"][0]["vlan"], 100);
    lab.lose_records();
    drop(pod);
    wait_for("the VF on the host", LIMIT, || lab.vf_in(&lab.host, vf));
    lab.restart_agent();
    lab.assert_becomes(&before);
    lab.wait_for_free(1);
    lab.assert_invariants(&clean);
}

/// The number of VFs follows the DPU's configuration from 0 via 7 to 3, but never while one is in use.
#[test]
fn igb_vf_number_follows_the_dpu() {
    let lab = Lab::start(7);
    let clean = lab.clean();
    let pod = Netns::new("pod");
    lab.add("blue", &pod);
    lab.want(3);
    let reported = || lab.agent.log().contains("keeps its 7 VFs instead of 3");
    wait_for("the agent's word on a VF in use", LIMIT, || reported().then_some(()));
    assert_eq!(lab.card.count(), 7);
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.wait_for_free(3);
    let clean = lab.clean();
    lab.add("blue", &pod);
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.wait_for_free(3);
    lab.assert_invariants(&clean);
}
