//! A lab whose DPU is an emulated arm64 machine with its own kernel: `hack/arm-dpu`.

use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Card, Host, HostEnd, Netns, Pki, Program, Settings,
    card::root,
    dpu,
    invariants::{Enforcement, Scene},
    run,
};

/// An Arm machine with the service, and the agent on this machine. Everything ends on drop.
#[derive(Debug)]
pub struct ArmLab {
    /// The agent.
    pub agent: Program,
    /// The DPU.
    pub dpu: ArmDpu,
    /// The host.
    pub host: Host,
    clean: BTreeMap<String, HostEnd>,
    _folder: TempDir,
}

/// The Arm machine.
#[derive(Debug)]
pub struct ArmDpu {
    folder: PathBuf,
    /// The emulator's namespace; its taps are in the host's.
    netns: Netns,
}

impl ArmLab {
    /// Starts everything and waits until STATUS succeeds.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        let folder = tempfile::Builder::new().prefix("offload-").tempdir().unwrap();
        let path = folder.path();
        let pki = Arc::new(Pki::make(path.join("pki")));
        let (netns, position) = (root("host"), settings.position());
        let host = Host::new(netns, path, position, &pki, (settings, ""));
        dpu::prepare(path, settings, &[position], &pki);
        let dpu = ArmDpu::switch_on(path, host.netns(), settings.vfs);
        let clean = Card::ends_in(host.netns());
        assert_eq!(clean.len(), settings.vfs as usize, "{clean:?}");
        let agent = host.start_agent(None);
        let lab = Self { agent, dpu, host, clean, _folder: folder };
        lab.wait_until_good();
        lab
    }

    /// When the DPU's session with the host began, by the DPU's clock. `None`: there is no session.
    #[must_use]
    pub fn session(&self) -> Option<String> {
        let output = self.operator().dpuctl(&["--timeout", "2", "status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let host = &status["hosts"][0];
        (host["connected"] == true).then(|| host["since"].as_str().unwrap().to_owned())
    }

    /// Like [`Lab::assert_invariants`](crate::Lab::assert_invariants), with the tools of both machines.
    ///
    /// # Panics
    /// If one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        self.scene().assert_invariants();
    }

    /// Asserts the invariants, and that nothing is attached.
    ///
    /// # Panics
    /// If something is left.
    pub fn assert_clean_slate(&self) {
        self.scene().assert_clean_slate();
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            host: self.netns(),
            not_pods: vec![self.netns(), &self.dpu.netns],
            pods: None,
            clean: &self.clean,
            operator: self.operator(),
            enforcement: Enforcement::Representors(Box::new(|| {
                self.dpu.json("ip -d -j link show")
            })),
        }
    }
}

/// An Arm lab offers everything that its host offers.
impl Deref for ArmLab {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl ArmDpu {
    /// Boots the machine with the service's configuration in `folder`. The netdevs of its VFs appear in `host`.
    fn switch_on(folder: &Path, host: &Netns, vfs: u32) -> Self {
        let machine = Self { folder: folder.to_owned(), netns: Netns::new("dpu") };
        let vfs = vfs.to_string();
        let output = machine.control("up", &[host.name(), machine.netns.name(), &vfs]);
        assert!(output.status.success(), "{}\n{}", text(&output.stderr), machine.console());
        machine
    }

    /// The output of a shell command inside the machine.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn output(&self, command: &str) -> String {
        let output = self.control("exec", &[command]);
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The JSON output of an iproute2 tool inside the machine.
    ///
    /// # Panics
    /// If it fails or prints no JSON.
    #[must_use]
    pub fn json(&self, command: &str) -> Vec<Value> {
        let printed = self.output(command);
        serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("{command}: {error}: {printed}"))
    }

    /// The machine's boot ID.
    #[must_use]
    pub fn boot_id(&self) -> String {
        self.output("cat /proc/sys/kernel/random/boot_id")
    }

    /// Resets the machine: unwritten data is lost, and it boots again.
    ///
    /// # Panics
    /// If it is off.
    pub fn reset(&self) {
        let output = self.control("reset", &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// The console output: messages of the kernel and the service.
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

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
