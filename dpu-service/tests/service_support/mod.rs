//! The real service in a network namespace, and clients of every role.
#![allow(unreachable_pub, reason = "a test's module")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use mtls::{
    Connector, LiveCredentials, Role, TlsSettings,
    authority::{Authority, Validity},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use offload_proto::{
    Failure, Reason,
    v1::{operator_client::OperatorClient, workload_network_client::WorkloadNetworkClient},
};
use tempfile::TempDir;
use test_clock::within;
use tokio::time::sleep;
use tonic::{Status, transport::Channel};

use crate::support::TestNetns;

pub const ADDRESS: &str = "127.0.0.1:7443";
/// Longer than any wait in these tests takes.
pub const BOUND: Duration = Duration::from_secs(20);

/// Files of a service: certificates, configuration, state.
pub struct Setup {
    pub netns: TestNetns,
    pub folder: TempDir,
    pub authority: Authority,
}

impl Setup {
    pub fn new() -> Self {
        let netns = TestNetns::new();
        netns.run("ip link set lo up");
        let folder = tempfile::tempdir().unwrap();
        let validity = Validity::from_now(Duration::from_secs(3600));
        let authority = Authority::create("test.local", validity).unwrap();
        authority.save(folder.path()).unwrap();
        let setup = Self { netns, folder, authority };
        setup.certify(Role::Dpu, "dpu-1");
        setup.configure("", NETWORKS);
        setup
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a certificate unless it exists.
    fn certify(&self, role: Role, name: &str) -> TlsSettings {
        let stem = format!("{role}-{name}");
        let certificate = self.path(&format!("{stem}.crt"));
        let key = self.path(&format!("{stem}.key"));
        if !certificate.exists() {
            let validity = Validity::from_now(Duration::from_secs(3600));
            self.authority
                .issue(role, name, validity)
                .unwrap()
                .save(self.folder.path(), &stem)
                .unwrap();
        }
        TlsSettings { ca: self.path("ca.crt"), certificate, key, trust_domain: "test.local".into() }
    }

    /// Writes the configuration atomically. `limits` are lines of that table.
    pub fn configure(&self, limits: &str, networks: &str) {
        let folder = self.folder.path().display();
        let text = format!(
            r#"
            listen = "{ADDRESS}"
            state_dir = "{folder}/state"
            [tls]
            ca = "{folder}/ca.crt"
            certificate = "{folder}/dpu-dpu-1.crt"
            key = "{folder}/dpu-dpu-1.key"
            trust_domain = "test.local"
            [limits]
            {limits}
            [[host]]
            name = "node-1"
            pfs = ["p0"]
            [[pool]]
            name = "default"
            select = ["p0#0-3"]
            {networks}
            "#
        );
        fs::write(self.path("next.toml"), text).unwrap();
        fs::rename(self.path("next.toml"), self.path("service.toml")).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpu-service"));
        command.arg("--config").arg(self.path("service.toml"));
        command
    }

    /// Starts the service and waits until it serves.
    pub fn start(&self) -> Service<'_> {
        self.start_with([])
    }

    /// Starts the service with these environment variables.
    pub fn start_with<const N: usize>(&self, variables: [(&str, PathBuf); N]) -> Service<'_> {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(log).envs(variables);
        let process = self.netns.netns.run(|| command.spawn().unwrap()).unwrap();
        let mut service = Service { setup: self, process };
        service.wait_until_it_serves();
        service
    }

    pub fn connector(&self, role: Role, name: &str) -> Connector {
        let credentials = LiveCredentials::load(&self.certify(role, name), &[role]).unwrap();
        Connector::new(credentials, ADDRESS, "dpu-1", BOUND).unwrap()
    }

    pub fn channel(&self, role: Role, name: &str) -> Channel {
        self.connector(role, name).channel()
    }

    pub fn host(&self) -> WorkloadNetworkClient<Channel> {
        WorkloadNetworkClient::new(self.channel(Role::Host, "node-1"))
    }

    pub fn operator(&self) -> OperatorClient<Channel> {
        OperatorClient::new(self.channel(Role::Operator, "alice"))
    }

    /// Runs a client inside the namespace, within [`BOUND`].
    pub fn client<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let work = async { within(BOUND, work()).await.expect("it takes too long") };
            runtime.unwrap().block_on(work)
        };
        self.netns.netns.run(run).unwrap()
    }
}

pub const NETWORKS: &str = r#"
    [[network]]
    name = "blue"
    default = true
    subnets = [{ cidr = "10.1.0.0/16", gateway = "10.1.0.1" }]
"#;

/// A running service. Killed when dropped; its log is printed if the test failed.
pub struct Service<'a> {
    setup: &'a Setup,
    process: Child,
}

impl Service<'_> {
    fn wait_until_it_serves(&mut self) {
        let connector = self.setup.connector(Role::Operator, "alice");
        self.setup.client(async || {
            while connector.connect().await.is_err() {
                let ended = self.process.try_wait().unwrap();
                assert!(ended.is_none(), "the service ended: {ended:?}");
                sleep(Duration::from_millis(10)).await;
            }
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Resident memory in MiB.
    pub fn memory(&self) -> f64 {
        self.memory_of("VmRSS:")
    }

    /// Peak resident memory in MiB.
    pub fn peak_memory(&self) -> f64 {
        self.memory_of("VmHWM:")
    }

    fn memory_of(&self, kind: &str) -> f64 {
        let status = read(Path::new(&format!("/proc/{}/status", self.process.id())));
        let resident = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
        let kib: f64 = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kib / 1024.0
    }

    /// Waits for its end. Returns whether it exited with 0.
    pub fn end(&mut self) -> bool {
        let mut ended = None;
        test_clock::wait_until("the service ends", || {
            ended = self.process.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap().success()
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // Both fail if it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", read(&self.setup.path("log")));
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[track_caller]
pub fn reason<T: std::fmt::Debug>(result: Result<T, Status>) -> Reason {
    let status = result.unwrap_err();
    Failure::from_status(&status).unwrap_or_else(|| panic!("no reason in {status:?}")).reason
}
