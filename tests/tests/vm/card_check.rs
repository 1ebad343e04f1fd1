//! `hack/card-check` on the kernel's simulated switchdev card.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{card_check::assert_complete, program, run};

/// Runs a shell script from the repository, with the lab's name and the programs.
fn shell(script: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let programs: PathBuf = program("dpuctl").parent().unwrap().into();
    let mut bash = Command::new("bash");
    bash.args(["-euc", script]).current_dir(root);
    let output = run(bash.env("OFFLOAD_LAB", "cardcheck").env("OFFLOAD_BIN_DIR", programs));
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {complained}");
    String::from_utf8(output.stdout).unwrap()
}

/// Takes the lab down on drop.
struct Down;

impl Drop for Down {
    fn drop(&mut self) {
        let _ = shell("hack/lab down");
    }
}

#[test]
fn card_check_reports_on_a_switchdev_card() {
    let _down = Down;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    shell("hack/lab up --vfs 4 --card netdevsim");
    let check = format!("hack/card-check --count 2 --to {}", file.display());
    shell(&format!("set -a; eval \"$(hack/lab env)\"; set +a; {check}"));
    let report = fs::read_to_string(file).unwrap();
    // The fabric is a bridge.
    assert_complete(&report, &[("ingress rules", "refused: ")]);
    assert!(report.contains("egress-rate"), "{report}");
    let left = shell("ip netns list; hack/lab down");
    assert!(!left.contains("card-check"), "{left}");
}
