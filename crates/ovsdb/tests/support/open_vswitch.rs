// Open vSwitch for one test: an own database and daemon. The datapath is the daemon's, which needs no module, or the
// kernel's with OFFLOAD_TEST_DATAPATH=system, which hack/vm has.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// From Debian's package openvswitch-switch.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Mount options of a small disk.
const SMALL: &str = "size=1m,mode=700";

/// The database and the daemon. Both end on drop.
#[derive(Debug)]
pub struct OpenVswitch {
    /// Path of their network namespace. `None`: the test's.
    netns: Option<PathBuf>,
    daemon_options: &'static [&'static str],
    folder: TempDir,
    /// Whether the folder is a small disk.
    is_small: bool,
    database: Option<Child>,
    daemon: Option<Child>,
}

impl OpenVswitch {
    /// Starts both in a network namespace.
    pub fn start_in(netns: &Path) -> Self {
        Self::start(Some(netns), Self::options(), false)
    }

    /// Starts both with their files on a small disk, which only this mount namespace has.
    pub fn start_on_small_disk(netns: &Path) -> Self {
        Self::start(Some(netns), Self::options(), true)
    }

    fn options() -> &'static [&'static str] {
        if Self::datapath() == "system" { &[] } else { &["--disable-system"] }
    }

    /// Datapath type of test bridges: `netdev` or `system`.
    pub fn datapath() -> String {
        std::env::var("OFFLOAD_TEST_DATAPATH").unwrap_or_else(|_| "netdev".to_owned())
    }

    /// Starts both with a dummy datapath and dummy ports, which need no privileges.
    pub fn start_dummy() -> Self {
        Self::start(None, &["--disable-system", "--enable-dummy"], false)
    }

    fn start(
        netns: Option<&Path>,
        daemon_options: &'static [&'static str],
        is_small: bool,
    ) -> Self {
        let (netns, folder) = (netns.map(Path::to_owned), tempfile::tempdir().unwrap());
        let mut vswitch =
            Self { netns, daemon_options, folder, is_small, database: None, daemon: None };
        if is_small {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", SMALL, "small"]).arg(vswitch.folder.path());
            assert!(mount.status().unwrap().success());
        }
        vswitch.tool("ovsdb-tool", &["create", &vswitch.path("conf.db"), SCHEMA]);
        vswitch.start_database();
        vswitch.vsctl("--no-wait init");
        vswitch.start_daemon();
        vswitch.await_daemon();
        vswitch
    }

    /// Waits until the daemon has read its database: before, it answers more slowly.
    fn await_daemon(&self) {
        self.vsctl("--timeout=60 wait-until Open_vSwitch . datapath_types!=[]");
    }

    /// Socket of the database.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("db.sock")
    }

    /// Management socket of a bridge.
    pub fn management(&self, bridge: &str) -> PathBuf {
        self.folder.path().join(format!("{bridge}.mgmt"))
    }

    /// Starts the database again.
    pub fn start_database(&mut self) {
        let remote = format!("--remote=punix:{}", self.path("db.sock"));
        self.database = Some(self.spawn("ovsdb-server", &[&remote, &self.path("conf.db")]));
        test_clock::wait_until("the database to answer", || {
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// Starts the daemon again.
    pub fn start_daemon(&mut self) {
        let remote = format!("unix:{}", self.path("db.sock"));
        let options = [&[&remote[..]][..], self.daemon_options].concat();
        self.daemon = Some(self.spawn("ovs-vswitchd", &options));
    }

    /// Kills the daemon.
    pub fn kill_daemon(&mut self) {
        end(self.daemon.take());
    }

    /// Kills the database.
    pub fn kill_database(&mut self) {
        end(self.database.take());
    }

    /// Sends a signal such as STOP or CONT to the daemon.
    pub fn signal_daemon(&self, signal: &str) {
        self.signal(self.daemon.as_ref(), signal);
    }

    /// Sends a signal such as STOP or CONT to the database.
    pub fn signal_database(&self, signal: &str) {
        self.signal(self.database.as_ref(), signal);
    }

    fn signal(&self, program: Option<&Child>, signal: &str) {
        let process = program.unwrap().id().to_string();
        self.tool("kill", &[&format!("-{signal}"), &process]);
    }

    /// Fills the small disk until the database cannot write.
    pub fn fill_disk(&self) {
        let mut filler = File::create(self.path("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        // The last page may still hold the daemon's shortest transaction, so fill it too.
        for version in ["1", "2"].into_iter().cycle() {
            let row = format!(r#"{{"db_version":"{version}"}}"#);
            let update = format!(
                r#"["Open_vSwitch",{{"op":"update","table":"Open_vSwitch","where":[],"row":{row}}}]"#
            );
            let server = format!("unix:{}", self.path("db.sock"));
            if self.tool("ovsdb-client", &["transact", &server, &update]).contains("error") {
                return;
            }
        }
    }

    /// Frees the space again.
    pub fn empty_disk(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }

    /// The output of `ovs-vsctl` with these arguments.
    pub fn vsctl(&self, arguments: &str) -> String {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let words: Vec<_> = std::iter::once(&database[..]).chain(arguments.split(' ')).collect();
        self.tool("ovs-vsctl", &words)
    }

    /// The daemon's answer to a command of `ovs-appctl`.
    pub fn appctl(&self, command: &[&str]) -> String {
        let control = self.path("ovs-vswitchd.ctl");
        self.tool("ovs-appctl", &[&["-t", &control], command].concat())
    }

    /// The flows of a bridge as `ovs-ofctl` prints them, without counters and ages.
    pub fn flows(&self, bridge: &str) -> String {
        self.ofctl(&["--no-stats", "dump-flows"], bridge, &[])
    }

    /// The output of an `ovs-ofctl` command for a bridge.
    pub fn ofctl(&self, command: &[&str], bridge: &str, rest: &[&str]) -> String {
        let socket = self.management(bridge).display().to_string();
        self.tool("ovs-ofctl", &[&["-O", "OpenFlow13"], command, &[&socket], rest].concat())
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

    /// Runs in the namespace, from any thread.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = match &self.netns {
            Some(netns) => netlink::Netns::command(netns, program).expect("a path"),
            None => Command::new(program),
        };
        let folder = self.folder.path();
        command.args(arguments).env("OVS_RUNDIR", folder).env("OVS_LOGDIR", folder);
        command.env("OVS_DBDIR", folder);
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
        if self.is_small {
            // Unmounting may fail; the mount namespace's end removes the rest.
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
    }
}

fn end(program: Option<Child>) {
    if let Some(mut program) = program {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
