//! Several hosts and DPUs: a card for each DPU of each host, and an agent for each card.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Answer, Call, Card, Netns, Operator, Pki, Program, Proxy, Settings,
    card::{Plan, root},
    cni,
    halves::{HostMachines, Machines, Site},
    invariants::{Keeper, Scene},
    lab::{start_agent, start_service},
    settings::{PROXY, Seat},
    wait_for,
};

/// How long programs may take to come up or to agree.
const LIMIT: Duration = Duration::from_secs(120);

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
    pki: Pki,
    folder: TempDir,
}

/// An agent, and the card whose VFs it moves.
#[derive(Debug)]
pub struct Agent {
    /// The program.
    pub program: Program,
    /// The card.
    pub card: Card,
    /// The network between host and DPU, if its settings are `proxied`.
    proxy: Option<Proxy>,
    seat: Seat,
    folder: PathBuf,
}

/// A DPU.
#[derive(Debug)]
pub struct Dpu {
    /// Its service.
    pub service: Program,
    /// Its namespace.
    pub netns: Arc<Netns>,
    name: &'static str,
    folder: PathBuf,
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
        let pki = Pki::make(folder.path().join("pki"));
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
        let dpu = self.start_dpu(plan, netns, &seats);
        self.dpus.push(dpu);
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
        let known = self.agents.iter().find(|agent| agent.seat.host == seat.host);
        let host = known.map_or_else(|| root(seat.host), |agent| Arc::clone(&agent.card.host));
        let folder = self.new_folder(&name_of(seat));
        Card::between(host, dpu, Plan::of(settings, seat.controller), &folder)
    }

    fn start_dpu(&self, plan: &DpuPlan, netns: Arc<Netns>, seats: &[Seat]) -> Dpu {
        let folder = self.new_folder(plan.name);
        self.issue("dpu", plan.name);
        let file = plan.settings.service_file_of(seats, &folder, &self.pki);
        fs::write(folder.join("dpu-service.toml"), file).unwrap();
        fs::create_dir(folder.join("faults-dpu-service")).unwrap();
        let service = start_service(&netns, &folder);
        Dpu { service, netns, name: plan.name, folder }
    }

    fn start_agent(&self, settings: &Settings, seat: Seat, card: Card) -> Agent {
        let folder = self.path().join(name_of(seat));
        self.issue("host", seat.host);
        let file = settings.agent_file_of(&seat, &own_pf(&card), &folder, &self.pki);
        fs::write(folder.join("host-shim.toml"), file).unwrap();
        fs::write(folder.join("boot-id"), "7d0c4ae0-0000-4000-8000-000000000001\n").unwrap();
        fs::create_dir(folder.join("faults-host-shim-agent")).unwrap();
        let target = seat.endpoint().parse().unwrap();
        let proxy = || Proxy::start(&card.host, PROXY.parse().unwrap(), target);
        let proxy = settings.proxied.then(proxy);
        let program = start_agent(&card.host, &folder);
        Agent { program, card, proxy, seat, folder }
    }

    fn new_folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn issue(&self, role: &str, name: &str) {
        if !self.pki.has(role, name) {
            self.pki.issue(role, name);
        }
    }

    /// The folder of all configurations, logs and states.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves that folder behind when all is over, or does not.
    pub(crate) fn keep_folder(&mut self, keep: bool) {
        self.folder.disable_cleanup(keep);
    }

    /// Of the first DPU: what the callers of each host need, and what others stop and start meanwhile.
    pub(crate) fn split(&mut self) -> (Vec<Site<'_>>, Machines<'_>) {
        let operators: Vec<_> =
            self.agents.iter().map(|agent| self.operator_of(agent).configuration).collect();
        let agents = self.agents.iter_mut().zip(operators);
        let (sites, hosts) = agents.map(|(agent, operator)| agent.split(operator)).unzip();
        let Dpu { service, netns, folder, .. } = &mut self.dpus[0];
        (sites, Machines { hosts, service, dpu: netns, folder })
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
        for agent in &self.agents {
            self.operator_of(agent).wait_for_host(agent.seat.host, LIMIT);
            let is_good = || agent.status().status.success().then_some(());
            wait_for(&format!("a good STATUS of {:?}", agent.seat), LIMIT, is_good);
        }
    }

    /// The operator `admin` of the DPU at this place in the plan.
    #[must_use]
    pub fn operator(&self, dpu: usize) -> Operator<'_> {
        let name = self.dpus[dpu].name;
        self.operator_of(self.agents.iter().find(|agent| agent.seat.dpu == name).unwrap())
    }

    /// The operator `admin` of an agent's DPU, who works on its host.
    fn operator_of<'a>(&self, agent: &'a Agent) -> Operator<'a> {
        let configuration = agent.folder.join("dpuctl.toml");
        let (endpoint, dpu) = (agent.seat.endpoint(), agent.seat.dpu);
        let tls = self.pki.section("operator", "admin");
        let text = format!("endpoint = {endpoint:?}\ndpu = {dpu:?}\n{tls}");
        fs::write(&configuration, text).unwrap();
        Operator { netns: &agent.card.host, configuration }
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
        let cards = self.agents.iter().map(|agent| &agent.card);
        let dpu = &agent.card.dpu;
        Scene {
            host: &agent.card.host,
            not_pods: cards
                .flat_map(|card| [&*card.host, &*card.dpu])
                .chain(&self.switch)
                .collect(),
            clean: agent.card.clean(),
            operator: self.operator_of(agent),
            keeper: Keeper::Representors(Box::new(|| dpu.json("ip", &["-d", "link", "show"]))),
        }
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
    /// The network configuration that a runtime passes for `network`.
    #[must_use]
    pub fn configuration(&self, network: &str) -> Value {
        cni::configuration(network, &self.folder.join("agent.sock"))
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
        self.execute(&call.of(pod.name(), Some(&pod.path()), interface))
    }

    /// STATUS of the network `blue`.
    #[must_use]
    pub fn status(&self) -> Answer {
        self.execute(&Call::new("STATUS", &self.configuration("blue")))
    }

    /// Executes the plugin in the host's namespace.
    #[must_use]
    pub fn execute(&self, call: &Call) -> Answer {
        call.execute(&self.card.host)
    }

    fn split(&mut self, operator: PathBuf) -> (Site<'_>, HostMachines<'_>) {
        let Card { program: card, host: netns, plan, .. } = &mut self.card;
        let (netns, folder): (&Netns, &Path) = (netns, &self.folder);
        let operator = Operator { netns, configuration: operator };
        let site = Site { host: netns, folder, operator, socket: folder.join("agent.sock") };
        let (agent, proxy, plan) = (&mut self.program, self.proxy.as_ref(), *plan);
        (site, HostMachines { agent, card, netns, plan, proxy, folder })
    }

    /// Starts it again after it ended.
    pub fn start(&mut self) {
        self.program = start_agent(&self.card.host, &self.folder);
    }

    /// Resets its card.
    pub fn reset_card(&mut self) {
        self.card.reset(&self.folder);
    }

    /// Gives its host another boot id, as a reboot does; it has to be started again.
    ///
    /// # Panics
    /// When the file can't be written.
    pub fn new_boot_id(&self, id: &str) {
        fs::write(self.folder.join("boot-id"), id).unwrap();
    }

    /// Takes its records away.
    ///
    /// # Panics
    /// When there are none.
    pub fn lose_records(&self) {
        fs::rename(self.folder.join("agent"), self.folder.join("lost")).unwrap();
    }
}

impl Dpu {
    /// Starts its service again after it ended.
    pub fn start(&mut self) {
        self.service = start_service(&self.netns, &self.folder);
    }
}
