//! Many pods at once.

use std::{thread, time::Duration};

use e2e::{
    CardSettings, Lab, Netns, Settings, Timeouts,
    scenarios::load::{as_many_pods_as_vfs_come_and_go, the_same_pod_is_attached_at_most_once},
    wait_for,
};

/// More pods than the agent moves at a time.
const PODS: u32 = 6;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn two_hundred_pods_come_and_go_by_sixteen_callers_at_once() {
    as_many_pods_as_vfs_come_and_go(&Settings::with_vfs(200));
}

#[test]
fn the_same_pod_added_and_deleted_by_many_callers_is_attached_at_most_once() {
    the_same_pod_is_attached_at_most_once(&Settings::default());
}

/// Of a card without an eswitch, whose carrier is the test's own to switch on.
#[test]
fn no_pod_waits_for_the_carrier_of_another() {
    let lab = Lab::start(&Settings {
        card: CardSettings { has_eswitch: false, ..CardSettings::default() },
        timeouts: Timeouts { carrier_ms: 5000, ..Timeouts::default() },
        networks: "[[network]]\nname = \"open\"\nallow_mac_spoofing = true\n".into(),
        ..Settings::with_vfs(PODS)
    });
    let pods: Vec<_> = (0..PODS).map(|_| Netns::new("pod")).collect();
    thread::scope(|scope| {
        let add = |pod| lab.add("open", pod, "eth0").result();
        let adds: Vec<_> = pods.iter().map(|pod| scope.spawn(move || add(pod))).collect();
        wait_for("all VFs to be in their pods", LIMIT, || {
            pods.iter().all(has_interface).then_some(())
        });
        assert!(adds.iter().all(|add| !add.is_finished()), "without a carrier nobody is done");
        for representor in lab.card.representors() {
            lab.card.dpu.ip(&["link", "set", representor["ifname"].as_str().unwrap(), "up"]);
        }
        adds.into_iter().for_each(|add| drop(add.join().unwrap()));
    });
    // Each is told just after its answer.
    let all_told = || lab.agent.log().matches("\"carrier\":true").count() == pods.len();
    wait_for("each with a carrier", LIMIT, || all_told().then_some(()));
}

fn has_interface(pod: &Netns) -> bool {
    pod.json("ip", &["link", "show"]).iter().any(|link| link["ifname"] == "eth0")
}
