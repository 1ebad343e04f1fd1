//! Every step of a program fails.

use std::path::Path;

use super::figure;
use crate::{FaultAction, Lab, Netns, Settings, process::steps};

/// Whether the armed fault struck: the program has deleted its file.
fn struck(file: &Path) -> bool {
    !file.exists()
}

/// Every step of the program `name` fails in turn and leaves nothing behind.
///
/// # Panics
/// If anything remains, or a step never runs.
pub fn every_step_fails_in_turn(settings: &Settings, name: &str) {
    // With one VF, each failure is followed by a success of the same VF, so it is not quarantined.
    let lab = Lab::start(&Settings { vfs: 1, pool: 1, ..settings.clone() });
    let steps = steps(name);
    for step in &steps {
        let pod = Netns::new("pod");
        let armed = lab.arm(name, FaultAction::Fail, step);
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
    figure(steps.len(), "steps that failed, and were undone on both sides");
}
