// Open vSwitch for one test: a database and a daemon of its own. Its datapath is that of the daemon, which needs no
// module, or with OFFLOAD_TEST_DATAPATH=system the kernel's, which hack/vm has.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// What Debian's package openvswitch-switch has put there.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// How much a small disk holds, for `mount`.
const SMALL: &str = "size=1m,mode=700";

/// Both of its programs, which end with this.
#[derive(Debug)]
pub struct OpenVswitch {
    /// Of a network namespace. `None`: that of the test.
    netns: Option<PathBuf>,
    daemon_options: &'static [&'static str],
    folder: TempDir,
    /// Whether the folder is a small disk of its own.
    is_small: bool,
    database: Option<Child>,
    daemon: Option<Child>,
}

impl OpenVswitch {
    /// Starts both in the network namespace at a path.
    pub fn start_in(netns: &Path) -> Self {
        Self::start(Some(netns), Self::options(), false)
    }

    /// Likewise, with all that they write on a small disk, which is this mount namespace's alone.
    pub fn start_on_small_disk(netns: &Path) -> Self {
        Self::start(Some(netns), Self::options(), true)
    }

    fn options() -> &'static [&'static str] {
        if Self::datapath() == "system" { &[] } else { &["--disable-system"] }
    }

    /// What bridges made for tests forward by: `netdev` or `system`.
    pub fn datapath() -> String {
        std::env::var("OFFLOAD_TEST_DATAPATH").unwrap_or_else(|_| "netdev".to_owned())
    }

    /// Starts both with a datapath and ports that are not there: without privileges.
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

    /// Waits until the daemon has seen its database once: until then it may take longer than a daemon that runs.
    fn await_daemon(&self) {
        self.vsctl("--timeout=60 wait-until Open_vSwitch . datapath_types!=[]");
    }

    /// The socket of the database.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("db.sock")
    }

    /// The socket by which the flows of a bridge are set.
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

    /// Ends the daemon as a crash does.
    pub fn kill_daemon(&mut self) {
        end(self.daemon.take());
    }

    /// Ends the database likewise.
    pub fn kill_database(&mut self) {
        end(self.database.take());
    }

    /// Stops the daemon, or lets it go on.
    pub fn signal_daemon(&self, signal: &str) {
        self.signal(self.daemon.as_ref(), signal);
    }

    /// The same of the database.
    pub fn signal_database(&self, signal: &str) {
        self.signal(self.database.as_ref(), signal);
    }

    fn signal(&self, program: Option<&Child>, signal: &str) {
        let process = program.unwrap().id().to_string();
        self.tool("kill", &[&format!("-{signal}"), &process]);
    }

    /// Fills a small disk, until the database can't write any more.
    pub fn fill_disk(&self) {
        let mut filler = File::create(self.path("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        // Its last page has some room, for what is no longer than the daemon's shortest word.
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

    /// Makes room on it.
    pub fn empty_disk(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }

    /// What `ovs-vsctl` says, with these arguments.
    pub fn vsctl(&self, arguments: &str) -> String {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let words: Vec<_> = std::iter::once(&database[..]).chain(arguments.split(' ')).collect();
        self.tool("ovs-vsctl", &words)
    }

    /// What the daemon says to a command of `ovs-appctl`.
    pub fn appctl(&self, command: &[&str]) -> String {
        let control = self.path("ovs-vswitchd.ctl");
        self.tool("ovs-appctl", &[&["-t", &control], command].concat())
    }

    /// The flows of a bridge, as `ovs-ofctl` tells them, without what counts and ages.
    pub fn flows(&self, bridge: &str) -> String {
        self.ofctl(&["--no-stats", "dump-flows"], bridge, &[])
    }

    /// What `ovs-ofctl` says to a command about a bridge.
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

    /// In the namespace, whoever calls.
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
            // What is left of it goes with the mount namespace.
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
