//! The lab of most tests: one host, one card, one DPU.

use std::{
    collections::BTreeSet,
    fs,
    ops::Deref,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
};

use tempfile::TempDir;

use crate::{
    Card, Host, OpenVswitch, Pki, Program, Proxy, Settings,
    card::{Plan, root},
    dpu::{self, start_service},
    faults::{self, FaultAction},
    host::LIMIT,
    invariants::Scene,
    wait_for, wait_until,
};

/// A card, the service on the DPU, the agent on the host. Everything ends on drop.
#[derive(Debug)]
pub struct Lab {
    /// The agent.
    pub agent: Program,
    /// The service.
    pub service: Program,
    /// The card.
    pub card: Card,
    /// The certificates.
    pub pki: Arc<Pki>,
    /// The DPU's Open vSwitch, if it is the fabric.
    pub vswitch: Option<OpenVswitch>,
    host: Host,
    proxy: Option<Proxy>,
    /// The agent's socket, if it is held for the agent.
    held: Option<UnixListener>,
    folder: TempDir,
}

impl Lab {
    /// Starts everything and waits until STATUS succeeds, unless the test relays between agent and service.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        Self::start_with(settings, |_folder| ())
    }

    /// Starts a lab after `prepare` has filled its folder.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(settings: &Settings, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::Builder::new().prefix("offload-").tempdir().unwrap();
        let path = folder.path();
        let pki = Arc::new(Pki::make(path.join("pki")));
        let (host_netns, dpu_netns) = (root("host"), root("dpu"));
        let position = settings.position();
        let host = Host::new(Arc::clone(&host_netns), path, position, &pki, (settings, ""));
        dpu::prepare(path, settings, &[position], &pki);
        prepare(path);
        let card = Card::between(host_netns, dpu_netns, Plan::of(settings, position), path);
        let proxy = settings.proxied.then(|| host.start_proxy());
        let vswitch = dpu::start_vswitch(&card.dpu, settings, path);
        let service = start_service(&card.dpu, path);
        let agent = host.start_agent(None);
        let lab = Self { agent, service, card, pki, vswitch, host, proxy, held: None, folder };
        if !settings.relayed {
            lab.wait_until_good();
        }
        lab
    }

    /// The network between host and DPU of a `proxied` lab.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxied lab")
    }

    /// Starts the service again after it ended.
    pub fn start_service(&mut self) {
        self.service = self.another_service();
    }

    /// Starts the agent again after it ended.
    pub fn start_agent(&mut self) {
        self.agent = self.another_agent();
    }

    /// A service that replaces one that has ended.
    #[must_use]
    pub fn another_service(&self) -> Program {
        start_service(&self.card.dpu, self.folder.path())
    }

    /// An agent that replaces one that has ended.
    #[must_use]
    pub fn another_agent(&self) -> Program {
        self.host.start_agent(self.held.as_ref())
    }

    /// An agent that waits until its predecessor ends, like a pod that replaces another.
    #[must_use]
    pub fn agent_on_standby(&self) -> Program {
        self.host.start_agent_with(None, &["--standby"])
    }

    /// Holds the agent's socket as systemd does, and restarts the agent.
    ///
    /// # Panics
    /// If it cannot be listened on.
    pub fn hold_socket(&mut self) {
        self.agent.stop();
        self.held = Some(UnixListener::bind(self.socket()).unwrap());
        self.start_agent();
        self.wait_until_good();
    }

    /// The agent's open calls, by the inodes of their connections.
    #[must_use]
    pub fn calls(&self) -> BTreeSet<u64> {
        self.agent.connections(&self.socket())
    }

    /// Waits until the agent has a call that is not in `before`.
    ///
    /// # Panics
    /// If it has none in time.
    pub fn wait_for_call(&self, before: &BTreeSet<u64>) {
        wait_until("the agent to have the call", || !self.calls().is_subset(before));
    }

    /// Resets the card.
    pub fn reset_card(&mut self) {
        self.card.reset(self.folder.path());
    }

    /// Restarts the service without its journal.
    ///
    /// # Panics
    /// If it has none.
    pub fn lose_journal(&mut self) {
        self.service.stop();
        fs::remove_file(self.path().join("service/journal.redb")).expect("a journal");
        self.start_service();
    }

    /// Makes a step of `dpu-service` or `host-shim-agent` fail, or kill its program, once after its work.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn arm(&self, program: &str, action: FaultAction, step: &str) -> PathBuf {
        faults::arm(self.path(), program, action, step)
    }

    /// Makes `dpu-service` or `host-shim-agent` trace the points of its steps that it passes. Returns the file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn trace(&self, program: &str) -> PathBuf {
        faults::trace(self.path(), program)
    }

    /// Rewrites the service's configuration file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn configure_service(&self, settings: &Settings) {
        let text = settings.service_file(self.path(), &self.pki);
        fs::write(self.path().join("dpu-service.toml"), text).unwrap();
    }

    /// Waits until the service ends.
    ///
    /// # Panics
    /// If it does not end.
    pub fn service_ends(&mut self) -> ExitStatus {
        wait_for("the service's end", LIMIT, || self.service.ended())
    }

    /// Waits until the agent ends.
    ///
    /// # Panics
    /// If it does not end.
    pub fn agent_ends(&mut self) -> ExitStatus {
        wait_for("the agent's end", LIMIT, || self.agent.ended())
    }

    /// Asserts all five invariants after waiting for background work.
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

    /// Waits until the DPU has released everything of detached attachments, which happens after a DEL's answer.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn await_settled(&self) {
        let is_settled = || (self.attachments_in("RELEASING") == 0).then_some(());
        wait_for("the end of all releases", LIMIT, is_settled);
    }

    /// Number of attachments in a state such as `ATTACHED`.
    #[must_use]
    pub fn attachments_in(&self, state: &str) -> usize {
        let state = format!("ATTACHMENT_STATE_{state}");
        let attachments = self.operator().get("attachments");
        attachments.iter().filter(|attachment| attachment["state"] == state.as_str()).count()
    }

    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene::of(
            &self.host,
            &self.card,
            self.vswitch.as_ref(),
            vec![&self.card.host, &self.card.dpu],
        )
    }
}

/// A lab offers everything that its host offers.
impl Deref for Lab {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
