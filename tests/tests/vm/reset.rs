//! The card is reset: its representors vanish and return, and pods keep their attachments.

use std::time::Duration;

use e2e::{
    Lab, Netns, Stopwatch,
    scenarios::{
        outages::{self, Pair, ids},
        pods::addresses,
    },
    wait_for,
};

use crate::{card::Device, netdevsim::settings};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn pods_get_vfs_back_after_card_reset() {
    outages::pods_get_vfs_back_after_card_reset(&settings());
}

/// Everything of an attachment is set again on the new card: VLAN, rate, addresses. Processes in the pod continue.
#[test]
fn card_reset_keeps_vlans_rates_and_processes() {
    let mut lab = Lab::start(&settings());
    let (a, b, limited) = (Netns::new("a"), Netns::new("b"), Netns::new("limited"));
    let _ = lab.add("red", &a, "eth0").result();
    let of_b = addresses(&lab.add("red", &b, "eth0").result());
    let _ = lab.add("limited", &limited, "eth0").result();
    let before = ids(&lab);
    let mut process = a.command("sleep").arg("infinity").spawn().unwrap();

    let start = Stopwatch::start();
    lab.reset_card();
    let reached = || of_b.iter().all(|address| a.pings(address)).then_some(());
    wait_for("the pods to reach each other again", LIMIT, reached);
    println!("reached again {:.1} s after the card was pulled", start.elapsed().as_secs_f32());
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    assert_eq!(Device::of(&lab).rates().len(), 1);
    assert!(process.try_wait().unwrap().is_none(), "the pod was restarted");
    process.kill().unwrap();
    process.wait().unwrap();
    for (pod, network) in [(&a, "red"), (&b, "red"), (&limited, "limited")] {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

/// As after a change of the eswitch mode, or a restart of the card's driver.
#[test]
fn returned_representors_are_programmed() {
    let lab = Lab::start(&settings());
    let pair = Pair::attach(&lab);
    let (before, device) = (ids(&lab), Device::of(&lab));
    device.set_mode("legacy");
    assert!(!pair.reach(), "there is no switch");
    device.set_mode("switchdev");
    wait_for("the pods to reach each other again", LIMIT, || pair.reach().then_some(()));
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}

#[test]
fn card_reset_without_service_is_repaired() {
    let mut lab = Lab::start(&settings());
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    lab.service.crash();
    lab.reset_card();
    lab.start_service();
    wait_for("the pods to reach each other again", LIMIT, || pair.reach().then_some(()));
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}
