//! Packages installed, upgraded and removed: in empty trees, and in a copy of this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::run;

use super::{
    copy::COPY,
    making::{Made, output_of, text},
    tree::{AGENT_FILE, ALL, LINK, Tree, architecture, debs},
};

/// A later version of a package with another shipped configuration.
fn later(deb: &Path, configuration: &str, folder: &Path) -> PathBuf {
    let (tree, later) = (folder.join("later"), folder.join("later.deb"));
    output_of(Command::new("dpkg-deb").arg("-R").arg(deb).arg(&tree));
    let control = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
    let lines = control
        .lines()
        .map(|line| if line.starts_with("Version: ") { "Version: 99" } else { line });
    fs::write(
        tree.join("DEBIAN/control"),
        lines.map(|line| format!("{line}\n")).collect::<String>(),
    )
    .unwrap();
    let text = fs::read_to_string(tree.join(configuration)).unwrap();
    fs::write(tree.join(configuration), format!("{text}# later\n")).unwrap();
    output_of(
        Command::new("dpkg-deb").args(["-Znone", "--root-owner-group", "-b"]).arg(tree).arg(&later),
    );
    later
}

#[test]
fn purge_removes_files_and_state() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    let before = tree.files();
    tree.installs(&debs(&made));
    assert_eq!(fs::read_link(tree.path(LINK)).unwrap(), Path::new("/usr/lib/cni/host-shim"));
    let of_podman = tree.path("usr/lib/netavark/dpu-offload");
    assert_eq!(fs::canonicalize(of_podman).unwrap(), tree.path("usr/lib/cni/host-shim"));
    tree.write("var/lib/dpu-offload/agent/records.redb", "");
    tree.write("var/lib/dpu-offload/agent-dpu-2/records.redb", "");
    tree.write("var/lib/dpu-offload/service/journal.redb", "");
    tree.write("etc/dpu-offload/host-shim-dpu-2.toml", "");
    tree.write("etc/dpu-offload/networks.d/storage.conf", "");
    // The stand-in for the agent prints its last argument, which counts as a pod.
    let mut remove = tree.dpkg_command(&[&["--remove"], &ALL[..]].concat());
    output_of(remove.env("DPU_OFFLOAD_REMOVE", "yes"));
    assert!(
        tree.path("var/lib/dpu-offload/agent/records.redb").exists()
            && tree.path(AGENT_FILE).exists()
    );
    assert!(fs::symlink_metadata(tree.path(LINK)).is_err());
    tree.dpkg_does(&[&["--purge"], &ALL[..]].concat());
    let left: Vec<_> = tree.files().difference(&before).cloned().collect();
    let folders_of_all = ["", "etc", "opt", "usr", "var"];
    assert!(
        left.iter().all(|left| folders_of_all.contains(&left.split('/').next().unwrap())),
        "{left:?}"
    );
    assert!(!left.iter().any(|left| left.contains("offload") || left.contains("cni")), "{left:?}");
}

#[test]
fn upgrade_keeps_user_changes_and_plugin() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    let folder = tempfile::tempdir().unwrap();
    let deb = made.deb("dpu-offload-host", &architecture());
    tree.installs(std::slice::from_ref(&deb));
    tree.write(AGENT_FILE, "# mine\n");
    let inode =
        |path: &str| output_of(Command::new("stat").args(["-c", "%i"]).arg(tree.path(path)));
    let (plugin, link) = (inode("usr/lib/cni/host-shim"), inode(LINK));
    tree.installs(&[later(&deb, AGENT_FILE, folder.path())]);
    assert_eq!(tree.read(AGENT_FILE), "# mine\n");
    assert!(tree.read(&format!("{AGENT_FILE}.dpkg-dist")).ends_with("# later\n"));
    // Neither file was overwritten: each was replaced by another file with its name.
    assert!(inode("usr/lib/cni/host-shim") != plugin && inode(LINK) != link);
    assert!(
        tree.path("usr/lib/cni/host-shim").exists()
            && !tree.path("opt/cni/bin/host-shim.new").exists()
    );
}

#[test]
fn package_scripts_are_idempotent() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.runs(&[]);
    tree.installs(&debs(&made));
    let once = tree.files();
    tree.installs(&debs(&made));
    assert_eq!(tree.files(), once);
    assert!(tree.calls().iter().all(|call| call == "systemctl daemon-reload"));
}

#[test]
fn foreign_plugin_file_stays() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.write(LINK, "by hand");
    let deb = made.deb("dpu-offload-host", &architecture());
    let printed = tree.installs(&[deb]);
    assert!(
        printed.contains("/opt/cni/bin/host-shim stays") && printed.contains("dpkg-reconfigure"),
        "{printed}"
    );
    tree.set_program("host-shim-agent", "exit 3");
    tree.dpkg_does(&["--purge", "dpu-offload-host"]);
    assert_eq!(tree.read(LINK), "by hand");
}

#[test]
fn failed_installation_can_be_resumed() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.write("opt/cni", "a file where a folder should be");
    let deb = made.deb("dpu-offload-host", &architecture());
    let output = tree.dpkg(&["--install", deb.to_str().unwrap()]);
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("a link to /usr/lib/cni/host-shim"), "{printed}");
    assert!(printed.contains("go on with: dpkg --configure dpu-offload-host"), "{printed}");
    fs::remove_file(tree.path("opt/cni")).unwrap();
    tree.dpkg_does(&["--configure", "dpu-offload-host"]);
    assert!(fs::symlink_metadata(tree.path(LINK)).is_ok());
}

#[test]
fn upgrade_restarts_only_running_agents() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.write("etc/dpu-offload/host-shim-dpu-2.toml", "");
    tree.write("etc/dpu-offload/host-shim-dpu-3.toml", "");
    tree.runs(&["dpu-offload-agent.service", "dpu-offload-agent@dpu-3.service"]);
    tree.installs(&[made.deb("dpu-offload-host", &architecture())]);
    let restarted = ["dpu-offload-agent.service", "dpu-offload-agent@dpu-3.service"]
        .map(|unit| format!("deb-systemd-invoke restart {unit}"));
    assert_eq!(tree.calls(), [&["systemctl daemon-reload".to_owned()], &restarted[..]].concat());
}

#[test]
fn refused_configuration_keeps_old_agent_running() {
    let (tree, made) = (Tree::new(), Made::of_programs());
    tree.runs(&["dpu-offload-agent.service"]);
    let deb = made.deb("dpu-offload-host", &architecture());
    let output = tree.dpkg(&["--install", deb.to_str().unwrap()]);
    let printed = text(&output);
    // The file names no DPU.
    assert!(!output.status.success() && printed.contains("as before"), "{printed}");
    assert!(printed.contains("`endpoint`") && printed.contains("dpkg --configure"), "{printed}");
    assert_eq!(tree.calls(), ["systemctl daemon-reload"]);
    tree.set_program("host-shim-agent", "exit 0");
    tree.dpkg_does(&["--configure", "dpu-offload-host"]);
    assert!(
        tree.calls().contains(&"deb-systemd-invoke restart dpu-offload-agent.service".to_owned())
    );
}

#[test]
fn upgrade_checks_with_the_name_of_the_node() {
    let (tree, made) = (Tree::new(), Made::of_programs());
    tree.runs(&["dpu-offload-agent.service"]);
    tree.has_environment("NODE_NAME=node-7");
    tree.write(AGENT_FILE, "[dpu]\nendpoint = \"192.0.2.1:7443\"\nname = \"dpu-${NODE_NAME}\"\n");
    let output =
        tree.dpkg(&["--install", made.deb("dpu-offload-host", &architecture()).to_str().unwrap()]);
    let printed = text(&output);
    // The check stops at the missing certificates.
    assert!(printed.contains("`tls`") && !printed.contains("NODE_NAME"), "{printed}");
}

#[test]
fn removal_stops_programs_and_names_conflist() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.runs(&["dpu-offload-agent.service"]);
    tree.installs(&[made.deb("dpu-offload-host", &architecture())]);
    tree.set_program("host-shim-agent", "exit 3");
    tree.calls();
    tree.write("etc/cni/net.d/10-dpu-offload.conflist", r#"{"plugins": [{"type": "host-shim"}]}"#);
    tree.write(AGENT_FILE, "[[host_port]]\nnetwork = \"blue\"\n");
    let printed = tree.dpkg_does(&["--remove", "dpu-offload-host"]);
    assert!(printed.contains("etc/cni/net.d/10-dpu-offload.conflist, too"), "{printed}");
    let of_host = format!("the host ports of {} stay", tree.path(AGENT_FILE).display());
    assert!(printed.contains(&of_host), "{printed}");
    let stopped = ["socket", "service"]
        .map(|kind| format!("deb-systemd-invoke stop dpu-offload-agent.{kind}"));
    assert_eq!(tree.calls(), [&stopped[..], &["systemctl daemon-reload".to_owned()]].concat());
}

#[test]
fn units_start_packaged_programs() {
    let (tree, made) = (Tree::new(), Made::of_stand_ins());
    tree.installs(&debs(&made));
    let units = output_of(
        Command::new("find").arg(tree.path("usr/lib/systemd/system")).args(["-name", "*.service"]),
    );
    assert_eq!(units.lines().count(), 4, "{units}");
    for unit in units.lines() {
        let text = fs::read_to_string(unit).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap();
        assert!(tree.path(line.split(' ').next().unwrap()).exists(), "{unit}: {line}");
    }
}

/// Runs a script in the copy, with its own namespaces.
const RUN: &str = r#"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
exec chroot . /bin/bash -e -c 'cd /made && . ./script'
"#;

/// Commands of the CI example after the installation of the packages.
fn workflow() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/ci/pods.yml");
    let workflow = fs::read_to_string(file).unwrap();
    let steps: Vec<_> = workflow.split("- run: ").skip(1).collect();
    let [install, attach] = steps[..] else { panic!("{workflow}") };
    [install, attach.trim_start_matches("|\n")].concat()
}

#[test]
fn ci_example_runs_pods_on_a_dpu() {
    let made = Made::of_programs();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let after = "dpuctl --config \"$DPUCTL_CONFIG\" get attachments\ndpu-offload-lab down\n";
    fs::write(&script, format!("{}\n{after}", workflow())).unwrap();
    // apt cannot switch to another user here, and cannot download older versions than the machine has.
    let apt = folder.path().join("apt.conf");
    fs::write(&apt, "APT::Sandbox::User \"root\";\nAPT::Get::Upgrade \"false\";\n").unwrap();
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c"]);
    copy.arg([COPY, RUN].concat()).arg("copy");
    copy.args(made.debs()).arg(&script).arg(&apt).env("APT_CONFIG", "/made/apt.conf");
    // The lab must use the installed programs.
    let output = run(copy.env_remove("OFFLOAD_BIN_DIR"));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    for expected in ["3 received", "Attached", "lab is down"] {
        assert!(printed.contains(expected), "{expected:?} is not in:\n{printed}");
    }
}
