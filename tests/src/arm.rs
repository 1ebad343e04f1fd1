//! A set-up whose DPU is an emulated arm64 machine with a kernel of its own: `hack/arm-dpu`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Answer, Call, Card, HostEnd, Netns, Operator, Pki, Program, Settings, cni,
    invariants::{Keeper, Scene},
    run, wait_for,
};

/// How long programs may take to come up or to agree, on an emulated machine that shares its
/// processors with others.
const LIMIT: Duration = Duration::from_secs(90);

/// An Arm machine with the service, and the agent on this machine. All of it ends when it is dropped.
#[derive(Debug)]
pub struct ArmLab {
    /// The agent.
    pub agent: Program,
    /// The DPU.
    pub dpu: ArmDpu,
    /// The host's root namespace.
    pub host: Netns,
    clean: BTreeMap<String, HostEnd>,
    pki: Pki,
    folder: TempDir,
}

/// The Arm machine.
#[derive(Debug)]
pub struct ArmDpu {
    folder: PathBuf,
    /// Where its emulator is; its taps are elsewhere.
    netns: Netns,
}

impl ArmLab {
    /// Brings all of it up and waits until STATUS is good.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        let folder = tempfile::Builder::new().prefix("offload-").tempdir().unwrap();
        let path = folder.path();
        let pki = Pki::make(path.join("pki"));
        fs::write(path.join("boot-id"), "7d0c4ae0-0000-4000-8000-000000000001\n").unwrap();
        fs::write(path.join("dpu-service.toml"), settings.service_file(path, &pki)).unwrap();
        fs::write(path.join("host-shim.toml"), settings.agent_file(path, &pki)).unwrap();
        let host = Netns::new("host");
        host.ip(&["link", "set", "lo", "up"]);
        let dpu = ArmDpu::switch_on(path, &host, settings.vfs);
        let clean = Card::ends_in(&host);
        assert_eq!(clean.len(), settings.vfs as usize, "{clean:?}");
        let agent = start_agent(&host, path);
        let lab = Self { agent, dpu, host, clean, pki, folder };
        lab.wait_until_good();
        lab
    }

    /// Waits until agent and service have a session and STATUS is good.
    ///
    /// # Panics
    /// When it stays bad.
    pub fn wait_until_good(&self) {
        self.operator().wait_for_host("node-1", LIMIT);
        let status = Call::new("STATUS", &self.configuration("blue"));
        let good = || status.execute(&self.host).status.success().then_some(());
        wait_for("a good STATUS", LIMIT, good);
    }

    /// Since when the DPU has a session with the host, by its own clock. `None`: it has none.
    #[must_use]
    pub fn session(&self) -> Option<String> {
        let output = self.operator().dpuctl(&["--timeout", "2", "status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let host = &status["hosts"][0];
        (host["connected"] == true).then(|| host["since"].as_str().unwrap().to_owned())
    }

    /// ADD of `interface` in `pod`, whose container id is its name.
    #[must_use]
    pub fn add(&self, network: &str, pod: &Netns, interface: &str) -> Answer {
        self.call("ADD", network, pod, interface)
    }

    /// DEL likewise.
    #[must_use]
    pub fn del(&self, network: &str, pod: &Netns, interface: &str) -> Answer {
        self.call("DEL", network, pod, interface)
    }

    fn call(&self, verb: &str, network: &str, pod: &Netns, interface: &str) -> Answer {
        let call = Call::new(verb, &self.configuration(network));
        call.of(pod.name(), Some(&pod.path()), interface).execute(&self.host)
    }

    fn configuration(&self, network: &str) -> Value {
        cni::configuration(network, &self.folder.path().join("agent.sock"))
    }

    /// The operator `admin`.
    ///
    /// # Panics
    /// When its configuration can't be written.
    #[must_use]
    pub fn operator(&self) -> Operator<'_> {
        let configuration = self.folder.path().join("dpuctl.toml");
        let tls = self.pki.section("operator", "admin");
        let text = format!("endpoint = \"192.168.100.2:7443\"\ndpu = \"dpu-1\"\n{tls}");
        fs::write(&configuration, text).unwrap();
        Operator { netns: &self.host, configuration }
    }

    /// As [`Lab::assert_invariants`](crate::Lab::assert_invariants), by the tools of both machines.
    ///
    /// # Panics
    /// When one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        self.scene().assert_invariants();
    }

    /// Asserts the invariants, and that nothing is attached.
    ///
    /// # Panics
    /// When something is left.
    pub fn assert_clean_slate(&self) {
        self.scene().assert_clean_slate();
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            host: &self.host,
            not_pods: vec![&self.host, &self.dpu.netns],
            clean: &self.clean,
            operator: self.operator(),
            keeper: Keeper::Representors(Box::new(|| self.dpu.json("ip -d -j link show"))),
        }
    }
}

impl ArmDpu {
    /// Boots it: the service's configuration is in `folder`, its VFs' netdevs come to `host`.
    fn switch_on(folder: &Path, host: &Netns, vfs: u32) -> Self {
        let machine = Self { folder: folder.to_owned(), netns: Netns::new("dpu") };
        let vfs = vfs.to_string();
        let output = machine.control("up", &[host.name(), machine.netns.name(), &vfs]);
        assert!(output.status.success(), "{}\n{}", text(&output.stderr), machine.console());
        machine
    }

    /// What a shell command prints inside.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn says(&self, command: &str) -> String {
        let output = self.control("exec", &[command]);
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// What a tool of iproute2 prints as JSON inside.
    ///
    /// # Panics
    /// When it fails or prints no JSON.
    #[must_use]
    pub fn json(&self, command: &str) -> Vec<Value> {
        let said = self.says(command);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{command}: {error}: {said}"))
    }

    /// Which boot of it this is.
    #[must_use]
    pub fn boot_id(&self) -> String {
        self.says("cat /proc/sys/kernel/random/boot_id")
    }

    /// Presses its reset button: what it has not yet written is lost, then it boots again.
    ///
    /// # Panics
    /// When it is off.
    pub fn reset(&self) {
        let output = self.control("reset", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// What its console showed: the kernel's messages and what the service said.
    #[must_use]
    pub fn console(&self) -> String {
        fs::read_to_string(self.folder.join("arm-dpu.log")).unwrap_or_default()
    }

    fn control(&self, verb: &str, arguments: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/arm-dpu");
        run(Command::new(script).arg(verb).arg(&self.folder).args(arguments))
    }
}

impl Drop for ArmDpu {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the Arm machine's console:\n{}", self.console());
        }
        let _ = self.control("down", &[]);
    }
}

fn start_agent(host: &Netns, folder: &Path) -> Program {
    let configuration = folder.join("host-shim.toml");
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    Program::start("host-shim-agent", host, folder, arguments, &[])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
