//! Removal of the packages: refused while pods run, and state after a reinstallation.

use std::{
    fs::{self, File},
    process::Output,
};

use e2e::run;

use super::{
    making::{Made, output_of, text},
    tree::{AGENT_FILE, Tree, architecture, debs},
};

const HOST: &str = "dpu-offload-host";
const LAB: &str = "dpu-offload-lab";
const RECORDS: &str = "var/lib/dpu-offload/agent/records.redb";

/// An agent whose host has two pods.
const TWO_PODS: &str = r#"case "$*" in
    "status --config "*" --output containers") printf '%s\n' 3f0c5a9e77d1b 8a1b2c3d4e5f6 ;;
    *) exit 2 ;;
esac"#;

/// An agent whose host has no pods.
const NO_PODS: &str = "exit 0";

/// An agent that does not answer.
const SILENT: &str = "exit 3";

/// A tree with the host's package and this agent.
fn host(agent: &str) -> Tree {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.installs(&[made.deb(HOST, &architecture())]);
    tree.set_program("host-shim-agent", agent);
    tree
}

/// Whether the package is complete. After a refused removal dpkg keeps "deinstall ok installed".
fn is_installed(tree: &Tree) -> bool {
    tree.dpkg_does(&["--status", HOST]).contains("install ok installed")
}

/// Output lines of the package, without dpkg's.
fn own_lines(output: &Output) -> Vec<String> {
    let printed = text(output);
    let own = printed.lines().filter_map(|line| line.strip_prefix("dpu-offload-host: "));
    own.map(str::to_owned).collect()
}

#[test]
fn removal_is_refused_while_pods_run() {
    let tree = host(TWO_PODS);
    let output =
        run(tree.dpkg_command(&["--remove", HOST]).env("DEBIAN_FRONTEND", "noninteractive"));
    let own = own_lines(&output);
    assert!(!output.status.success() && is_installed(&tree), "{}", text(&output));
    let [line] = &own[..] else { panic!("{own:?}") };
    assert!(line.starts_with("not removed: 2 pods "), "{line}");
    assert!(line.contains("DPU_OFFLOAD_REMOVE=yes"), "{line}");
    // The attempt removes neither plugin nor unit.
    assert!(tree.path("opt/cni/bin/host-shim").symlink_metadata().is_ok());
}

#[test]
fn removal_is_refused_while_pods_are_unknown() {
    let tree = host(SILENT);
    tree.write(RECORDS, "");
    let output = tree.dpkg(&["--remove", HOST]);
    let own = own_lines(&output);
    assert!(!output.status.success() && is_installed(&tree), "{}", text(&output));
    assert!(own[0].starts_with("not removed: an unknown number of pods "), "{own:?}");
    assert!(own[0].contains("systemctl start dpu-offload-agent, "), "{own:?}");
}

#[test]
fn refused_removal_names_the_silent_agent() {
    let tree = host(SILENT);
    tree.write("etc/dpu-offload/host-shim-dpu-2.toml", "");
    tree.write("var/lib/dpu-offload/agent-dpu-2/records.redb", "");
    let own = own_lines(&tree.dpkg(&["--remove", HOST]));
    assert!(own[0].contains("systemctl start dpu-offload-agent@dpu-2, "), "{own:?}");
}

/// A tree with all packages, a host with two pods and a running card.
fn host_with_card() -> Tree {
    let tree = Tree::new();
    tree.installs(&debs(&Made::of_stand_ins()));
    tree.set_program("host-shim-agent", TWO_PODS);
    tree.runs(&["dpu-offload-card.service"]);
    tree
}

#[test]
fn refused_removal_stops_no_card() {
    let tree = host_with_card();
    let output = tree.dpkg(&["--remove", LAB, HOST]);
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("dpu-offload-lab: not removed: 2 pods of this host "), "{printed}");
    let calls = tree.calls();
    assert!(!calls.iter().any(|call| call.contains(" stop ")), "{calls:?}");
}

#[test]
fn forced_removal_stops_the_card() {
    let stops = |tree: &Tree| {
        let stop = "deb-systemd-invoke stop dpu-offload-card.service";
        tree.calls().iter().any(|call| call == stop)
    };
    let tree = host_with_card();
    output_of(tree.dpkg_command(&["--remove", LAB]).env("DPU_OFFLOAD_REMOVE", "yes"));
    assert!(stops(&tree));
    // One answer covers both packages.
    let tree = host_with_card();
    tree.preseed("dpu-offload-host dpu-offload-host/remove boolean true");
    tree.dpkg_does(&["--remove", LAB, HOST]);
    assert!(stops(&tree));
}

#[test]
fn removed_lab_leaves_no_drop_in() {
    const CARD: &str = "etc/systemd/system/dpu-offload-service.service.d/card.conf";
    let tree = Tree::new();
    tree.installs(&debs(&Made::of_stand_ins()));
    tree.write(CARD, "[Unit]\nRequires=dpu-offload-card.service\n");
    let printed = tree.dpkg_does(&["--remove", LAB]);
    assert!(printed.contains("card.conf, too") && !tree.path(CARD).exists(), "{printed}");
    assert!(!tree.path(CARD).parent().unwrap().exists());
}

#[test]
fn failed_removal_starts_again_what_ran() {
    let tree = host(NO_PODS);
    tree.write("etc/dpu-offload/host-shim-dpu-2.toml", "");
    let (first, second) = ("dpu-offload-agent.service", "dpu-offload-agent@dpu-2.service");
    tree.runs(&[first, second]);
    tree.does_not_stop(second);
    tree.calls();
    let output = tree.dpkg(&["--remove", HOST]);
    assert!(!output.status.success() && is_installed(&tree), "{}", text(&output));
    let start = format!("systemctl start {first} {second}");
    let calls = tree.calls();
    assert_eq!(calls.last(), Some(&start), "{calls:?}");
    // The next installation does not start anything because of this.
    tree.installs(&[Made::of_stand_ins().deb(HOST, &architecture())]);
    assert!(!tree.calls().contains(&start));
}

#[test]
fn interrupted_removal_starts_again_at_configure() {
    let tree = host(NO_PODS);
    let unit = "dpu-offload-agent.service";
    tree.runs(&[unit]);
    output_of(tree.script("dpu-offload-host.prerm").arg("remove"));
    tree.calls();
    output_of(tree.script("dpu-offload-host.postinst").arg("configure"));
    assert!(tree.calls().contains(&format!("systemctl start {unit}")));
}

#[test]
fn silent_agent_may_keep_records_elsewhere() {
    let tree = host(SILENT);
    for line in [
        "state_dir = \"/data/agent\"",
        "state_dir = '/data/agent'",
        "\"state_dir\" = \"/data/agent\"",
        "state_dir = \"/data/${NODE_NAME}\"",
    ] {
        tree.write(AGENT_FILE, &format!("{line}\n"));
        let output = tree.dpkg(&["--remove", HOST]);
        assert!(!output.status.success() && is_installed(&tree), "{line}: {}", text(&output));
    }
    tree.write(AGENT_FILE, "# state_dir = \"/data/agent\"\n");
    tree.dpkg_does(&["--remove", HOST]);
}

#[test]
fn agents_are_asked_by_their_node() {
    let tree = host(r#"[ "$NODE_NAME" = node-7 ]"#);
    tree.write(RECORDS, "");
    tree.has_environment("LANG=C NODE_NAME=node-7 TZ=UTC");
    tree.dpkg_does(&["--remove", HOST]);
}

#[test]
fn purge_spares_another_agent() {
    let tree = host(NO_PODS);
    let socket = "run/dpu-offload/agent.sock";
    for path in [RECORDS, socket] {
        tree.write(path, "");
    }
    tree.dpkg_does(&["--remove", HOST]);
    let records = File::open(tree.path(RECORDS)).unwrap();
    records.lock().unwrap();
    let printed = tree.dpkg_does(&["--purge", HOST]);
    assert!(printed.contains("another agent uses it"), "{printed}");
    assert!(tree.path(RECORDS).exists() && tree.path(socket).exists());
}

#[test]
fn removal_without_pods_needs_no_leave() {
    for agent in [NO_PODS, SILENT] {
        let tree = host(agent);
        tree.dpkg_does(&["--remove", HOST]);
        assert!(!tree.path("usr/lib/cni/host-shim").exists());
    }
}

#[test]
fn removal_is_forced_by_the_environment() {
    let tree = host(TWO_PODS);
    output_of(tree.dpkg_command(&["--remove", HOST]).env("DPU_OFFLOAD_REMOVE", "yes"));
    assert!(!tree.path("usr/lib/cni/host-shim").exists());
}

#[test]
fn removal_is_forced_by_a_preseeded_answer() {
    let tree = host(TWO_PODS);
    tree.preseed("dpu-offload-host dpu-offload-host/remove boolean false");
    assert!(!tree.dpkg(&["--remove", HOST]).status.success() && is_installed(&tree));
    tree.preseed("dpu-offload-host dpu-offload-host/remove boolean true");
    tree.dpkg_does(&["--remove", HOST]);
    assert!(!tree.path("usr/lib/cni/host-shim").exists());
    // It stays until a purge, also for later installations.
    tree.installs(&[Made::of_stand_ins().deb(HOST, &architecture())]);
    tree.set_program("host-shim-agent", TWO_PODS);
    tree.dpkg_does(&["--remove", HOST]);
    tree.dpkg_does(&["--purge", HOST]);
    let made = Made::of_stand_ins();
    tree.installs(&[made.deb(HOST, &architecture())]);
    tree.set_program("host-shim-agent", TWO_PODS);
    assert!(!tree.dpkg(&["--remove", HOST]).status.success());
}

#[test]
fn upgrades_are_never_refused() {
    let tree = host(TWO_PODS);
    for arguments in [
        &["upgrade", "99"][..],
        &["deconfigure", "in-favour", "other", "1"],
        &["failed-upgrade", "0"],
    ] {
        let output = run(tree.script("dpu-offload-host.prerm").args(arguments));
        assert!(output.status.success() && text(&output).is_empty(), "{}", text(&output));
    }
    tree.installs(&[Made::of_stand_ins().deb(HOST, &architecture())]);
    assert!(is_installed(&tree));
}

#[test]
fn reinstalled_agent_is_enabled_as_before() {
    let tree = host(NO_PODS);
    let units = ["dpu-offload-agent.service", "dpu-offload-agent@dpu-2.service"];
    tree.write("etc/dpu-offload/host-shim-dpu-2.toml", "");
    let is_enabled = |unit: &str| tree.systemctl(&["is-enabled", unit]).status.success();
    for unit in units {
        let enabled = tree.systemctl(&["enable", unit]);
        assert!(enabled.status.success(), "{}", text(&enabled));
    }
    tree.dpkg_does(&["--remove", HOST]);
    assert!(!units.iter().any(|unit| is_enabled(unit)));
    let printed = tree.installs(&[Made::of_stand_ins().deb(HOST, &architecture())]);
    assert!(
        printed.contains("enabled again") && units.iter().all(|unit| is_enabled(unit)),
        "{printed}"
    );
    assert!(is_enabled("dpu-offload-agent.socket"));
    // A unit that was disabled by hand stays disabled.
    assert!(tree.systemctl(&["disable", units[1]]).status.success());
    tree.installs(&[Made::of_stand_ins().deb(HOST, &architecture())]);
    assert!(is_enabled(units[0]) && !is_enabled(units[1]));
}

#[test]
fn purge_keeps_keys_and_says_so() {
    let tree = host(NO_PODS);
    tree.write("etc/dpu-offload/tls/host.key", "a key");
    tree.write(RECORDS, "");
    let printed = tree.dpkg_does(&["--purge", HOST]);
    assert!(printed.contains("purged, except for keys and certificates in "), "{printed}");
    assert_eq!(tree.read("etc/dpu-offload/tls/host.key"), "a key");
    assert!(!tree.path(RECORDS).exists() && !tree.path(AGENT_FILE).exists());
}

#[test]
fn purge_removes_empty_folders_of_run() {
    let tree = host(NO_PODS);
    let folders = ["run/dpu-offload", "run/dpu-offload-dpu-2"].map(|folder| tree.path(folder));
    for folder in &folders {
        fs::create_dir_all(folder).unwrap();
    }
    tree.dpkg_does(&["--purge", HOST]);
    assert!(!folders.iter().any(|folder| folder.exists()));
}
