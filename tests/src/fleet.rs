//! Several hosts and DPUs: a card for each DPU of each host, and an agent for each card.

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
    halves::{HostMachines, Machines},
    invariants::Scene,
    settings::Seat,
};

/// The name of a DPU's uplink.
pub const UPLINK: &str = "uplink";

/// What a DPU is set up with.
#[derive(Clone, Debug)]
pub struct DpuPlan {
    /// Its name.
    pub name: &'static str,
    /// The hosts that it has a card in.
    pub hosts: Vec<&'static str>,
    /// Its cards, and the service's configuration.
    pub settings: Settings,
}

/// Hosts and DPUs. All of it ends when it is dropped.
#[derive(Debug)]
pub struct Fleet {
    /// The agents, in the order of DPUs and their hosts.
    pub agents: Vec<Agent>,
    /// The DPUs, as they were planned.
    pub dpus: Vec<Dpu>,
    /// What the DPUs' uplinks lead to.
    switch: Option<Netns>,
    pki: Arc<Pki>,
    folder: TempDir,
}

/// An agent, and the card whose VFs it moves.
#[derive(Debug)]
pub struct Agent {
    /// The program.
    pub program: Program,
    /// The card.
    pub card: Card,
    host: Host,
    /// The network between host and DPU, if its settings are `proxied`.
    proxy: Option<Proxy>,
}

impl Fleet {
    /// Brings all of it up and waits until STATUS is good on each host.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(plans: &[DpuPlan]) -> Self {
        Self::on(plans, plans.iter().map(|plan| root(plan.name)).collect())
    }

    /// Brings DPUs up likewise whose uplinks, [`UPLINK`], are wires to one switch.
    ///
    /// # Panics
    /// When they do not come up.
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

    /// Plugs its cards in, and starts its service and its hosts' agents.
    fn add_dpu(&mut self, plan: &DpuPlan, netns: Arc<Netns>) {
        let seats = self.seats_of(plan);
        let plug = |seat: &Seat| self.plug(&plan.settings, *seat, Arc::clone(&netns));
        let cards: Vec<_> = seats.iter().map(plug).collect();
        let folder = self.new_folder(plan.name);
        let pki = Arc::clone(&self.pki);
        self.dpus.push(Dpu::start_in(folder, netns, plan.settings.clone(), seats.clone(), pki));
        for (seat, card) in seats.into_iter().zip(cards) {
            let agent = self.start_agent(&plan.settings, seat, card);
            self.agents.push(agent);
        }
    }

    /// Where its cards are: no two of the fleet are the same controller, so that they differ on one host
    /// and on one DPU.
    fn seats_of(&self, plan: &DpuPlan) -> Vec<Seat> {
        let controllers = self.agents.len()..;
        let seat = |(host, controller): (&&'static str, usize)| {
            let controller = u32::try_from(controller).expect("few cards");
            Seat { host, dpu: plan.name, controller }
        };
        plan.hosts.iter().zip(controllers).map(seat).collect()
    }

    /// Plugs a card in, in a host that may be known already.
    fn plug(&self, settings: &Settings, seat: Seat, dpu: Arc<Netns>) -> Card {
        let known = self.agents.iter().find(|agent| agent.seat().host == seat.host);
        let host = known.map_or_else(|| root(seat.host), |agent| Arc::clone(&agent.card.host));
        let folder = self.new_folder(&name_of(seat));
        Card::between(host, dpu, Plan::of(settings, seat), &folder)
    }

    fn start_agent(&self, settings: &Settings, seat: Seat, card: Card) -> Agent {
        let folder = self.path().join(name_of(seat));
        let netns = Arc::clone(&card.host);
        let host = Host::new(netns, &folder, seat, &self.pki, (settings, &own_pf(&card)));
        let proxy = settings.proxied.then(|| host.start_proxy());
        Agent { program: host.start_agent(None), card, host, proxy }
    }

    fn new_folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// The folder of all configurations, logs and states.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Plays a crowd of hosts of the first DPU, whose configuration has its [sections](CrowdSize::sections).
    pub(crate) fn play_crowd(&self, size: CrowdSize, seed: u64) -> Crowd {
        Crowd::join(&self.dpus[0].netns, &self.pki, self.path(), size, seed)
    }

    /// Leaves that folder behind when all is over, or does not.
    pub(crate) fn keep_folder(&mut self, keep: bool) {
        self.folder.disable_cleanup(keep);
    }

    /// Of the first DPU: what the callers of each host need, and what others stop and start meanwhile.
    pub(crate) fn split(&mut self) -> (Vec<&Host>, Machines<'_>) {
        let (callers, hosts) = self.agents.iter_mut().map(Agent::split).unzip();
        (callers, Machines { hosts, dpu: &mut self.dpus[0] })
    }

    /// The host of each agent.
    pub(crate) fn hosts(&self) -> Vec<&Host> {
        self.agents.iter().map(|agent| &agent.host).collect()
    }

    /// Has each record between proxied hosts and their DPUs take so long on its way, in either direction.
    pub(crate) fn delay(&self, latency: Duration) {
        self.agents.iter().filter_map(|agent| agent.proxy.as_ref()).for_each(|p| p.delay(latency));
    }

    /// Cuts the wire between a DPU and the switch.
    pub fn cut_wire(&self, dpu: usize) {
        self.set_wire(dpu, "down");
    }

    /// Mends that wire.
    pub fn mend_wire(&self, dpu: usize) {
        self.set_wire(dpu, "up");
    }

    fn set_wire(&self, dpu: usize, how: &str) {
        let switch = self.switch.as_ref().expect("a wired fleet");
        switch.ip(&["link", "set", &port_of(dpu), how]);
    }

    /// Waits until each agent has a session with its DPU, and a good STATUS.
    ///
    /// # Panics
    /// When one stays bad.
    pub fn wait_until_good(&self) {
        self.agents.iter().for_each(|agent| agent.wait_until_good());
    }

    /// The operator `admin` of the DPU at this place in the plan.
    #[must_use]
    pub fn operator(&self, dpu: usize) -> Operator<'_> {
        let netns = self.dpus[dpu].netns.name();
        self.agents.iter().find(|agent| agent.card.dpu.name() == netns).unwrap().operator()
    }

    /// Asserts the invariants of each host and its DPU, giving the background a while to settle.
    ///
    /// # Panics
    /// When one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        for agent in &self.agents {
            self.scene(agent).assert_invariants();
        }
    }

    /// Asserts the invariants, and that nothing is attached anywhere.
    ///
    /// # Panics
    /// When something is left.
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

/// A switch with a port for each DPU, which it passes all VLANs between.
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

/// The switch's port for a DPU.
fn port_of(dpu: usize) -> String {
    format!("port{dpu}")
}

/// What the folder of a card and its agent is called.
fn name_of(seat: Seat) -> String {
    format!("{}-of-{}", seat.host, seat.dpu)
}

/// The keys of `[vf_source]` by which the agent leaves the host's other cards alone.
fn own_pf(card: &Card) -> String {
    format!("pfs = [{{ address = {:?} }}]", card.pf_address(0))
}

impl Agent {
    fn split(&mut self) -> (&Host, HostMachines<'_>) {
        let Self { program: agent, card, host, proxy } = self;
        (host, HostMachines { host, agent, card, proxy: proxy.as_ref() })
    }

    /// The network between this host and its DPU, of a fleet that is `proxied`.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxied fleet")
    }

    /// Starts it again after it ended.
    pub fn start(&mut self) {
        self.program = self.host.start_agent(None);
    }

    /// Resets its card.
    pub fn reset_card(&mut self) {
        self.card.reset(self.host.path());
    }

    /// Takes its records away.
    ///
    /// # Panics
    /// When there are none.
    pub fn lose_records(&self) {
        fs::rename(self.path().join("agent"), self.path().join("lost")).unwrap();
    }
}

/// What is called from an agent's host is called from the agent.
impl Deref for Agent {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
