//! Open vSwitch for one test: a database and a daemon of its own, whose userspace datapath needs no module.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{TestNetns, eventually};

/// What Debian's package has put there.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Both of its programs, which end with this.
pub(crate) struct OpenVswitch {
    netns: PathBuf,
    folder: TempDir,
    database: Option<Child>,
    daemon: Option<Child>,
}

impl OpenVswitch {
    /// Starts both in a namespace.
    pub(crate) fn start(netns: &TestNetns) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut vswitch = Self { netns: netns.path(), folder, database: None, daemon: None };
        vswitch.tool("ovsdb-tool", &["create", &vswitch.path("conf.db"), SCHEMA]);
        vswitch.start_database();
        vswitch.tool(
            "ovs-vsctl",
            &[&format!("--db=unix:{}", vswitch.path("db.sock")), "--no-wait", "init"],
        );
        vswitch.start_daemon();
        vswitch
    }

    /// The socket of the database.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("db.sock")
    }

    pub(crate) fn start_database(&mut self) {
        let remote = format!("--remote=punix:{}", self.path("db.sock"));
        let database = self.path("conf.db");
        self.database = Some(self.spawn("ovsdb-server", &[&remote, &database]));
        eventually("the database answers", || {
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    pub(crate) fn start_daemon(&mut self) {
        let remote = format!("unix:{}", self.path("db.sock"));
        self.daemon = Some(self.spawn("ovs-vswitchd", &[&remote, "--disable-system"]));
    }

    /// Ends the daemon as a crash does.
    pub(crate) fn kill_daemon(&mut self) {
        end(self.daemon.take());
    }

    pub(crate) fn kill_database(&mut self) {
        end(self.database.take());
    }

    /// Stops the daemon, or lets it go on.
    pub(crate) fn signal_daemon(&self, signal: &str) {
        let process = self.daemon.as_ref().unwrap().id().to_string();
        self.tool("kill", &[&format!("-{signal}"), &process]);
    }

    /// What `ovs-vsctl` says, with these arguments.
    pub(crate) fn vsctl(&self, arguments: &str) -> String {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let words: Vec<_> = std::iter::once(&database[..]).chain(arguments.split(' ')).collect();
        self.tool("ovs-vsctl", &words)
    }

    /// What the daemon says to a command of `ovs-appctl`.
    pub(crate) fn appctl(&self, command: &str) -> String {
        self.tool("ovs-appctl", &["-t", &self.path("ovs-vswitchd.ctl"), command])
    }

    /// The flows of a bridge, as `ovs-ofctl` tells them, without what counts and ages.
    pub(crate) fn flows(&self, bridge: &str) -> String {
        let socket = self.path(&format!("{bridge}.mgmt"));
        self.tool("ovs-ofctl", &["-O", "OpenFlow13", "--no-stats", "dump-flows", &socket])
    }

    /// Changes flows of a bridge with `ovs-ofctl`.
    pub(crate) fn ofctl(&self, command: &str, bridge: &str, flow: &str) {
        let socket = self.path(&format!("{bridge}.mgmt"));
        self.tool("ovs-ofctl", &["-O", "OpenFlow13", command, &socket, flow]);
    }

    fn tool(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output();
        let output = output.expect("programs of the package openvswitch-switch");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn(&self, program: &str, arguments: &[&str]) -> Child {
        let log = format!("--log-file={}", self.path(&format!("{program}.log")));
        let control = format!("--unixctl={}", self.path(&format!("{program}.ctl")));
        let quiet = ["-vconsole:off", "-vsyslog:off", &log, &control];
        let mut command = self.command(program, &[arguments, &quiet].concat());
        let null = || File::open("/dev/null").unwrap();
        command.stdin(Stdio::null()).stdout(null()).stderr(null());
        command.spawn().expect("programs of the package openvswitch-switch")
    }

    /// In the namespace, whoever calls.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns.display())).arg(program).args(arguments);
        let folder: &Path = self.folder.path();
        command.env("OVS_RUNDIR", folder).env("OVS_LOGDIR", folder).env("OVS_DBDIR", folder);
        command
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        end(self.daemon.take());
        end(self.database.take());
    }
}

fn end(program: Option<Child>) {
    if let Some(mut program) = program {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
