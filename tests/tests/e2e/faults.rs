//! Every step of both sides fails in turn, and kills its program in turn: a clean slate after each.

use std::{path::Path, process::Command, time::Duration};

use e2e::{Lab, Netns, Settings, program, run, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

/// The steps that a program names itself, so that none is forgotten.
fn steps(name: &str) -> Vec<String> {
    let mut command = Command::new(program(name));
    let output = run(command.arg("--list-steps"));
    assert!(output.status.success(), "{output:?}");
    let steps: Vec<_> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert!(steps.len() > 3, "{steps:?}");
    steps
}

/// Whether the armed fault struck, which takes its file away.
fn struck(file: &Path) -> bool {
    !file.exists()
}

fn every_step_fails_in_turn(name: &str) {
    let lab = Lab::start(&Settings::default());
    for step in steps(name) {
        let pod = Netns::new("pod");
        let armed = lab.arm(name, "fail", &step);
        let added = lab.add("blue", &pod, "eth0");
        if !added.status.success() {
            assert!(struck(&armed), "{step}: {added:?}");
            lab.assert_clean_slate();
            let _ = lab.add("blue", &pod, "eth0").result();
        }
        lab.assert_invariants();
        let deleted = lab.del("blue", &pod, "eth0");
        if !deleted.status.success() {
            lab.del("blue", &pod, "eth0").nothing();
        }
        assert!(struck(&armed), "step {step} was never run");
        lab.assert_clean_slate();
    }
}

#[test]
fn every_step_of_the_service_fails_in_turn_and_leaves_a_clean_slate() {
    every_step_fails_in_turn("dpu-service");
}

#[test]
fn every_step_of_the_agent_fails_in_turn_and_leaves_a_clean_slate() {
    every_step_fails_in_turn("host-shim-agent");
}

/// A program dies after each of its steps; started again, it completes or releases what was under way.
fn every_step_kills_in_turn(name: &str) {
    let mut lab = Lab::start(&Settings::default());
    for step in steps(name) {
        let pod = Netns::new("pod");
        let armed = lab.arm(name, "kill", &step);
        let _ = lab.add("blue", &pod, "eth0");
        if !struck(&armed) {
            let _ = lab.del("blue", &pod, "eth0");
        }
        wait_for(&format!("{step} to kill {name}"), LIMIT, || struck(&armed).then_some(()));
        revive(&mut lab, name);
        lab.wait_until_good();
        lab.assert_invariants();
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.assert_invariants();
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

fn revive(lab: &mut Lab, name: &str) {
    if name == "dpu-service" {
        lab.service_ends();
        lab.start_service();
    } else {
        lab.agent_ends();
        lab.start_agent();
    }
}

#[test]
fn the_service_killed_after_every_step_recovers() {
    every_step_kills_in_turn("dpu-service");
}

#[test]
fn the_agent_killed_after_every_step_recovers() {
    every_step_kills_in_turn("host-shim-agent");
}

#[test]
fn a_vf_that_fails_again_and_again_is_set_aside_until_an_operator_clears_it() {
    let lab = Lab::start(&Settings { quarantine_after: 2, ..Settings::with_vfs(1) });
    let pod = Netns::new("pod");
    for _ in 0..2 {
        lab.arm("dpu-service", "fail", "fabric-join");
        lab.add("blue", &pod, "eth0").fails(115, &["fabric-join"]);
    }
    let vf = &lab.operator().get("vfs")[0];
    assert_eq!(vf["state"], "VF_STATE_QUARANTINED", "{vf}");
    assert!(vf["detail"].as_str().unwrap().contains("fabric-join"), "{vf}");
    lab.add("blue", &pod, "eth0").fails(102, &["default"]);
    lab.status().nothing();
    let _ = lab.operator().says(&["clear-quarantine", "pf0vf0"]);
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}
