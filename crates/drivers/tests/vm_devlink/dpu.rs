//! The DPU of these tests and its programming.

use std::{
    net::UdpSocket,
    process::{Command, Stdio},
    sync::Arc,
};

use bootstrap::Chain;
use drivers::{
    driver::Refused,
    eswitch::{
        Eswitch, Representor,
        devlink::{DevlinkEswitch, DevlinkSettings},
    },
    fabric::{
        BridgeSettings, Fabric,
        bridge::{BridgeAbilities, BridgeFabric},
    },
    probe::KernelAbilities,
    programmer::{ProgramError, Programmer},
};
use model::{Bandwidth, Label, PortSettings, TotalRate};
use netlink::{EswitchMode, Hook, MacAddress, Redirect, Request, VethEnd};
use serde_json::{Value, json};
use vf_alloc::FunctionId;

use crate::{netdevsim::Netdevsim, support::TestNetns};

pub(crate) const BRIDGE: &str = "br-offload";
pub(crate) const VF: FunctionId = FunctionId::local(0, 1);

/// The kernel's error for a link without hardware filters.
pub(crate) const NO_FILTERS: &str = "TC offload is disabled on net device";

pub(crate) struct Dpu {
    pub(crate) card: Netdevsim,
    pub(crate) eswitch: Arc<dyn Eswitch>,
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) programmer: Programmer,
    pub(crate) netns: TestNetns,
}

impl Dpu {
    /// A DPU with its card in switchdev mode and everything prepared.
    pub(crate) fn new() -> Self {
        let dpu = Self::with_cards(|card| DevlinkSettings {
            devices: vec![card.device().parse().unwrap()],
            mode: Some(EswitchMode::Switchdev),
        });
        dpu.prepare().unwrap();
        dpu
    }

    pub(crate) fn with_cards(cards: impl Fn(&Netdevsim) -> DevlinkSettings) -> Self {
        let netns = TestNetns::new();
        let card = Netdevsim::plug(&netns, 2);
        let cards = cards(&card);
        let open = || {
            let abilities = KernelAbilities::probe().unwrap();
            let of_bridges = BridgeAbilities::probe().unwrap();
            let eswitch = DevlinkEswitch::open(cards.clone(), &abilities).unwrap();
            let bridge = BridgeSettings { name: BRIDGE.into(), ..BridgeSettings::default() };
            let fabric = BridgeFabric::open(&bridge, of_bridges, &abilities).unwrap();
            let eswitch: Arc<dyn Eswitch> = Arc::new(eswitch);
            let fabric: Arc<dyn Fabric> = Arc::new(fabric);
            (Arc::clone(&eswitch), Arc::clone(&fabric), Programmer::new(eswitch, fabric))
        };
        let (eswitch, fabric, programmer) = netns.netns.run(open).unwrap();
        Self { netns, eswitch, fabric, programmer, card }
    }

    /// Runs inside the namespace: a thread sees the sysctls of its own namespace.
    pub(crate) fn prepare(&self) -> Result<(), Refused> {
        self.netns.netns.run(|| self.programmer.prepare()).unwrap()
    }

    pub(crate) fn eswitch(&self) -> &dyn Eswitch {
        &*self.eswitch
    }

    pub(crate) fn representor(&self) -> Representor {
        self.eswitch().representor(VF).unwrap().expect("no representor")
    }

    pub(crate) fn devlink(&self, command: &str) {
        self.netns.run(&format!("devlink {}", command.replace("{card}", &self.card.device())));
    }

    pub(crate) fn can_reload(&self) -> bool {
        let mut reload = Command::new("devlink");
        reload.args(["dev", "reload", &self.card.device()]).stderr(Stdio::null());
        self.netns.netns.run(|| reload.status().unwrap().success()).unwrap()
    }

    /// The VF's devlink port.
    pub(crate) fn port(&self) -> String {
        let shown = self.netns.json("devlink -j port show");
        let is_vfs = |port: &Value| port["vfnum"] == VF.vf;
        let mut ports = shown["port"].as_object().unwrap().iter();
        ports.find(|(_, port)| is_vfs(port)).expect("no such port").0.clone()
    }

    /// `devlink`'s rate of the VF's port.
    pub(crate) fn rate(&self) -> Value {
        self.rates()[self.port()].clone()
    }

    /// All rates of `devlink`.
    pub(crate) fn rates(&self) -> Value {
        self.netns.json("devlink -j port function rate show")["rate"].clone()
    }

    /// `devlink`'s node of the card's rate tree.
    pub(crate) fn node(&self, name: &str) -> Value {
        self.rates()[format!("{}/{name}", self.card.device())].clone()
    }

    /// Whether the step `port-rate` is in place, with its detail.
    pub(crate) fn found_rate(&self, settings: &PortSettings) -> (bool, String) {
        let found = self.programmer.inspect(settings).unwrap().steps;
        let step = found.into_iter().find(|step| step.name == "port-rate").unwrap();
        (step.in_place, step.detail)
    }

    /// Whether the card offloads filters, with the detail.
    pub(crate) fn filters(&self) -> (bool, String) {
        self.eswitch().representors().unwrap();
        let [card] = &self.eswitch().cards()[..] else { panic!("{:?}", self.eswitch().cards()) };
        let found = card.capabilities.iter().find(|capability| capability.name == "filters");
        found.map(|found| (found.available, found.detail.clone())).unwrap()
    }

    /// Switches hardware filters of the representors on or off.
    pub(crate) fn set_filters(&self, on_or_off: &str) {
        let shown = self.netns.json("devlink -j port show");
        let ports = shown["port"].as_object().unwrap().values();
        for port in ports.filter(|port| port["flavour"] == "pcivf") {
            let name = port["netdev"].as_str().unwrap();
            self.netns.run(&format!("ethtool -K {name} hw-tc-offload {on_or_off}"));
        }
    }

    /// The offloaded filters of a port, as `tc` shows them.
    pub(crate) fn flowers(&self, port: &str) -> Vec<Value> {
        let shown = self.netns.json(&format!("tc -s -j filter show dev {port} ingress"));
        let filter = |shown: &Value| {
            let mut filter = shown["options"].clone();
            filter["pref"] = shown["pref"].clone();
            filter["protocol"] = shown["protocol"].clone();
            filter
        };
        let flowers = shown.as_array().unwrap().iter();
        flowers
            .filter(|shown| shown["kind"] == "flower" && shown["options"].is_object())
            .map(filter)
            .collect()
    }

    /// How many frames the card would have forwarded by itself, and how many not.
    pub(crate) fn decided(&self, port: &str) -> (u64, u64) {
        let counted = |verdict: &str| {
            let flowers = self.flowers(port).into_iter();
            let actions = flowers.map(|flower| flower["actions"][0].clone());
            let are = actions.filter(|action| action["control_action"]["type"] == verdict);
            are.map(|action| action["stats"]["hw_packets"].as_u64().unwrap_or_default()).sum()
        };
        (counted("pass"), counted("trap"))
    }

    pub(crate) fn guard_detail(&self, settings: &PortSettings) -> String {
        let found = self.programmer.inspect(settings).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
        found.steps.into_iter().find(|step| step.name == "guard").unwrap().detail
    }

    /// A pod whose frames enter at the representor.
    pub(crate) fn pod_behind(&self, port: &Representor) -> TestNetns {
        let pod = TestNetns::new();
        let end = VethEnd::new("eth0").netns(&pod.netns);
        let mut rtnl = self.netns.rtnl();
        let name = format!("behind{}", port.vf.vf);
        rtnl.change(Request::add_veth(&VethEnd::new(&name), &end)).unwrap();
        let behind = rtnl.link_by_name(&name).unwrap().unwrap().index;
        self.netns.run(&format!("ip link set {name} up"));
        let (from, to) = ((behind, Hook::Ingress), (port.index, Hook::Ingress));
        rtnl.traffic_control().add_redirects(&[Redirect { from, to }]).unwrap();
        pod.run(&format!("ip link set eth0 address {} up", settings().mac));
        for (own, other) in [("10.9.0.1/24", "10.9.0.2"), ("fd09::1/64", "fd09::2")] {
            pod.run(&format!("ip address add {own} dev eth0 nodad"));
            pod.run(&format!("ip neighbour add {other} lladdr 02:00:00:00:01:02 dev eth0"));
        }
        pod
    }

    /// Asserts that no programming is left.
    pub(crate) fn assert_idle(&self) {
        assert_eq!(self.rate(), json!({"type": "leaf"}));
        let link = self.netns.link(&self.representor().name);
        assert_eq!((&link["mtu"], &link["master"]), (&json!(1500), &Value::Null), "{link}");
        assert!(!link["flags"].as_array().unwrap().contains(&"UP".into()), "{link}");
        assert_ne!(link["qdisc"], "tbf");
        assert_eq!((&link["group"], &link["ifalias"]), (&json!("default"), &Value::Null));
    }
}

pub(crate) fn settings() -> PortSettings {
    PortSettings {
        vf: VF,
        mac: MacAddress([2, 0, 0, 0, 1, 1]),
        mtu: 9000,
        vlan: Some(100),
        trunk: [200].into(),
        label: Label { group: 8, alias: "tenant a".into() },
        bandwidth: Bandwidth {
            ingress_rate: 5_000_000,
            egress_rate: 10_000_000,
            ..Bandwidth::default()
        },
        ..PortSettings::default()
    }
}

/// Settings of a pod with addresses.
pub(crate) fn of_pod() -> PortSettings {
    let addresses = ["10.9.0.1", "fd09::1"].map(|address| address.parse().unwrap()).into();
    PortSettings { addresses, ..settings() }
}

/// Settings of a pod with a guaranteed rate, in a network with a total limit.
pub(crate) fn sharing(vf: u16, rate: u64) -> PortSettings {
    PortSettings {
        vf: FunctionId::local(0, vf),
        mac: MacAddress([2, 0, 0, 0, 1, vf.to_be_bytes()[1]]),
        bandwidth: Bandwidth { egress_share: 3_000_000, ..settings().bandwidth },
        total_egress: Some(TotalRate { network: "blue".into(), rate }),
        ..settings()
    }
}

pub(crate) fn send(from: &TestNetns, to: &str) {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let sent = from.netns.run(|| {
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(b"hello", to).unwrap()
    });
    assert_eq!(sent.unwrap(), 5);
}

/// The failed step and the complete error.
pub(crate) fn failure(error: &ProgramError) -> (&'static str, String) {
    match error {
        ProgramError::Step { source, .. } => {
            assert!(source.left.is_empty(), "{:?}", source.left);
            (source.step, Chain(error).to_string())
        }
        other => panic!("{other}"),
    }
}
