//! Every step of both sides fails in turn and leaves nothing behind.

use e2e::{FaultAction, Lab, Netns, Settings, scenarios::faults::every_step_fails_in_turn};

#[test]
fn each_failing_service_step_leaves_nothing() {
    every_step_fails_in_turn(&Settings::default(), "dpu-service");
}

#[test]
fn each_failing_agent_step_leaves_nothing() {
    every_step_fails_in_turn(&Settings::default(), "host-shim-agent");
}

#[test]
fn repeatedly_failing_vf_is_quarantined() {
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
    let reported = "`dpuctl clear-quarantine pf0vf0`";
    assert!(lab.operator().output(&["status"]).contains(reported));
    let _ = lab.operator().output(&["clear-quarantine", "pf0vf0"]);
    assert!(!lab.operator().output(&["status"]).contains(reported));
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}
