//! Every step of both sides fails in turn and leaves nothing behind.

use e2e::{FaultAction, Lab, Netns, Settings, scenarios::faults::every_step_fails_in_turn};

#[test]
fn every_step_of_the_service_fails_in_turn_and_leaves_a_clean_slate() {
    every_step_fails_in_turn(&Settings::default(), "dpu-service");
}

#[test]
fn every_step_of_the_agent_fails_in_turn_and_leaves_a_clean_slate() {
    every_step_fails_in_turn(&Settings::default(), "host-shim-agent");
}

#[test]
fn a_vf_that_fails_again_and_again_is_set_aside_until_an_operator_clears_it() {
    let lab = Lab::start(&Settings { quarantine_after: 2, ..Settings::with_vfs(1) });
    let pod = Netns::new("pod");
    for _ in 0..2 {
        lab.arm("dpu-service", FaultAction::Fail, "fabric-join");
        lab.add("blue", &pod, "eth0").fails(115, &["fabric-join"]);
    }
    let vf = &lab.operator().get("vfs")[0];
    assert_eq!(vf["state"], "VF_STATE_QUARANTINED", "{vf}");
    assert!(vf["detail"].as_str().unwrap().contains("fabric-join"), "{vf}");
    lab.add("blue", &pod, "eth0").fails(102, &["default"]);
    lab.status().nothing();
    let told = "`dpuctl clear-quarantine pf0vf0`";
    assert!(lab.operator().says(&["status"]).contains(told));
    let _ = lab.operator().says(&["clear-quarantine", "pf0vf0"]);
    assert!(!lab.operator().says(&["status"]).contains(told));
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}
