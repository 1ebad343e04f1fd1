//! A tree for installing packages. Only the programs that scripts call are this machine's.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use e2e::run;
use tempfile::TempDir;

use super::making::{Made, output_of, text};

pub(super) const ALL: [&str; 4] =
    ["dpu-offload-host", "dpu-offload-dpu", "dpuctl", "dpu-offload-lab"];
pub(super) const AGENT_FILE: &str = "etc/dpu-offload/host-shim.toml";
pub(super) const LINK: &str = "opt/cni/bin/host-shim";

/// A fake of a running systemd: it records requests, and reports the units in `running` as active. The real systemd
/// answers questions about the tree's files.
const SYSTEMD: &str = r#"#!/bin/sh
case "$*" in *--root=*) PATH=${PATH#*:} exec "${0##*/}" "$@" ;; esac
echo "${0##*/} $*" >>"$STUBS/calls"
case "$*" in
    *is-active*) grep -qx "${*##* }" "$STUBS/running" ;;
    "show "*) cat "$STUBS/environment" 2>/dev/null ;;
    "stop "*) ! grep -qsx "${*##* }" "$STUBS/stuck" ;;
esac
"#;

/// A folder with only dpkg's records. Scripts run with this machine's programs.
pub(super) struct Tree {
    root: TempDir,
    stubs: TempDir,
}

impl Tree {
    pub(super) fn new() -> Self {
        let tree = Self { root: tempfile::tempdir().unwrap(), stubs: tempfile::tempdir().unwrap() };
        let records = tree.path("var/lib/dpkg");
        fs::create_dir_all(records.join("info")).unwrap();
        fs::create_dir_all(records.join("updates")).unwrap();
        fs::write(records.join("status"), "").unwrap();
        // Scripts of a tree use the tree's debconf.
        fs::create_dir_all(tree.path("var/cache/debconf")).unwrap();
        fs::create_dir_all(tree.path("etc")).unwrap();
        assert!(fs::copy("/etc/debconf.conf", tree.path("etc/debconf.conf")).unwrap() > 0);
        for name in ["systemctl", "deb-systemd-invoke"] {
            let stub = tree.stubs.path().join(name);
            fs::write(&stub, SYSTEMD).unwrap();
            fs::set_permissions(stub, fs::Permissions::from_mode(0o755)).unwrap();
        }
        tree
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Gives the tree a systemd that runs these units.
    pub(super) fn runs(&self, units: &[&str]) {
        fs::create_dir_all(self.path("run/systemd/system")).unwrap();
        fs::write(self.stubs.path().join("running"), units.join("\n")).unwrap();
    }

    /// Sets variables of the tree's units.
    pub(super) fn has_environment(&self, variables: &str) {
        fs::write(self.stubs.path().join("environment"), variables).unwrap();
    }

    /// Makes the tree's systemd fail to stop this unit.
    pub(super) fn does_not_stop(&self, unit: &str) {
        fs::write(self.stubs.path().join("stuck"), unit).unwrap();
    }

    /// Requests to systemd since the last call.
    pub(super) fn calls(&self) -> Vec<String> {
        let file = self.stubs.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        let is_deed = |call: &&str| !call.contains("is-active") && !call.contains(" show ");
        calls.lines().filter(is_deed).map(str::to_owned).collect()
    }

    pub(super) fn dpkg(&self, arguments: &[&str]) -> Output {
        run(&mut self.dpkg_command(arguments))
    }

    /// dpkg for this tree, not started.
    pub(super) fn dpkg_command(&self, arguments: &[&str]) -> Command {
        let path = format!("{}:{}", self.stubs.path().display(), env::var("PATH").unwrap());
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root").arg(self.root.path()).env("PATH", path).env("STUBS", self.stubs.path());
        // The tree contains none of the packages' dependencies.
        dpkg.args([
            "--force-script-chrootless",
            "--force-depends",
            "--force-confold",
            "--log=/dev/null",
        ]);
        dpkg.env_remove("DPU_OFFLOAD_REMOVE").args(arguments);
        dpkg
    }

    /// Preseeds an answer in debconf, like a provisioning tool.
    pub(super) fn preseed(&self, line: &str) {
        let mut preseed = Command::new("sh");
        preseed.args(["-c", "echo \"$0\" | debconf-set-selections", line]);
        output_of(preseed.env("DPKG_ROOT", self.root.path()));
    }

    /// Runs the real systemctl on the tree's files.
    pub(super) fn systemctl(&self, arguments: &[&str]) -> Output {
        let root = format!("--root={}/", self.root.path().display());
        run(Command::new("systemctl").arg(root).args(arguments))
    }

    /// A maintainer script of an installed package.
    pub(super) fn script(&self, name: &str) -> Command {
        let path = format!("{}:{}", self.stubs.path().display(), env::var("PATH").unwrap());
        let mut script = Command::new(self.path("var/lib/dpkg/info").join(name));
        script.env("PATH", path).env("STUBS", self.stubs.path());
        script.env_remove("DPU_OFFLOAD_REMOVE").env("DPKG_ROOT", self.root.path());
        script
    }

    /// Replaces a program by a shell script.
    pub(super) fn set_program(&self, name: &str, script: &str) {
        self.write(&format!("usr/bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(&format!("usr/bin/{name}")), mode).unwrap();
    }

    pub(super) fn dpkg_does(&self, arguments: &[&str]) -> String {
        let output = self.dpkg(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    pub(super) fn installs(&self, debs: &[PathBuf]) -> String {
        let mut arguments = vec!["--install"];
        arguments.extend(debs.iter().map(|deb| deb.to_str().unwrap()));
        self.dpkg_does(&arguments)
    }

    pub(super) fn files(&self) -> BTreeSet<String> {
        let mut find = Command::new("find");
        find.arg(self.root.path()).args([
            "-path",
            "*/var/lib/dpkg",
            "-prune",
            "-o",
            "-printf",
            "%P\n",
        ]);
        output_of(&mut find).lines().map(str::to_owned).collect()
    }
}

pub(super) fn architecture() -> String {
    output_of(Command::new("dpkg").arg("--print-architecture")).trim().to_owned()
}

pub(super) fn debs(made: &Made) -> Vec<PathBuf> {
    ALL.map(|package| made.deb(package, &architecture())).into()
}
