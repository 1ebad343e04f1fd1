//! The Arm machine is reset while pods run: its kernel forgets everything, its disk does not.

use std::{thread, time::Duration};

use e2e::{ArmLab, Netns, Stopwatch, wait_for};

use crate::{
    LIMIT,
    pair::{Pair, addresses, ids},
    settings,
};

/// Resets the machine and waits until it has forgotten its bridge.
fn reset(lab: &ArmLab, pair: &Pair) -> Stopwatch {
    lab.dpu.reset();
    let start = Stopwatch::start();
    wait_for("silence", LIMIT, || (!pair.reach()).then_some(()));
    start
}

#[test]
fn pods_ping_again_after_dpu_reset() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    let (before, session, boot) = (ids(&lab), lab.session().unwrap(), lab.dpu.boot_id());
    let indices = [&pair.a, &pair.b].map(|pod| pod.json("ip", &["link", "show", "eth0"]));

    let start = reset(&lab, &pair);
    pair.assert_reach();
    println!("after a reset, pods ping again in {:.1} s", start.elapsed().as_secs_f64());
    wait_for("another session", LIMIT, || lab.session().filter(|other| *other != session));
    println!("after a reset, the agent is connected in {:.1} s", start.elapsed().as_secs_f64());

    assert_ne!(lab.dpu.boot_id(), boot);
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    // No command was sent to the pods.
    assert_eq!([&pair.a, &pair.b].map(|pod| pod.json("ip", &["link", "show", "eth0"])), indices);
    pair.detach(&lab);
}

#[test]
fn detach_during_dpu_boot_frees_the_vf() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    reset(&lab, &pair);
    lab.del("blue", &pair.a, "eth0").nothing();
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    lab.assert_invariants();
    lab.del("blue", &pair.b, "eth0").nothing();
    lab.assert_clean_slate();
}

/// Attaches are in progress when the machine is reset; whatever their answers, nothing leaks.
#[test]
fn dpu_reset_during_attaches_leaks_nothing() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    let pods = [Netns::new("c"), Netns::new("d")];
    let answers = thread::scope(|scope| {
        let attaching = pods.each_ref().map(|pod| scope.spawn(|| lab.add("blue", pod, "eth0")));
        lab.dpu.reset();
        attaching.map(|attaching| attaching.join().unwrap())
    });
    for (pod, answer) in pods.iter().zip(&answers) {
        if !answer.status.success() {
            lab.del("blue", pod, "eth0").nothing();
        }
    }
    pair.assert_reach();
    lab.wait_until_good();
    let attached = answers.iter().filter(|answer| answer.status.success()).count();
    wait_for("no half-made attachment", LIMIT, || (ids(&lab).len() == 2 + attached).then_some(()));
    lab.assert_invariants();

    for pod in &pods {
        let again = lab.add("blue", pod, "eth0").result();
        assert_eq!(addresses(&again).len(), 2, "{again}");
    }
    lab.assert_invariants();
    for pod in &pods {
        lab.del("blue", pod, "eth0").nothing();
    }
    pair.detach(&lab);
}

#[test]
fn dpu_reset_during_boot_is_harmless() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    reset(&lab, &pair);
    // Reset while its kernel boots, and again when the service begins to recover.
    let seen = lab.dpu.console().len();
    lab.dpu.reset();
    let begun = || lab.dpu.console()[seen..].contains("dpu_service").then_some(());
    wait_for("a first word of the service", LIMIT, begun);
    lab.dpu.reset();
    pair.assert_reach();
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}

/// The attach is answered once the machine is up, or fails at once because there is no DPU.
#[test]
fn attach_during_dpu_boot_fails_fast() {
    let lab = ArmLab::start(&settings());
    let pair = Pair::attach(&lab);
    reset(&lab, &pair);
    let pod = Netns::new("pod");
    let start = Stopwatch::start();
    let answer = lab.add("blue", &pod, "eth0");
    assert!(start.unstalled() < Duration::from_secs(15), "{:?}", start.unstalled());
    if !answer.status.success() {
        let (code, printed) = answer.error();
        assert_eq!(code, 11, "{printed}");
    }
    pair.assert_reach();
    lab.wait_until_good();
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    pair.detach(&lab);
}
