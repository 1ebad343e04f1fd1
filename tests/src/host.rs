//! A host, part of every lab: it executes the plugin and `dpuctl`, and starts its agent.

use std::{
    ffi::OsStr,
    fs,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use crate::{
    Answer, Call, Netns, Operator, Pki, Program, Proxy, Settings, Workloads, cni, faults,
    process::installed,
    settings::{CardPosition, PROXY},
    wait_for,
};

/// Timeout for programs to start or agree, on an emulated machine that shares its processors.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Name of the agent's program.
const AGENT: &str = "host-shim-agent";

/// The systemd unit, whose environment the agent gets.
const UNIT: &str = include_str!("../../configs/systemd/dpu-offload-agent.service");

/// A host and its position at a DPU. The owner of the host has its agent.
#[derive(Debug)]
pub struct Host {
    netns: Arc<Netns>,
    /// Folder of the agent's configuration, log and state.
    folder: PathBuf,
    position: CardPosition,
    pki: Arc<Pki>,
}

impl Host {
    /// Prepares a host's folder for its agent, with further keys of `[vf_source]`.
    pub(crate) fn new(
        netns: Arc<Netns>,
        folder: &Path,
        position: CardPosition,
        pki: &Arc<Pki>,
        (settings, vf_source): (&Settings, &str),
    ) -> Self {
        let host = Self { netns, folder: folder.to_owned(), position, pki: Arc::clone(pki) };
        pki.issue_once("host", position.host);
        let file = settings.agent_file_of(&position, vf_source, folder, pki);
        fs::write(folder.join("host-shim.toml"), file).unwrap();
        host.new_boot_id("7d0c4ae0-0000-4000-8000-000000000001\n");
        faults::prepare(folder, AGENT);
        host.write_dpuctl_file("operator", "admin");
        host
    }

    /// The host's root namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub(crate) fn position(&self) -> CardPosition {
        self.position
    }

    /// Folder of the agent's configuration, log and state.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("agent.sock")
    }

    /// The network configuration that a runtime passes for `network`.
    #[must_use]
    pub fn configuration(&self, network: &str) -> Value {
        cni::configuration(network, &self.socket())
    }

    /// ADD of `interface` in `pod`. The container ID is the pod's name.
    #[must_use]
    pub fn add(&self, network: &str, pod: &Netns, interface: &str) -> Answer {
        self.call("ADD", network, pod, interface)
    }

    /// DEL of `interface` in `pod`.
    #[must_use]
    pub fn del(&self, network: &str, pod: &Netns, interface: &str) -> Answer {
        self.call("DEL", network, pod, interface)
    }

    /// Any verb for an attachment.
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

    /// A client of the agent's workload service.
    #[must_use]
    pub fn workloads(&self) -> Workloads {
        Workloads::on(&self.socket())
    }

    /// Executes the plugin in the host's namespace, from `bin` in its folder if that exists.
    #[must_use]
    pub fn execute(&self, call: &Call) -> Answer {
        call.execute_command(self.netns.command(installed("host-shim", &self.folder)))
    }

    /// The operator `admin` of the host's DPU.
    #[must_use]
    pub fn operator(&self) -> Operator<'_> {
        Operator::new(&self.netns, self.dpuctl_file("operator", "admin"))
    }

    /// `dpuctl` with another certificate.
    ///
    /// # Panics
    /// If its configuration cannot be written.
    #[must_use]
    pub fn dpuctl_as(&self, role: &str, name: &str) -> Operator<'_> {
        self.write_dpuctl_file(role, name);
        Operator::new(&self.netns, self.dpuctl_file(role, name))
    }

    fn write_dpuctl_file(&self, role: &str, name: &str) {
        let (endpoint, dpu) = (self.position.endpoint(), self.position.dpu);
        let tls = self.pki.section(role, name);
        let text = format!("endpoint = {endpoint:?}\ndpu = {dpu:?}\n{tls}");
        fs::write(self.dpuctl_file(role, name), text).unwrap();
    }

    fn dpuctl_file(&self, role: &str, name: &str) -> PathBuf {
        self.folder.join(format!("dpuctl-{role}-{name}.toml"))
    }

    /// Waits until agent and service have a session and STATUS succeeds.
    ///
    /// # Panics
    /// If STATUS fails for too long.
    pub fn wait_until_good(&self) {
        self.operator().wait_for_host(self.position.host, LIMIT);
        let is_good = || self.status().status.success().then_some(());
        wait_for(&format!("a good STATUS of {:?}", self.position), LIMIT, is_good);
    }

    /// Sets another boot ID, as after a reboot. The agent must be started again.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn new_boot_id(&self, id: &str) {
        fs::write(self.folder.join("boot-id"), id).unwrap();
    }

    /// Starts the network between the host and its DPU for `proxied` settings.
    pub(crate) fn start_proxy(&self) -> Proxy {
        let dpu = self.position.endpoint().parse().unwrap();
        Proxy::start(&self.netns, PROXY.parse().unwrap(), dpu)
    }

    /// Starts the agent on a socket that is held for it, as by systemd, or on its own.
    pub(crate) fn start_agent(&self, held: Option<&UnixListener>) -> Program {
        self.start_agent_with(held, &[])
    }

    /// Starts the agent with further arguments.
    pub(crate) fn start_agent_with(&self, held: Option<&UnixListener>, more: &[&str]) -> Program {
        let configuration = self.folder.join("host-shim.toml");
        let mut arguments: Vec<&OsStr> = vec!["--config".as_ref(), configuration.as_os_str()];
        arguments.extend(more.iter().map(OsStr::new));
        let faults = faults::folder(&self.folder, AGENT);
        let unit = UNIT.lines().filter_map(|line| line.strip_prefix("Environment="));
        let variables = unit.filter_map(|variable| variable.split_once('='));
        let environment: Vec<_> = variables
            .map(|(name, value)| (name, Path::new(value)))
            .chain([("OFFLOAD_FAULTS", faults.as_path())])
            .collect();
        let (netns, folder) = (&self.netns, &self.folder);
        match held {
            None => Program::start(AGENT, netns, folder, arguments, &environment),
            Some(held) => Program::start_on(held, AGENT, netns, folder, arguments, &environment),
        }
    }
}
