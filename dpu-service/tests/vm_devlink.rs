//! The devlink eswitch under the programmer, on a netdevsim card, looked at with `devlink`, `bridge`,
//! `ip` and `tc`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../crates/netlink/tests/support/netdevsim.rs"]
mod netdevsim;
#[path = "../../crates/ovsdb/tests/support/open_vswitch.rs"]
#[allow(dead_code, unreachable_pub, reason = "others use the rest")]
mod open_vswitch;
#[path = "../../crates/netlink/tests/support/mod.rs"]
mod support;

use std::{
    net::UdpSocket,
    process::{Command, Stdio},
    sync::Arc,
};

use bootstrap::Chain;
use dpu_service::{
    counters::Offloaded,
    driver::Refused,
    eswitch::{
        Card, Eswitch, Representor,
        devlink::{DevlinkEswitch, DevlinkSettings},
    },
    fabric::{
        BridgeSettings, Fabric,
        bridge::{BridgeAbilities, BridgeFabric},
        ovs::{Datapath, OvsFabric, OvsSettings, Vswitch},
    },
    model::{AntiSpoofing, Bandwidth, PortSettings, TotalRate},
    probe::KernelAbilities,
    programmer::{ProgramError, Programmer},
};
use netdevsim::Netdevsim;
use netlink::{EswitchMode, Hook, MacAddress, Redirect, Request, VethEnd};
use open_vswitch::OpenVswitch;
use serde_json::{Value, json};
use support::{TestNetns, eventually};
use vf_alloc::FunctionId;

const BRIDGE: &str = "br-offload";
const VF: FunctionId = FunctionId::local(0, 1);

/// What the kernel says of a link that takes no filters for its card.
const NO_FILTERS: &str = "TC offload is disabled on net device";

/// A DPU with a netdevsim card of two VFs.
struct Dpu {
    card: Netdevsim,
    eswitch: Arc<dyn Eswitch>,
    fabric: Arc<dyn Fabric>,
    programmer: Programmer,
    netns: TestNetns,
}

impl Dpu {
    /// Its card is in switchdev mode, and all is prepared.
    fn new() -> Self {
        let dpu = Self::with_cards(|card| DevlinkSettings {
            devices: vec![card.device().parse().unwrap()],
            mode: Some(EswitchMode::Switchdev),
        });
        dpu.prepare().unwrap();
        dpu
    }

    fn with_cards(cards: impl Fn(&Netdevsim) -> DevlinkSettings) -> Self {
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

    /// Inside, since a thread sees the sysctls of its own namespace.
    fn prepare(&self) -> Result<(), Refused> {
        self.netns.netns.run(|| self.programmer.prepare()).unwrap()
    }

    fn eswitch(&self) -> &dyn Eswitch {
        &*self.eswitch
    }

    fn representor(&self) -> Representor {
        self.eswitch().representor(VF).unwrap().expect("no representor")
    }

    fn devlink(&self, command: &str) {
        self.netns.run(&format!("devlink {}", command.replace("{card}", &self.card.device())));
    }

    fn can_reload(&self) -> bool {
        let mut reload = Command::new("devlink");
        reload.args(["dev", "reload", &self.card.device()]).stderr(Stdio::null());
        self.netns.netns.run(|| reload.status().unwrap().success()).unwrap()
    }

    /// The VF's port, as `devlink` calls it.
    fn port(&self) -> String {
        let shown = self.netns.json("devlink -j port show");
        let is_vfs = |port: &Value| port["vfnum"] == VF.vf;
        let mut ports = shown["port"].as_object().unwrap().iter();
        ports.find(|(_, port)| is_vfs(port)).expect("no such port").0.clone()
    }

    /// What `devlink` has of the rate of the VF's port.
    fn rate(&self) -> Value {
        self.rates()[self.port()].clone()
    }

    /// All that `devlink` has of rates.
    fn rates(&self) -> Value {
        self.netns.json("devlink -j port function rate show")["rate"].clone()
    }

    /// What `devlink` has of a node of the card's rate tree.
    fn node(&self, name: &str) -> Value {
        self.rates()[format!("{}/{name}", self.card.device())].clone()
    }

    /// Whether the step `port-rate` is in place, and what is told of it.
    fn found_rate(&self, settings: &PortSettings) -> (bool, String) {
        let found = self.programmer.inspect(settings).unwrap().steps;
        let step = found.into_iter().find(|step| step.name == "port-rate").unwrap();
        (step.in_place, step.detail)
    }

    /// Whether the card carries out filters, and what is told of that.
    fn filters(&self) -> (bool, String) {
        self.eswitch().representors().unwrap();
        let [card] = &self.eswitch().cards()[..] else { panic!("{:?}", self.eswitch().cards()) };
        let found = card.capabilities.iter().find(|capability| capability.name == "filters");
        found.map(|found| (found.available, found.detail.clone())).unwrap()
    }

    /// Has the representors take filters, or no more.
    fn set_filters(&self, on_or_off: &str) {
        let shown = self.netns.json("devlink -j port show");
        let ports = shown["port"].as_object().unwrap().values();
        for port in ports.filter(|port| port["flavour"] == "pcivf") {
            let name = port["netdev"].as_str().unwrap();
            self.netns.run(&format!("ethtool -K {name} hw-tc-offload {on_or_off}"));
        }
    }

    /// The filters of a port that its card carries out, as `tc` shows them.
    fn flowers(&self, port: &str) -> Vec<Value> {
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
    fn decided(&self, port: &str) -> (u64, u64) {
        let counted = |verdict: &str| {
            let flowers = self.flowers(port).into_iter();
            let actions = flowers.map(|flower| flower["actions"][0].clone());
            let are = actions.filter(|action| action["control_action"]["type"] == verdict);
            are.map(|action| action["stats"]["hw_packets"].as_u64().unwrap_or_default()).sum()
        };
        (counted("pass"), counted("trap"))
    }

    fn guard_detail(&self, settings: &PortSettings) -> String {
        let found = self.programmer.inspect(settings).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
        found.steps.into_iter().find(|step| step.name == "guard").unwrap().detail
    }

    /// A pod whose frames come in at the representor.
    fn pod_behind(&self, port: &Representor) -> TestNetns {
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

    /// That nothing is left of any programming.
    fn assert_idle(&self) {
        assert_eq!(self.rate(), json!({"type": "leaf"}));
        let link = self.netns.link(&self.representor().name);
        assert_eq!((&link["mtu"], &link["master"]), (&json!(1500), &Value::Null), "{link}");
        assert!(!link["flags"].as_array().unwrap().contains(&"UP".into()), "{link}");
        assert_ne!(link["qdisc"], "tbf");
    }
}

fn settings() -> PortSettings {
    PortSettings {
        vf: VF,
        mac: MacAddress([2, 0, 0, 0, 1, 1]),
        addresses: Vec::new(),
        mtu: 9000,
        bridge: None,
        vlan: Some(100),
        trunk: [200].into(),
        bandwidth: Bandwidth {
            ingress_rate: 5_000_000,
            egress_rate: 10_000_000,
            ..Bandwidth::default()
        },
        total_egress: None,
        anti_spoofing: AntiSpoofing::Full,
        allowed_sources: [].into(),
        openings: None,
    }
}

/// Those of a pod with addresses.
fn of_pod() -> PortSettings {
    let addresses = ["10.9.0.1", "fd09::1"].map(|address| address.parse().unwrap()).into();
    PortSettings { addresses, ..settings() }
}

/// Those of a pod that is sure of something, in a network whose pods may send only so much together.
fn sharing(vf: u16, rate: u64) -> PortSettings {
    PortSettings {
        vf: FunctionId::local(0, vf),
        mac: MacAddress([2, 0, 0, 0, 1, vf.to_be_bytes()[1]]),
        bandwidth: Bandwidth { egress_share: 3_000_000, ..settings().bandwidth },
        total_egress: Some(TotalRate { network: "blue".into(), rate }),
        ..settings()
    }
}

/// A datagram.
fn send(from: &TestNetns, to: &str) {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let sent = from.netns.run(|| {
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(b"hello", to).unwrap()
    });
    assert_eq!(sent.unwrap(), 5);
}

/// Why a programming failed: the step, and all that is told.
fn failure(error: &ProgramError) -> (&'static str, String) {
    match error {
        ProgramError::Step { source, .. } => {
            assert!(source.left.is_empty(), "{:?}", source.left);
            (source.step, Chain(error).to_string())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_representor_is_programmed_and_taken_back() {
    let dpu = Dpu::new();
    dpu.assert_idle();
    for _ in 0..2 {
        dpu.programmer.program(&settings()).unwrap();
        assert_eq!(dpu.rate(), json!({"type": "leaf", "tx_max": 1_250_000}));
        let Representor { name, is_limited, .. } = dpu.representor();
        assert!(is_limited);
        let link = dpu.netns.link(&name);
        assert_eq!((&link["mtu"], &link["master"]), (&json!(9000), &json!(BRIDGE)));
        assert!(link["flags"].as_array().unwrap().contains(&"UP".into()));
        let queue = dpu.netns.json(&format!("tc -j qdisc show dev {name}"))[0].clone();
        assert_eq!((&queue["kind"], &queue["options"]["rate"]), (&json!("tbf"), &json!(625_000)));
        let vlans = dpu.netns.json(&format!("bridge -j vlan show dev {name}"))[0]["vlans"].clone();
        let access = json!({"vlan": 100, "flags": ["PVID", "Egress Untagged"]});
        assert_eq!(vlans, json!([access, {"vlan": 200}]));
        let stations = dpu.netns.json(&format!("bridge -j fdb show dev {name} state static"));
        let mut known: Vec<_> =
            stations.as_array().unwrap().iter().map(|entry| &entry["vlan"]).collect();
        known.sort_by_key(|vlan| vlan.as_u64());
        assert_eq!(
            (&stations[0]["mac"], known),
            (&json!("02:00:00:00:01:01"), vec![&json!(100), &json!(200)])
        );
        let found = dpu.programmer.inspect(&settings()).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
        let detail = |name| {
            let step = found.steps.iter().find(|step| step.name == name);
            step.unwrap().detail.as_str()
        };
        assert_eq!(detail("port-mac"), "set by the host");
        let rates = "towards the pod 5000000 bit/s, from the pod 10000000 bit/s";
        assert_eq!(detail("port-rate"), rates);
    }
    for _ in 0..2 {
        dpu.programmer.unprogram(VF).unwrap();
        dpu.assert_idle();
    }
}

#[test]
fn one_direction_can_be_limited_alone() {
    let dpu = Dpu::new();
    let only = |bandwidth| PortSettings { bandwidth, ..settings() };
    let egress = Bandwidth { egress_rate: 3_000_000, ..Bandwidth::default() };
    dpu.programmer.program(&only(egress)).unwrap();
    assert_eq!(dpu.rate()["tx_max"], 375_000);
    assert_ne!(dpu.netns.link(&dpu.representor().name)["qdisc"], "tbf");
    let ingress = Bandwidth { ingress_rate: 3_000_000, ..Bandwidth::default() };
    let repaired = dpu.programmer.repair(&only(ingress)).unwrap();
    assert_eq!(repaired.steps, ["port-rate"]);
    assert_eq!(dpu.rate(), json!({"type": "leaf"}));
    assert_eq!(dpu.netns.link(&dpu.representor().name)["qdisc"], "tbf");
}

#[test]
fn what_the_kernel_refuses_is_undone_up_to_the_first_step() {
    let dpu = Dpu::new();
    let refused = |settings| failure(&dpu.programmer.program(&settings).unwrap_err());

    let bandwidth = Bandwidth { egress_rate: 6_000_000_000, ..settings().bandwidth };
    let (step, told) = refused(PortSettings { bandwidth, ..settings() });
    assert_eq!(step, "port-rate");
    assert!(told.ends_with("TX rate value exceed link maximum speed 5000Mbps."), "{told}");
    dpu.assert_idle();

    let (step, told) = refused(PortSettings { mtu: 70_000, ..settings() });
    assert_eq!(step, "representor-mtu");
    assert!(told.ends_with("mtu greater than device maximum"), "{told}");
    dpu.assert_idle();

    let (step, told) = refused(PortSettings { vlan: Some(4095), ..settings() });
    assert_eq!(step, "fabric-join");
    assert!(told.contains("cannot add VLAN 4095 to link"), "{told}");
    dpu.assert_idle();

    dpu.netns.run(&format!("ip link delete {BRIDGE}"));
    let (step, told) = refused(settings());
    assert_eq!(step, "fabric-join");
    assert!(told.contains("join"), "{told}");
    dpu.assert_idle();

    dpu.prepare().unwrap();
    dpu.programmer.program(&settings()).unwrap();
}

#[test]
fn what_the_card_can_do_is_known() {
    let dpu = Dpu::new();
    let can = |name| {
        let all = dpu.eswitch().capabilities();
        let found = all.into_iter().find(|capability| capability.name == name).unwrap();
        (found.available, found.detail)
    };
    assert_eq!(can("egress-rate").1, "no VF has a representor yet, so it is not known");
    assert_eq!(dpu.eswitch().representors().unwrap().len(), 2);
    assert_eq!(
        can("egress-rate"),
        (true, "in whole Mbit/s, rounded down; the card chooses the burst".into())
    );
    let host = "the card has no say in the MAC addresses of VFs; the host sets them";
    assert_eq!(can("port-mac"), (false, host.into()));
    assert!(can("ingress-rate").0);
    let [Card { device, mode, representors, capabilities }] = &dpu.eswitch().cards()[..] else {
        panic!("{:?}", dpu.eswitch().cards())
    };
    assert_eq!((&**device, &**mode, *representors), (&*dpu.card.device(), "switchdev", 2));
    let by_hardware = |name| {
        let found = capabilities.iter().find(|capability| capability.name == name).unwrap();
        found.available.then_some(found.offloaded)
    };
    let found = ["filters", "egress-rate", "ingress-rate", "port-mac"].map(by_hardware);
    assert_eq!(found, [Some(true), Some(true), Some(false), None]);
    assert_eq!(["egress-share", "egress-total"].map(by_hardware), [Some(true); 2]);
    assert_eq!(dpu.programmer.check(&sharing(1, 9_000_000)), Ok(()));

    assert_eq!(dpu.programmer.check(&settings()), Ok(()));
}

#[test]
fn pods_of_a_network_share_a_node_that_goes_with_the_last_of_them() {
    let dpu = Dpu::new();
    dpu.devlink("port function rate add {card}/tenant tx_max 40mbit");
    let [one, two] = [sharing(0, 20_000_000), sharing(1, 20_000_000)];
    for settings in [&one, &two, &two] {
        dpu.programmer.program(settings).unwrap();
    }
    assert_eq!(dpu.node("offload-blue"), json!({"type": "node", "tx_max": 2_500_000}));
    let leaf = json!(
        {"type": "leaf", "tx_share": 375_000, "tx_max": 1_250_000, "parent": "offload-blue"}
    );
    assert_eq!(dpu.rate(), leaf);
    let told = "towards the pod 5000000 bit/s, from the pod 10000000 bit/s, sure of 3000000 bit/s, all of \
                offload-blue together 20000000 bit/s";
    assert_eq!(dpu.found_rate(&two), (true, told.into()));

    dpu.programmer.unprogram(one.vf).unwrap();
    assert_eq!((dpu.rate(), &dpu.node("offload-blue")["tx_max"]), (leaf, &json!(2_500_000)));
    for _ in 0..2 {
        dpu.programmer.unprogram(two.vf).unwrap();
        dpu.assert_idle();
        assert_eq!(dpu.node("offload-blue"), Value::Null);
    }
    assert_eq!(dpu.node("tenant"), json!({"type": "node", "tx_max": 5_000_000}));
}

#[test]
fn a_rate_tree_that_somebody_changed_is_mended() {
    let dpu = Dpu::new();
    let settings = sharing(1, 20_000_000);
    dpu.programmer.program(&settings).unwrap();
    let port = dpu.port();
    dpu.devlink("port function rate add {card}/tenant");
    for change in [
        format!("{port} noparent"),
        format!("{port} parent tenant"),
        format!("{port} tx_share 1mbit"),
        "{card}/offload-blue tx_max 5mbit".to_owned(),
        "{card}/offload-blue tx_max 0".to_owned(),
    ] {
        dpu.devlink(&format!("port function rate set {change}"));
        assert!(!dpu.found_rate(&settings).0, "{change}");
        assert_eq!(dpu.programmer.repair(&settings).unwrap().steps, ["port-rate"], "{change}");
        assert!(dpu.found_rate(&settings).0, "{change}");
        let found = (&dpu.rate()["parent"], &dpu.rate()["tx_share"]);
        assert_eq!(found, (&json!("offload-blue"), &json!(375_000)), "{change}");
        assert_eq!(dpu.node("offload-blue")["tx_max"], 2_500_000, "{change}");
    }
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
    assert_eq!(dpu.node("tenant"), json!({"type": "node"}));
}

#[test]
fn a_leaf_in_somebody_elses_node_stays_there_unless_its_network_has_a_node() {
    let dpu = Dpu::new();
    dpu.devlink("port function rate add {card}/tenant");
    dpu.devlink(&format!("port function rate set {} parent tenant", dpu.port()));
    dpu.programmer.program(&settings()).unwrap();
    assert!(dpu.found_rate(&settings()).0);
    dpu.programmer.unprogram(VF).unwrap();
    assert_eq!(dpu.rate(), json!({"type": "leaf", "parent": "tenant"}));
    dpu.programmer.program(&sharing(1, 20_000_000)).unwrap();
    assert_eq!(dpu.rate()["parent"], "offload-blue");
}

/// A total that was changed between two attaches is the later one's, for both.
#[test]
fn a_node_has_the_rate_of_the_pod_that_was_programmed_last() {
    let dpu = Dpu::new();
    let [before, after] = [sharing(0, 20_000_000), sharing(1, 30_000_000)];
    for settings in [&before, &after] {
        dpu.programmer.program(settings).unwrap();
    }
    assert_eq!(dpu.node("offload-blue")["tx_max"], 3_750_000);
    assert!(dpu.found_rate(&before).0 && dpu.found_rate(&after).0);
    dpu.programmer.program(&PortSettings { total_egress: None, ..before.clone() }).unwrap();
    assert!(!dpu.found_rate(&before).0);
    dpu.programmer.program(&PortSettings { total_egress: None, ..after }).unwrap();
    assert_eq!(dpu.node("offload-blue"), Value::Null);
}

#[test]
fn a_node_without_leaves_is_deleted() {
    let dpu = Dpu::new();
    let shares = Bandwidth { egress_share: 6_000_000_000, ..Bandwidth::default() };
    let refused = PortSettings { bandwidth: shares, ..sharing(1, 20_000_000) };
    let (step, told) = failure(&dpu.programmer.program(&refused).unwrap_err());
    assert_eq!(step, "port-rate");
    assert!(told.ends_with("TX rate value exceed link maximum speed 5000Mbps."), "{told}");
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-blue"), Value::Null);

    // As a service leaves them that ends at the wrong moment.
    for node in ["offload-blue", "offload-green", "tenant"] {
        dpu.devlink(&format!("port function rate add {{card}}/{node}"));
    }
    dpu.devlink(&format!("port function rate set {} parent offload-green", dpu.port()));
    dpu.eswitch().representors().unwrap();
    let left =
        ["offload-blue", "offload-green", "tenant"].map(|node| dpu.node(node)["type"].clone());
    assert_eq!(left, [Value::Null, "node".into(), "node".into()]);
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-green"), Value::Null);
}

#[test]
fn pods_of_a_network_may_come_and_go_at_once() {
    let dpu = Dpu::new();
    std::thread::scope(|scope| {
        for vf in [0, 1] {
            let programmer = &dpu.programmer;
            scope.spawn(move || {
                for _ in 0..20 {
                    programmer.program(&sharing(vf, 20_000_000)).unwrap();
                    programmer.unprogram(FunctionId::local(0, vf)).unwrap();
                }
            });
        }
    });
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-blue"), Value::Null);
}

/// A pod's `10Mi` is 10,485,760 bit/s.
#[test]
fn a_rate_finer_than_the_card_counts_is_rounded_down() {
    let dpu = Dpu::new();
    for (asked, kept) in [(10_485_760, 1_250_000), (64_000, 125_000)] {
        let bandwidth = Bandwidth { egress_rate: asked, ..Bandwidth::default() };
        let finer = PortSettings { bandwidth, ..settings() };
        assert_eq!(dpu.programmer.check(&finer), Ok(()));
        dpu.programmer.program(&finer).unwrap();
        assert_eq!(dpu.rate()["tx_max"], kept);
        let found = dpu.programmer.inspect(&finer).unwrap();
        assert!(found.steps.iter().all(|step| step.in_place), "{:#?}", found.steps);
    }
}

#[test]
fn representors_are_known_by_their_ports_under_any_name() {
    let dpu = Dpu::new();
    let name = dpu.representor().name;
    dpu.netns.run(&format!("ip link set {name} name wild"));
    dpu.netns.run("ip link add pf0vf1 type veth peer name impostor");
    let found = dpu.representor();
    assert_eq!((found.vf, &*found.name), (VF, "wild"));
    assert_eq!(dpu.netns.link("wild")["phys_port_name"], "pf0vf1");
    let vfs: Vec<_> = dpu.eswitch().representors().unwrap().iter().map(|port| port.vf).collect();
    assert_eq!(vfs, [FunctionId::local(0, 0), VF]);
    assert_eq!(dpu.eswitch().representor(FunctionId::local(0, 9)).unwrap(), None);
}

#[test]
fn a_card_that_was_reset_is_found_again() {
    let dpu = Dpu::new();
    // It is asked once more after the reset, and says something else.
    dpu.set_filters("off");
    let (takes_filters, why) = dpu.filters();
    assert!(!takes_filters && why.ends_with(NO_FILTERS), "{why}");
    dpu.programmer.program(&settings()).unwrap();
    let before = dpu.representor();
    assert_eq!(dpu.flowers(&before.name), [Value::Null; 0]);

    // The card refuses to come back: its representors stay away.
    dpu.card.set_knob("fail_reload", "Y");
    assert!(!dpu.can_reload());
    assert_eq!(dpu.eswitch().representor(VF).unwrap(), None);
    assert!(matches!(dpu.programmer.program(&settings()), Err(ProgramError::NoRepresentor(VF))));
    assert!(dpu.eswitch().set_rate(&before, &settings()).is_err());
    dpu.eswitch().clear_rate(&before).unwrap();
    dpu.eswitch().clear_port_mac(&before).unwrap();
    dpu.programmer.unprogram(VF).unwrap();

    // It does come back, in legacy mode and without VFs, as after each reset of netdevsim.
    dpu.card.set_knob("fail_reload", "N");
    assert!(dpu.can_reload());
    dpu.prepare().unwrap();
    assert_eq!(dpu.eswitch().representors().unwrap(), []);
    dpu.card.set_vfs(2);
    let repaired = dpu.programmer.repair(&settings()).unwrap();
    assert_ne!(repaired.index, before.index);
    let steps = ["representor-mtu", "fabric-join", "port-rate", "guard", "representor-up"];
    assert_eq!(repaired.steps, steps);
    assert_eq!(dpu.rate()["tx_max"], 1_250_000);
    assert!(dpu.filters().0, "{:?}", dpu.filters());
}

/// What mlx5 answers for the ports of a BlueField: see hack/vm.d/switchdevsim.
#[test]
fn a_port_is_guarded_whose_card_refuses_all_of_the_bridges_flags_but_a_few() {
    let dpu = Dpu::new();
    dpu.programmer.program(&settings()).unwrap();
    let port = dpu.representor().name;
    for flag in ["locked on", "isolated on", "hairpin on", "bcast_flood off"] {
        let mut bridge = Command::new("bridge");
        bridge.args(["link", "set", "dev", &port]).args(flag.split(' '));
        let output = dpu.netns.netns.run(|| bridge.output().unwrap()).unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && told.contains("Flag is not supported"),
            "{flag}: {told}"
        );
    }
    let shown = dpu.netns.json(&format!("bridge -d -j link show dev {port}"));
    assert_eq!((&shown[0]["learning"], &shown[0]["flood"]), (&json!(false), &json!(false)));
    let shown = dpu.netns.json(&format!("tc -j filter show dev {port} ingress"));
    assert!(shown.to_string().contains("direct-action"), "{shown}");
    let found = dpu.programmer.inspect(&settings()).unwrap();
    assert!(found.steps.iter().all(|step| step.in_place), "{:?}", found.steps);
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
}

/// What may be sent for sure the card forwards by itself, all else comes to the kernel: see
/// hack/vm.d/switchdevsim, which counts for each filter what a card would have it decide about.
#[test]
fn a_card_forwards_by_itself_only_what_is_honest_for_sure() {
    let dpu = Dpu::new();
    assert!(dpu.filters().0, "{:?}", dpu.filters());
    let settings = PortSettings { vlan: None, trunk: [].into(), ..of_pod() };
    dpu.programmer.program(&settings).unwrap();
    let port = dpu.representor();
    let known = dpu.netns.json(&format!("bridge -j fdb show dev {} state static", port.name));
    assert!(known[0]["flags"].to_string().contains("offload"), "{known}");
    // For both versions, with the link-local address: what DHCP's clients get, then TCP and UDP; and all else.
    let flowers = dpu.flowers(&port.name);
    assert_eq!(flowers.len(), 9, "{flowers:?}");
    assert!(
        flowers.iter().all(|one| one["in_hw"] == true && one["skip_sw"] == true),
        "{flowers:?}"
    );
    assert!(
        dpu.guard_detail(&settings).ends_with("the card forwards by itself what is so for sure")
    );

    let pod = dpu.pod_behind(&port);
    let is_forwarded = |to: &str| {
        let (passed, trapped) = dpu.decided(&port.name);
        send(&pod, to);
        eventually("the card decides", || dpu.decided(&port.name) > (passed, trapped));
        dpu.decided(&port.name).0 > passed
    };
    assert!(is_forwarded("10.9.0.2:80") && is_forwarded("[fd09::2]:80"));
    assert!(!is_forwarded("10.9.0.2:68"), "as a server of DHCP");
    assert!(!is_forwarded("10.9.0.255:80"), "to all");
    for (change, to) in [
        ("address add 10.9.0.66/32 dev lo", "10.9.0.2:80"),
        ("link set eth0 address 02:00:00:00:01:99", "[fd09::2]:80"),
    ] {
        pod.run(&format!("ip {change}"));
        pod.run("ip route replace 10.9.0.2/32 dev eth0 src 10.9.0.66");
        assert!(!is_forwarded(to), "{change}");
    }

    let removed = &flowers[3];
    let (pref, handle) = (&removed["pref"], &removed["handle"]);
    let protocol = removed["protocol"].as_str().unwrap();
    dpu.netns.run(&format!(
        "tc filter del dev {} ingress pref {pref} protocol {protocol} handle {handle} flower",
        port.name
    ));
    assert_eq!(dpu.programmer.repair(&settings).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name).len(), 9);
    let anti_spoofing = PortSettings { anti_spoofing: AntiSpoofing::Mac, ..settings.clone() };
    assert_eq!(dpu.programmer.repair(&anti_spoofing).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name).len(), 3);
    let anti_spoofing = PortSettings { anti_spoofing: AntiSpoofing::Off, ..settings };
    assert_eq!(dpu.programmer.repair(&anti_spoofing).unwrap().steps, ["guard"]);
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    dpu.programmer.program(&of_pod()).unwrap();
    dpu.programmer.unprogram(VF).unwrap();
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    dpu.assert_idle();
}

#[test]
fn a_port_whose_filters_the_card_refuses_is_guarded_in_software_and_that_is_told() {
    let dpu = Dpu::new();
    assert!(dpu.filters().0, "{:?}", dpu.filters());
    dpu.set_filters("off");
    dpu.programmer.program(&of_pod()).unwrap();
    let port = dpu.representor();
    assert_eq!(dpu.flowers(&port.name), [Value::Null; 0]);
    let detail = dpu.guard_detail(&of_pod());
    assert!(detail.contains("in software alone") && detail.contains(NO_FILTERS), "{detail}");
    assert_eq!(dpu.programmer.repair(&of_pod()).unwrap().steps, [""; 0]);
    dpu.set_filters("on");
    dpu.programmer.program(&of_pod()).unwrap();
    assert!(!dpu.guard_detail(&of_pod()).contains("in software alone"));
    assert_eq!(dpu.flowers(&port.name).len(), 9);
}

/// With `hw-offload` the daemon makes a filter of each decision, guard and way in one: as `tc` shows, the card takes
/// that of a pod's frames to another.
#[test]
fn on_open_vswitch_a_card_takes_over_what_was_decided_of_a_pods_frames() {
    let dpu = Dpu::new();
    let mut vswitch = OpenVswitch::start_in(&dpu.netns.path());
    assert_eq!(OpenVswitch::datapath(), "system", "run this by hack/test vm");
    vswitch.vsctl("--no-wait set Open_vSwitch . other_config:hw-offload=true");
    vswitch.kill_daemon();
    vswitch.start_daemon();
    let bridge = BridgeSettings { name: "br-ovs".into(), ..BridgeSettings::default() };
    let settings = OvsSettings { bridge, datapath: Datapath::System };
    let database = Arc::new(Vswitch::at(vswitch.socket()));
    let fabric = dpu.netns.netns.run(|| OvsFabric::open(&settings, &database)).unwrap().unwrap();
    let programmer = Programmer::new(Arc::clone(&dpu.eswitch), Arc::new(fabric));
    // A daemon in an emulated machine may take longer for its first bridge than is waited for.
    let is_prepared = || dpu.netns.netns.run(|| programmer.prepare()).unwrap().is_ok();
    eventually("the bridge is there", is_prepared);

    let one =
        PortSettings { vlan: None, trunk: [].into(), bandwidth: Bandwidth::default(), ..of_pod() };
    let other = PortSettings {
        vf: FunctionId::local(0, 0),
        mac: MacAddress([2, 0, 0, 0, 1, 2]),
        addresses: vec!["10.9.0.2".parse().unwrap()],
        ..one.clone()
    };
    programmer.program(&one).unwrap();
    programmer.program(&other).unwrap();
    let ports = dpu.eswitch().representors().unwrap();
    let [port_of_other, port] = &ports[..] else { panic!("{ports:?}") };
    let (pod, pod_of_other) = (dpu.pod_behind(port), dpu.pod_behind(port_of_other));
    pod_of_other.run(&format!("ip link set eth0 address {}", other.mac));
    pod_of_other.run("ip address flush dev eth0");
    pod_of_other.run("ip address add 10.9.0.2/24 dev eth0");
    pod_of_other.run(&format!("ip neighbour replace 10.9.0.1 lladdr {} dev eth0", one.mac));
    // The switch learns where the other is.
    send(&pod_of_other, "10.9.0.1:80");
    let leads_to_other = |flower: &Value| {
        let action = &flower["actions"][0];
        action["kind"] == "mirred" && action["to_dev"] == port_of_other.name
    };
    let by_card = || {
        send(&pod, "10.9.0.2:80");
        let flowers = dpu.flowers(&port.name).into_iter();
        flowers
            .filter(|flower| flower["in_hw"] == true && leads_to_other(flower))
            .collect::<Vec<_>>()
    };
    eventually("the card forwards to the other", || !by_card().is_empty());
    let flowers = by_card();
    let mac = one.mac.to_string();
    assert!(flowers.iter().all(|flower| flower["keys"]["src_mac"] == mac), "{flowers:?}");
}

/// What mlx5's driver says of filters, in its words.
#[test]
fn filters_are_refused_as_mlx5_refuses_them() {
    let dpu = Dpu::new();
    let port = dpu.representor().name;
    dpu.netns.run(&format!("tc qdisc add dev {port} clsact"));
    let refusals = [
        ("arp", "arp_sip 10.9.0.1 action pass", "Unsupported key"),
        ("ip", "action mirred egress redirect dev lo", "not on same switch HW"),
        ("ip", "action skbedit mark 3", "Not implemented offload action"),
        ("ip", "ip_flags firstfrag action drop", "Unsupported match on control.flags"),
    ];
    for (protocol, filter, why) in refusals {
        let mut tc = Command::new("tc");
        tc.args(["filter", "add", "dev", &port, "ingress", "protocol", protocol]);
        tc.args(["flower", "skip_sw"]).args(filter.split(' '));
        let output = dpu.netns.netns.run(|| tc.output().unwrap()).unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{filter}: {told}");
    }
}

#[test]
fn a_cards_mode_is_changed_only_when_configured() {
    let named = |mode| {
        move |card: &Netdevsim| DevlinkSettings {
            devices: vec![card.device().parse().unwrap()],
            mode,
        }
    };
    let dpu = Dpu::with_cards(named(None));
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.contains("is in legacy mode, in which VFs have no representors"), "{refused}");
    assert_eq!(dpu.eswitch().representors().unwrap(), []);
    assert_eq!(dpu.eswitch().cards()[0].mode, "legacy");
    assert_eq!(dpu.netns.link(BRIDGE)["ifname"], BRIDGE, "the fabric is prepared all the same");
    dpu.devlink("dev eswitch set {card} mode switchdev");
    dpu.prepare().unwrap();
    assert_eq!(dpu.eswitch().representors().unwrap().len(), 2);

    let dpu = Dpu::with_cards(|_| DevlinkSettings {
        devices: vec!["pci/0000:ff:1f.7".parse().unwrap()],
        mode: Some(EswitchMode::Switchdev),
    });
    let refused = dpu.prepare().unwrap_err().to_string();
    assert_eq!(refused, "there is no devlink device pci/0000:ff:1f.7");
    assert_eq!(dpu.eswitch().cards(), []);
}

#[test]
fn cards_in_switchdev_mode_are_found_by_themselves() {
    let dpu = Dpu::with_cards(|_| DevlinkSettings::default());
    let refused = dpu.prepare().unwrap_err().to_string();
    assert!(refused.starts_with("no card of this DPU is in switchdev mode"), "{refused}");
    dpu.devlink("dev eswitch set {card} mode switchdev");
    dpu.prepare().unwrap();
    assert_eq!(dpu.representor().vf, VF);

    let other = Netdevsim::plug(&dpu.netns, 1);
    dpu.netns.run(&format!("devlink dev eswitch set {} mode switchdev", other.device()));
    let seen = || {
        let seen = dpu.eswitch().representors().unwrap();
        seen.iter().map(|found| found.vf).collect::<Vec<_>>()
    };
    assert_eq!(seen(), [VF], "one card's VF 0 is mistaken for the other's, and no other VF is");
    let [problem] = &dpu.eswitch().problems()[..] else { panic!("{:?}", dpu.eswitch().problems()) };
    assert!(problem.starts_with("VF pf0vf0 is on card netdevsim/"), "{problem}");
    assert!(problem.ends_with("name one of the cards in eswitch.devices"), "{problem}");
    let of_both = PortSettings { vf: FunctionId::local(0, 0), ..settings() };
    let refused = Chain(&dpu.programmer.program(&of_both).unwrap_err()).to_string();
    assert!(refused.ends_with(problem), "{refused}");
    dpu.programmer.program(&settings()).unwrap();
    dpu.programmer.unprogram(VF).unwrap();

    drop(other);
    assert_eq!(seen(), [FunctionId::local(0, 0), VF]);
    assert!(dpu.eswitch().problems().is_empty());
}

/// What `tc` and `bridge` say that the card has of a port: filters by flower, and stations.
fn offloaded_by_tools(dpu: &Dpu, port: &str) -> Offloaded {
    let filters = dpu.netns.json(&format!("tc -j filter show dev {port} ingress"));
    let filters = filters.as_array().unwrap().iter();
    let filters =
        filters.filter(|it| it["kind"] == "flower" && it["options"]["handle"] != Value::Null);
    let stations = dpu.netns.json(&format!("bridge -j fdb show brport {port}"));
    let stations = stations.as_array().unwrap().iter().filter(|it| it["state"] != "permanent");
    let has_flag = |it: &&Value| it["flags"].as_array().unwrap().contains(&"offload".into());
    let in_hardware = filters.clone().filter(|it| it["options"]["in_hw"] == true).count()
        + stations.clone().filter(has_flag).count();
    let rules = filters.count() + stations.count();
    Offloaded { rules: rules as u64, in_hardware: in_hardware as u64 }
}

#[test]
fn what_the_card_has_taken_over_is_told() {
    let dpu = Dpu::new();
    dpu.programmer.program(&settings()).unwrap();
    let Representor { name, index, .. } = dpu.representor();
    let offloaded = || dpu.fabric.offloaded(&[index].into()).unwrap()[&index];
    eventually("the pod's station is told to be the card's", || {
        let told = offloaded();
        told == offloaded_by_tools(&dpu, &name) && told.rules > 0 && told.in_hardware == told.rules
    });
    let before = offloaded();
    for (preference, flags) in [(7, "skip_sw"), (8, "skip_hw")] {
        let place = format!("dev {name} ingress pref {preference} protocol ip");
        dpu.netns.run(&format!("tc filter add {place} flower {flags} src_ip 10.9.0.1 action drop"));
    }
    let rules = before.rules + 2;
    let expected = Offloaded { rules, in_hardware: before.in_hardware + 1 };
    assert_eq!(offloaded(), expected);
    assert_eq!(offloaded_by_tools(&dpu, &name), expected);
}
