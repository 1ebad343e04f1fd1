//! A whole set-up: card, service, agent, certificates.

use std::{
    ffi::OsStr,
    fs,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Answer, Call, Card, Netns, Operator, Pki, Program, Proxy, Settings, cni,
    process::installed,
    settings::{DPU, PROXY, dpu_address},
    wait_for,
};

/// How long programs may take to come up or to agree, on an emulated machine that shares its
/// processors with others.
const LIMIT: Duration = Duration::from_secs(120);

/// The agent runs in the environment that systemd gives it.
const AGENT_UNIT: &str = include_str!("../../configs/systemd/dpu-offload-agent.service");

/// A card, the service on the DPU, the agent on the host. All of it ends when it is dropped.
#[derive(Debug)]
pub struct Lab {
    /// The agent.
    pub agent: Program,
    /// The service.
    pub service: Program,
    /// The card.
    pub card: Card,
    /// The certificates.
    pub pki: Pki,
    proxy: Option<Proxy>,
    /// The agent's socket, if it is held for it.
    held: Option<UnixListener>,
    folder: TempDir,
}

impl Lab {
    /// Brings all of it up and waits until STATUS is good.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        Self::start_with(settings, |_folder| ())
    }

    /// Likewise, of what `prepare` has put into its folder.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start_with(settings: &Settings, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::Builder::new().prefix("offload-").tempdir().unwrap();
        let path = folder.path();
        let pki = Pki::make(path.join("pki"));
        write_files(settings, path, &pki);
        prepare(path);
        let card = Card::plug(settings, path);
        let proxy = settings
            .proxied
            .then(|| Proxy::start(&card.host, PROXY.parse().unwrap(), DPU.parse().unwrap()));
        let service = start_service(&card.dpu, path);
        let agent = start_agent(&card.host, path);
        let lab = Self { agent, service, card, pki, proxy, held: None, folder };
        lab.wait_until_good();
        lab
    }

    /// Waits until agent and service have a session and STATUS is good.
    ///
    /// # Panics
    /// When it stays bad.
    pub fn wait_until_good(&self) {
        self.operator().wait_for_host("node-1", LIMIT);
        wait_for("a good STATUS", LIMIT, || self.status().status.success().then_some(()));
    }

    /// The folder of configuration, logs and state.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path().join("agent.sock")
    }

    /// The network between host and DPU, of a lab that is `proxied`.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxied lab")
    }

    /// The network configuration that a runtime passes for `network`.
    #[must_use]
    pub fn configuration(&self, network: &str) -> Value {
        cni::configuration(network, &self.socket())
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

    /// Any verb of an attachment.
    #[must_use]
    pub fn call(&self, verb: &str, network: &str, pod: &Netns, interface: &str) -> Answer {
        let call = Call::new(verb, &self.configuration(network));
        self.execute(&call.of(pod.name(), Some(&pod.path()), interface))
    }

    /// STATUS of the network `blue`.
    #[must_use]
    pub fn status(&self) -> Answer {
        self.execute(&Call::new("STATUS", &self.configuration("blue")))
    }

    /// Executes the plugin in the host's namespace, from the lab's `bin` if it is there.
    #[must_use]
    pub fn execute(&self, call: &Call) -> Answer {
        call.execute_command(self.card.host.command(installed("host-shim", self.path())))
    }

    /// The operator `admin`.
    #[must_use]
    pub fn operator(&self) -> Operator<'_> {
        self.dpuctl_as("operator", "admin")
    }

    /// `dpuctl` with another certificate.
    ///
    /// # Panics
    /// When its configuration can't be written.
    #[must_use]
    pub fn dpuctl_as(&self, role: &str, name: &str) -> Operator<'_> {
        let configuration = self.path().join(format!("dpuctl-{role}-{name}.toml"));
        let tls = self.pki.section(role, name);
        let endpoint = format!("{}:7443", dpu_address(self.card.plan.controller));
        let text = format!("endpoint = {endpoint:?}\ndpu = \"dpu-1\"\n{tls}");
        fs::write(&configuration, text).unwrap();
        Operator { netns: &self.card.host, configuration }
    }

    /// Starts the service again after it ended.
    pub fn start_service(&mut self) {
        self.service = self.another_service();
    }

    /// Starts the agent again after it ended.
    pub fn start_agent(&mut self) {
        self.agent = self.another_agent();
    }

    /// A service to put in the place of one that has ended.
    #[must_use]
    pub fn another_service(&self) -> Program {
        start_service(&self.card.dpu, self.folder.path())
    }

    /// An agent to put in the place of one that has ended.
    #[must_use]
    pub fn another_agent(&self) -> Program {
        let (host, folder) = (&self.card.host, self.folder.path());
        match &self.held {
            None => start_agent(host, folder),
            Some(held) => with_agent(folder, |name, arguments, environment| {
                Program::start_on(held, name, host, folder, arguments, environment)
            }),
        }
    }

    /// From here on the agent's socket is held for it, as systemd does, and it is started anew.
    ///
    /// # Panics
    /// When it can't be listened on.
    pub fn hold_socket(&mut self) {
        self.agent.stop();
        self.held = Some(UnixListener::bind(self.socket()).unwrap());
        self.start_agent();
        self.wait_until_good();
    }

    /// Resets the card.
    pub fn reset_card(&mut self) {
        self.card.reset(self.folder.path());
    }

    /// Gives the host another boot id, as a reboot does; the agent has to be started again.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn new_boot_id(&self, id: &str) {
        fs::write(self.path().join("boot-id"), id).unwrap();
    }

    /// Makes the named step of `dpu-service` or `host-shim-agent` fail (`fail`) or kill its program (`kill`)
    /// once, after its work.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn arm(&self, program: &str, how: &str, step: &str) -> PathBuf {
        arm(self.path(), program, how, step)
    }

    /// Has `dpu-service` or `host-shim-agent` write down the points of its steps that it passes, and
    /// returns where.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn trace(&self, program: &str) -> PathBuf {
        let file = faults(self.path(), program).join("trace");
        fs::write(&file, "").unwrap();
        file
    }

    /// Rewrites the service's configuration file.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn configure_service(&self, settings: &Settings) {
        let text = settings.service_file(self.path(), &self.pki);
        fs::write(self.path().join("dpu-service.toml"), text).unwrap();
    }

    /// Waits for the service's end.
    ///
    /// # Panics
    /// When it goes on.
    pub fn service_ends(&mut self) -> ExitStatus {
        wait_for("the service's end", LIMIT, || self.service.ended())
    }

    /// Waits for the agent's end.
    ///
    /// # Panics
    /// When it goes on.
    pub fn agent_ends(&mut self) -> ExitStatus {
        wait_for("the agent's end", LIMIT, || self.agent.ended())
    }
}

pub(crate) fn arm(folder: &Path, program: &str, how: &str, step: &str) -> PathBuf {
    let file = faults(folder, program).join(format!("{how}-{step}"));
    fs::write(&file, "").unwrap();
    file
}

fn write_files(settings: &Settings, folder: &Path, pki: &Pki) {
    fs::write(folder.join("boot-id"), "7d0c4ae0-0000-4000-8000-000000000001\n").unwrap();
    fs::write(folder.join("dpu-service.toml"), settings.service_file(folder, pki)).unwrap();
    fs::write(folder.join("host-shim.toml"), settings.agent_file(folder, pki)).unwrap();
    for program in ["dpu-service", "host-shim-agent"] {
        fs::create_dir(faults(folder, program)).unwrap();
    }
}

fn faults(folder: &Path, program: &str) -> PathBuf {
    folder.join(format!("faults-{program}"))
}

pub(crate) fn start_service(dpu: &Netns, folder: &Path) -> Program {
    let configuration = folder.join("dpu-service.toml");
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    let faults = faults(folder, "dpu-service");
    Program::start("dpu-service", dpu, folder, arguments, &[("OFFLOAD_FAULTS", &faults)])
}

pub(crate) fn start_agent(host: &Netns, folder: &Path) -> Program {
    with_agent(folder, |name, arguments, environment| {
        Program::start(name, host, folder, arguments, environment)
    })
}

/// Its name, its arguments and the environment that it runs in.
fn with_agent(
    folder: &Path,
    start: impl FnOnce(&'static str, [&OsStr; 2], &[(&str, &Path)]) -> Program,
) -> Program {
    let configuration = folder.join("host-shim.toml");
    let faults = faults(folder, "host-shim-agent");
    let unit = AGENT_UNIT.lines().filter_map(|line| line.strip_prefix("Environment="));
    let variables = unit.filter_map(|variable| variable.split_once('='));
    let environment: Vec<_> = variables
        .map(|(name, value)| (name, Path::new(value)))
        .chain([("OFFLOAD_FAULTS", faults.as_path())])
        .collect();
    start("host-shim-agent", ["--config".as_ref(), configuration.as_os_str()], &environment)
}
