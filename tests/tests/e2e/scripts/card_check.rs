//! `hack/card-check` in a lab.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use e2e::{
    card_check::{assert_complete, rows},
    run,
};

use super::{HackLab, assert_prints, dpuctl, fails, hack, succeeds, text};

/// Lock for hack/card-check, whose namespaces have the same names in every lab.
fn card_check_turn() -> File {
    let turn = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("card-check")).unwrap();
    turn.lock().unwrap();
    turn
}

/// Runs `hack/card-check` in a lab. Returns its report and whether it succeeded.
fn card_check(lab: &HackLab, arguments: &[&str], variables: &[(&str, &str)]) -> (String, bool) {
    let _turn = card_check_turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let mut check = hack("card-check");
    check.envs(lab.environment()).envs(variables.iter().copied());
    let output = run(check.args(["--count", "2", "--to"]).arg(&file).args(arguments));
    let printed = text(&output);
    assert!(printed.contains("the report is in "), "{printed}");
    assert!(!text(&run(Command::new("ip").args(["netns", "list"]))).contains("card-check"));
    (fs::read_to_string(file).unwrap(), output.status.success())
}

#[test]
fn card_check_pings_with_each_setting() {
    let lab = HackLab::up(4);
    let environment = lab.environment();
    // An agent's socket may have any name.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("other.sock");
    symlink(&environment["AGENT_SOCKET"], &socket).unwrap();
    let variables = [("AGENT_SOCKET", socket.to_str().unwrap())];
    let (report, is_good) = card_check(&lab, &[], &variables);
    assert!(is_good, "{report}");
    // The software card has no rate tree, the fabric is a bridge, and kernels may lack VLANs and policing.
    let refused =
        ["egress share", "total egress", "ingress rules", "VLAN", "trunk", "egress limit"];
    assert_complete(&report, &refused.map(|setting| (setting, "refused: ")));
    let networks = text(&dpuctl(&environment, &["get", "networks"]));
    assert!(!networks.contains("card-check"), "{networks}");
}

/// A filter for bridges that drops long frames.
const SHORT_FRAMES: &str = "add table bridge short
add chain bridge short forward { type filter hook forward priority 0; }
add rule bridge short forward ip length > 8000 drop";

#[test]
fn card_check_leaves_another_checks_namespaces() {
    let lab = HackLab::up(4);
    let _turn = card_check_turn();
    let netns = |arguments: &[&str]| text(&run(Command::new("ip").arg("netns").args(arguments)));
    assert_eq!(netns(&["add", "card-check-2"]), "");
    let folder = tempfile::tempdir().unwrap();
    let mut check = hack("card-check");
    check.envs(lab.environment()).arg("--to").arg(folder.path().join("report"));
    let printed = fails(&mut check);
    let left = netns(&["list"]);
    assert_eq!(netns(&["delete", "card-check-2"]), "");
    assert!(left.contains("card-check-2"), "{left}");
    assert_prints(&printed, &["card-check-2 is there"]);
}

#[test]
fn card_check_reports_pings_without_answer() {
    let lab = HackLab::up(4);
    let dpu = format!("--net=/run/netns/{}", lab.environment()["DPU_NETNS"]);
    succeeds(Command::new("nsenter").args([&dpu, "nft", SHORT_FRAMES]));
    let (report, _) = card_check(&lab, &[], &[]);
    let rows = rows(&report);
    let of_long = rows["MTU 9000"];
    assert!(of_long.starts_with("accepted, but no answer to ping from 198.18."), "{report}");
    assert_eq!(rows["nothing special"], "works", "{report}");
}

#[test]
fn card_check_reports_failed_steps() {
    let lab = HackLab::up(1);
    let (report, is_good) = card_check(&lab, &["--host", "node-7"], &[]);
    assert!(!is_good, "{report}");
    let rows = rows(&report);
    // The second pod has no VF, and the baseline measurement has none of another host.
    let adds = rows["nothing special"];
    assert!(adds.starts_with("failed: ") && adds.contains("VFS_EXHAUSTED"), "{report}");
    let floor = rows["floor on the host: bare netlink into the pod, with two processes of ip"];
    assert!(floor.starts_with("failed: ") && floor.contains("node-7"), "{report}");
    assert!(!rows["CNI ADD"].contains("failed"), "{report}");
    let left = text(&dpuctl(&lab.environment(), &["get", "attachments"]));
    assert!(!left.contains("card-check"), "{left}");
}

#[test]
fn card_check_reports_a_silent_dpu() {
    let lab = HackLab::up(1);
    let (report, is_good) = card_check(&lab, &[], &[("DPUCTL_CONFIG", "/nonexistent")]);
    assert!(!is_good && report.contains("Nothing else was tried."), "{report}");
    assert!(report.contains("failed: ") && report.contains("/nonexistent"), "{report}");
}
