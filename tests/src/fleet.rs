//! Several hosts and DPUs: each host has a card of each DPU, and an agent for each card.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    Card, Crowd, CrowdSize, Dpu, Host, Netns, Operator, Pki, Program, Proxy, Settings,
    card::{Plan, root},
    invariants::Scene,
    machines::{HostMachines, Machines},
    settings::CardPosition,
};

/// Name of a DPU's uplink.
pub const UPLINK: &str = "uplink";

/// Configuration of a DPU in a fleet.
#[derive(Clone, Debug)]
pub struct DpuPlan {
    /// Name of the DPU.
    pub name: &'static str,
    /// Hosts with a card of this DPU.
    pub hosts: Vec<&'static str>,
    /// Its cards, and the service's configuration.
    pub settings: Settings,
}

/// Hosts and DPUs. Everything ends on drop.
#[derive(Debug)]
pub struct Fleet {
    /// Agents in the order of DPUs and their hosts.
    pub agents: Vec<Agent>,
    /// DPUs in the order of their plans.
    pub dpus: Vec<Dpu>,
    /// The switch behind the uplinks.
    switch: Option<Netns>,
    pki: Arc<Pki>,
    folder: TempDir,
}

/// An agent and its card.
#[derive(Debug)]
pub struct Agent {
    /// The program.
    pub program: Program,
    /// The card.
    pub card: Card,
    host: Host,
    /// The network between host and DPU, if the settings are `proxied`.
    proxy: Option<Proxy>,
}

impl Fleet {
    /// Starts everything and waits until STATUS succeeds on each host.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(plans: &[DpuPlan]) -> Self {
        Self::on(plans, plans.iter().map(|plan| root(plan.name)).collect())
    }

    /// Starts DPUs whose uplinks, [`UPLINK`], are wired to one switch.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start_wired(plans: &[DpuPlan]) -> Self {
        let dpus: Vec<_> = plans.iter().map(|plan| root(plan.name)).collect();
        let switch = switch_of(&dpus);
        let fabric = format!("uplinks = [{UPLINK:?}]");
        let wired = plans.iter().map(|plan| {
            let settings = Settings { fabric: fabric.clone(), ..plan.settings.clone() };
            DpuPlan { settings, ..plan.clone() }
        });
        Self { switch: Some(switch), ..Self::on(&wired.collect::<Vec<_>>(), dpus) }
    }

    fn on(plans: &[DpuPlan], dpus: Vec<Arc<Netns>>) -> Self {
        let folder = tempfile::Builder::new().prefix("offload-").tempdir().unwrap();
        let pki = Arc::new(Pki::make(folder.path().join("pki")));
        let mut fleet = Self { agents: Vec::new(), dpus: Vec::new(), switch: None, pki, folder };
        for (plan, netns) in plans.iter().zip(dpus) {
            fleet.add_dpu(plan, netns);
        }
        fleet.wait_until_good();
        fleet
    }

    /// Plugs in the DPU's cards, and starts its service and its hosts' agents.
    fn add_dpu(&mut self, plan: &DpuPlan, netns: Arc<Netns>) {
        let positions = self.positions_of(plan);
        let plug =
            |position: &CardPosition| self.plug(&plan.settings, *position, Arc::clone(&netns));
        let cards: Vec<_> = positions.iter().map(plug).collect();
        let folder = self.new_folder(plan.name);
        let pki = Arc::clone(&self.pki);
        self.dpus.push(Dpu::start_in(folder, netns, plan.settings.clone(), positions.clone(), pki));
        for (position, card) in positions.into_iter().zip(cards) {
            let agent = self.start_agent(&plan.settings, position, card);
            self.agents.push(agent);
        }
    }

    /// Positions of the DPU's cards. Controllers are unique in the fleet, so they differ on each host and each DPU.
    fn positions_of(&self, plan: &DpuPlan) -> Vec<CardPosition> {
        let controllers = self.agents.len()..;
        let position = |(host, controller): (&&'static str, usize)| {
            let controller = u32::try_from(controller).expect("few cards");
            CardPosition { host, dpu: plan.name, controller }
        };
        plan.hosts.iter().zip(controllers).map(position).collect()
    }

    /// Plugs in a card at a host, which may exist already.
    fn plug(&self, settings: &Settings, position: CardPosition, dpu: Arc<Netns>) -> Card {
        let known = self.agents.iter().find(|agent| agent.position().host == position.host);
        let host = known.map_or_else(|| root(position.host), |agent| Arc::clone(&agent.card.host));
        let folder = self.new_folder(&name_of(position));
        Card::between(host, dpu, Plan::of(settings, position), &folder)
    }

    fn start_agent(&self, settings: &Settings, position: CardPosition, card: Card) -> Agent {
        let folder = self.path().join(name_of(position));
        let netns = Arc::clone(&card.host);
        let host = Host::new(netns, &folder, position, &self.pki, (settings, &own_pf(&card)));
        let proxy = settings.proxied.then(|| host.start_proxy());
        Agent { program: host.start_agent(None), card, host, proxy }
    }

    fn new_folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// Folder of all configurations, logs and states.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a crowd of hosts to the first DPU, whose configuration contains its [sections](CrowdSize::sections).
    pub(crate) fn play_crowd(&self, size: CrowdSize, seed: u64) -> Crowd {
        Crowd::join(&self.dpus[0].netns, &self.pki, self.path(), size, seed)
    }

    /// Sets whether the folder stays after the end.
    pub(crate) fn keep_folder(&mut self, keep: bool) {
        self.folder.disable_cleanup(keep);
    }

    /// Splits the first DPU's part: hosts for callers, and programs to stop and start during their calls.
    pub(crate) fn split(&mut self) -> (Vec<&Host>, Machines<'_>) {
        let (callers, hosts) = self.agents.iter_mut().map(Agent::split).unzip();
        (callers, Machines { hosts, dpu: &mut self.dpus[0] })
    }

    /// The host of each agent.
    pub(crate) fn hosts(&self) -> Vec<&Host> {
        self.agents.iter().map(|agent| &agent.host).collect()
    }

    /// Delays each TLS record between proxied hosts and their DPUs, in both directions.
    pub(crate) fn delay(&self, latency: Duration) {
        self.agents.iter().filter_map(|agent| agent.proxy.as_ref()).for_each(|p| p.delay(latency));
    }

    /// Cuts the wire between a DPU and the switch.
    pub fn cut_wire(&self, dpu: usize) {
        self.set_wire(dpu, "down");
    }

    /// Restores that wire.
    pub fn repair_wire(&self, dpu: usize) {
        self.set_wire(dpu, "up");
    }

    fn set_wire(&self, dpu: usize, how: &str) {
        let switch = self.switch.as_ref().expect("a wired fleet");
        switch.ip(&["link", "set", &port_of(dpu), how]);
    }

    /// Waits until each agent has a session and STATUS succeeds.
    ///
    /// # Panics
    /// If STATUS fails for too long.
    pub fn wait_until_good(&self) {
        self.agents.iter().for_each(|agent| agent.wait_until_good());
    }

    /// The operator `admin` of the DPU with this index in the plan.
    #[must_use]
    pub fn operator(&self, dpu: usize) -> Operator<'_> {
        let netns = self.dpus[dpu].netns.name();
        self.agents.iter().find(|agent| agent.card.dpu.name() == netns).unwrap().operator()
    }

    /// Asserts the invariants of each host and its DPU after waiting for background work.
    ///
    /// # Panics
    /// If one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        for agent in &self.agents {
            self.scene(agent).assert_invariants();
        }
    }

    /// Asserts the invariants, and that nothing is attached anywhere.
    ///
    /// # Panics
    /// If something is left.
    pub fn assert_clean_slate(&self) {
        for agent in &self.agents {
            self.scene(agent).assert_clean_slate();
        }
    }

    pub(crate) fn scene<'a>(&'a self, agent: &'a Agent) -> Scene<'a> {
        let roots = self.agents.iter().flat_map(|agent| [&*agent.card.host, &*agent.card.dpu]);
        let is_its = |dpu: &&Dpu| Arc::ptr_eq(&dpu.netns, &agent.card.dpu);
        let vswitch = self.dpus.iter().find(is_its).and_then(|dpu| dpu.vswitch.as_ref());
        Scene::of(&agent.host, &agent.card, vswitch, roots.chain(&self.switch).collect())
    }
}

/// A switch with a port for each DPU, which forwards all VLANs.
fn switch_of(dpus: &[Arc<Netns>]) -> Netns {
    let switch = Netns::new("switch");
    switch.ip(&["link", "add", "switch", "up", "type", "bridge", "mcast_snooping", "0"]);
    for (number, dpu) in dpus.iter().enumerate() {
        let port = port_of(number);
        let uplink = ["peer", "name", UPLINK, "netns", dpu.name()];
        switch.ip(&[&["link", "add", &port, "type", "veth"][..], &uplink].concat());
        switch.ip(&["link", "set", &port, "up", "master", "switch"]);
    }
    switch
}

/// The switch's port of a DPU.
fn port_of(dpu: usize) -> String {
    format!("port{dpu}")
}

/// Name of the folder of a card and its agent.
fn name_of(position: CardPosition) -> String {
    format!("{}-of-{}", position.host, position.dpu)
}

/// Keys of `[vf_source]` that restrict the agent to its card.
fn own_pf(card: &Card) -> String {
    format!("pfs = [{{ address = {:?} }}]", card.pf_address(0))
}

impl Agent {
    fn split(&mut self) -> (&Host, HostMachines<'_>) {
        let Self { program: agent, card, host, proxy } = self;
        (host, HostMachines { host, agent, card, proxy: proxy.as_ref() })
    }

    /// The network between this host and its DPU, of a `proxied` fleet.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxied fleet")
    }

    /// Starts the agent again after it ended.
    pub fn start(&mut self) {
        self.program = self.host.start_agent(None);
    }

    /// Resets the agent's card.
    pub fn reset_card(&mut self) {
        self.card.reset(self.host.path());
    }

    /// Deletes the agent's records.
    ///
    /// # Panics
    /// If there are none.
    pub fn lose_records(&self) {
        fs::rename(self.path().join("agent"), self.path().join("lost")).unwrap();
    }
}

/// An agent offers everything that its host offers.
impl Deref for Agent {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
