//! `hack/lab up --dpu arm`, as a person runs it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{card_check::assert_complete, program, run};

/// A lab with its own name, taken down on drop.
struct HackLab {
    name: String,
}

impl HackLab {
    /// The output of a shell script with the lab's programs in its path, and `lab` for hack/lab.
    fn shell(&self, script: &str) -> String {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/lab");
        let programs: PathBuf = program("dpuctl").parent().unwrap().into();
        let mut bash = Command::new("bash");
        bash.args(["-euc", &format!("lab() {{ {} \"$@\"; }}; {script}", lab.display())]);
        let output = run(bash.env("OFFLOAD_LAB", &self.name).env("OFFLOAD_BIN_DIR", programs));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {printed}{complained}");
        printed
    }
}

impl Drop for HackLab {
    fn drop(&mut self) {
        self.shell("lab down");
    }
}

#[test]
fn card_check_reports_on_an_arm_dpu() {
    let lab = HackLab { name: format!("t{}c", std::process::id()) };
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/card-check");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    lab.shell("lab up --vfs 3 --dpu arm");
    lab.shell(&format!(
        "set -a; eval \"$(lab env)\"; set +a; {} --count 2 --to {}",
        check.display(),
        file.display()
    ));
    let report = std::fs::read_to_string(file).unwrap();
    // The fabric is a bridge, the emulated card has no rate tree, and the machine's kernel lacks policing and nftables.
    assert_complete(
        &report,
        &[
            ("ingress rules", "refused: "),
            ("egress share", "refused: "),
            ("total egress", "refused: "),
            ("egress limit", "refused: "),
            ("gateway on the DPU", "accepted, but no answer to ping from 198.18.0.1"),
        ],
    );
}

#[test]
fn arm_lab_works_and_leaves_nothing() {
    let lab = HackLab { name: format!("t{}", std::process::id()) };
    lab.shell("lab up --vfs 3 --dpu arm");
    let in_the_lab = |script: &str| lab.shell(&format!("eval \"$(lab env)\"; {script}"));
    assert_eq!(in_the_lab("$DPU_EXEC uname -m"), "aarch64\n");
    assert_eq!(in_the_lab("ip -n $HOST_NETNS -o link show p0v2").lines().count(), 1);
    // Also from outside, through the machine's own management port.
    let vfs = in_the_lab("export DPUCTL_CONFIG; $CNI_PATH/dpuctl get vfs");
    assert_eq!(vfs.matches("Free").count(), 3, "{vfs}");
    let process = in_the_lab("$DPU_EXEC pidof dpu-service");
    lab.shell("lab restart service");
    assert_ne!(in_the_lab("$DPU_EXEC pidof dpu-service"), process);
    lab.shell("lab restart agent; lab down");
    let left = lab.shell("ip netns list; ip link; ls /run");
    assert!(!left.contains(&lab.name), "{left}");
}
