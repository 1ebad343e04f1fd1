//! Every step fails in turn, after its work is done.

use std::{path::PathBuf, process::Command};

use host_shim::mover::{INWARD_STEPS, OUTWARD_STEPS};

use crate::{
    stage::{Stage, assert_clean, assert_in_pod, spec},
    together,
};

/// A file that the process with faults creates.
const BEGUN: &str = "begun";

fn with_fault(step: &str, act: impl FnOnce()) {
    let folder = PathBuf::from(std::env::var_os("OFFLOAD_FAULTS").expect("set by the test"));
    std::fs::write(folder.join(format!("fail-{step}")), "").unwrap();
    act();
    assert!(!folder.join(format!("fail-{step}")).exists(), "the fault of {step} struck");
}

/// Faults are read from the environment, which a test can only set for a process of its own.
fn in_process_with_faults(test: &str) -> bool {
    if let Some(folder) = std::env::var_os("OFFLOAD_FAULTS") {
        std::fs::write(PathBuf::from(folder).join(BEGUN), "").unwrap();
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("OFFLOAD_FAULTS", folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(folder.path().join(BEGUN).exists(), "{test} is no test");
    false
}

#[test]
fn failed_step_in_leaves_nothing() {
    if !in_process_with_faults("faults::failed_step_in_leaves_nothing") {
        return;
    }
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    for step in INWARD_STEPS {
        with_fault(step.name(), || {
            let failed = stage.vf_move(&spec).move_in().unwrap_err();
            assert_eq!(failed.step, step.name());
            assert!(failed.left.is_empty(), "{failed}");
        });
        assert_clean(&stage, &before);
    }
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
}

#[test]
fn failed_step_out_can_be_repeated() {
    if !in_process_with_faults("faults::failed_step_out_can_be_repeated") {
        return;
    }
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    for step in OUTWARD_STEPS {
        drop(stage.move_in(&spec));
        with_fault(step.name(), || {
            assert_eq!(stage.vf_move(&spec).move_out().unwrap_err().step, step.name());
        });
        stage.vf_move(&spec).move_out().unwrap();
        assert_clean(&stage, &before);
    }
}

#[test]
fn failed_step_leaves_nothing_of_both_vfs() {
    if !in_process_with_faults("faults::failed_step_leaves_nothing_of_both_vfs") {
        return;
    }
    let (stage, specs) = together::two(["eth0", "net1"]);
    let before = stage.host.links();
    for step in INWARD_STEPS {
        with_fault(step.name(), || {
            let failed = together::move_in(&stage, &specs).unwrap_err();
            assert_eq!((failed.step, failed.left.len()), (step.name(), 0));
        });
        assert_clean(&stage, &before);
    }
}
