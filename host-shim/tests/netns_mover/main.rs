//! The mover on real links, looked at with `ip`. Needs the privileges of a namespace's root:
//! `unshare -rnm`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "../../crates/netlink/tests/support/xdp.rs"]
mod xdp;

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use host_shim::{
    mover::{
        Announcer, Arrival, Durations, INWARD_STEPS, MoveError, MoveSpec, Namespaces,
        OUTWARD_STEPS, Original, Plan, VfMove, inspect, make_clean,
    },
    vf_source::{OWN_MTU, OwnState, VirtualCard},
};
use netlink::{LinkChange, Netns, Request, Rtnl, VethEnd};
use offload_proto::v1;
use serde_json::Value;

const PCI_ADDRESS: &str = "d000:00:00.4";
const ALIAS: &str = "virtual-nic d000:00:00.4 pf0vf3";
const OWN_NAME: &str = "p0v3";
const OWN_MAC: &str = "02:00:00:00:00:77";
const POD_MAC: &str = "02:00:00:00:00:0a";

/// A network namespace, kept by a process until it is dropped.
struct Space {
    keeper: Child,
    _stdin: ChildStdin,
}

impl Space {
    fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "these tests need `unshare -rnm`");
        Self { _stdin: keeper.stdin.take().unwrap(), keeper }
    }

    fn netns(&self) -> Netns {
        Netns::open(&PathBuf::from(format!("/proc/{}/ns/net", self.keeper.id()))).unwrap()
    }

    fn rtnl(&self) -> Rtnl {
        Rtnl::open_in(&self.netns()).unwrap()
    }

    fn ip(&self, arguments: &str) -> Value {
        let target = format!("--net=/proc/{}/ns/net", self.keeper.id());
        let output = Command::new("nsenter")
            .arg(target)
            .args(["ip", "-j", "-d"])
            .args(arguments.split(' '))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// All links but `lo`, without what changes by itself.
    fn links(&self) -> Vec<Value> {
        let mut links = self.ip("link show").as_array().unwrap().clone();
        links.retain(|link| link["ifname"] != "lo");
        for link in &mut links {
            let link = link.as_object_mut().unwrap();
            for changing in ["ifindex", "link_index", "operstate", "link", "link_netnsid"] {
                link.remove(changing);
            }
        }
        links
    }

    fn link_names(&self) -> Vec<String> {
        self.links().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// A host with a VF, its representor elsewhere, and a pod.
struct Stage {
    host: Space,
    dpu: Space,
    pod: Space,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { host: Space::new(), dpu: Space::new(), pod: Space::new() };
        stage.plug();
        stage
    }

    /// Plugs the VF in, as clean as the card has it.
    fn plug(&self) {
        let dpu = self.dpu.netns();
        let mut host = self.host.rtnl();
        let vf = VethEnd::new(OWN_NAME).mac(OWN_MAC.parse().unwrap());
        host.change(Request::add_veth(&vf, &VethEnd::new("pf0vf3").netns(&dpu))).unwrap();
        let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
        host.change_link(index, &LinkChange::new().alias(ALIAS)).unwrap();
        host.change(Request::add_alternative_name(index, "enp3s0f0v3")).unwrap();
        let mut dpu = self.dpu.rtnl();
        let representor = dpu.link_by_name("pf0vf3").unwrap().unwrap().index;
        dpu.change_link(representor, &LinkChange::new().up()).unwrap();
    }

    fn original(&self) -> Original {
        Original::from(&self.host.rtnl().link_by_name(OWN_NAME).unwrap().unwrap())
    }

    fn vf_move(&self, spec: &MoveSpec) -> VfMove {
        let pod = Some(Arc::new(self.pod.netns()));
        VfMove::new(spec.clone(), self.namespaces(pod))
    }

    fn move_in(&self, spec: &MoveSpec) -> Arrival {
        self.vf_move(spec).move_in().unwrap()
    }

    fn namespaces(&self, pod: Option<Arc<Netns>>) -> Namespaces {
        Namespaces::open(&Arc::new(self.host.netns()), pod).unwrap()
    }
}

/// What is left of a move, done while `meanwhile` is.
fn settled_while(arrival: Arrival, meanwhile: impl FnOnce()) -> Durations {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let both =
        async { tokio::join!(arrival.settle(std::future::ready(())), async { meanwhile() }).0 };
    runtime.block_on(both).unwrap()
}

fn settled(arrival: Arrival) -> Durations {
    settled_while(arrival, || ())
}

fn plan() -> Plan {
    let address = |address: &str, gateway: &str| v1::Address {
        address: address.into(),
        gateway: gateway.into(),
    };
    let route = |destination: &str, gateway: &str, table| v1::Route {
        destination: destination.into(),
        gateway: gateway.into(),
        table,
        ..Default::default()
    };
    let attachment = v1::Attachment {
        key: Some(v1::AttachmentKey { container_id: "c".into(), interface_name: "eth0".into() }),
        mac: POD_MAC.into(),
        mtu: 9000,
        addresses: vec![address("10.1.0.5/16", "10.1.0.1"), address("fd00::5/64", "fd00::1")],
        routes: vec![
            route("0.0.0.0/0", "10.1.0.1", 0),
            route("::/0", "fd00::1", 0),
            route("192.0.2.0/24", "169.254.1.1", 0),
            route("198.51.100.0/24", "10.1.0.1", 77),
        ],
        rules: vec![v1::PolicyRule { source: "10.1.0.5/32".into(), table: 77, priority: 100 }],
        ..Default::default()
    };
    Plan::new(&attachment, Duration::from_secs(2)).unwrap()
}

fn spec(stage: &Stage) -> MoveSpec {
    MoveSpec {
        source: Arc::new(VirtualCard::default()),
        device: PCI_ADDRESS.into(),
        original: stage.original(),
        plan: plan(),
        announcer: Announcer::start().unwrap(),
    }
}

fn assert_in_pod(stage: &Stage, spec: &MoveSpec) {
    assert_eq!(inspect(spec, &stage.pod.netns()).unwrap(), None);
    assert!(stage.host.link_names().is_empty());
    let link = &stage.pod.ip("addr show dev eth0")[0];
    assert_eq!(link["address"], POD_MAC);
    assert_eq!(link["mtu"], 9000);
    let held: Vec<_> = link["addr_info"].as_array().unwrap().iter().collect();
    let has = |address: &str| held.iter().any(|info| info["local"] == address);
    assert!(has("10.1.0.5") && has("fd00::5"), "{held:?}");
    let tentative = held.iter().any(|info| info["local"] == "fd00::5" && info["tentative"] == true);
    assert!(!tentative, "the address is usable at once");
    let routes = stage.pod.ip("route show");
    let has_route = |destination: &str, gateway: &str| {
        let routes = routes.as_array().unwrap().iter();
        routes.into_iter().any(|route| route["dst"] == destination && route["gateway"] == gateway)
    };
    assert!(has_route("default", "10.1.0.1"), "{routes}");
    assert!(has_route("192.0.2.0/24", "169.254.1.1"), "{routes}");
    assert_eq!(stage.pod.ip("route show table 77")[0]["dst"], "198.51.100.0/24");
    let rules = stage.pod.ip("rule show");
    assert!(rules.as_array().unwrap().iter().any(|rule| rule["priority"] == 100), "{rules}");
    let loopback = &stage.pod.ip("link show dev lo")[0];
    assert!(loopback["flags"].as_array().unwrap().contains(&"UP".into()));
}

/// The host has what it had, and the pod nothing.
fn assert_clean(stage: &Stage, before: &[Value]) {
    assert_eq!(stage.host.links(), before);
    assert!(stage.pod.links().is_empty(), "{:?}", stage.pod.links());
    let rules = stage.pod.ip("rule show");
    assert!(rules.as_array().unwrap().iter().all(|rule| rule["priority"] != 100), "{rules}");
}

#[test]
fn a_vf_moves_in_and_out() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let durations = settled(stage.move_in(&spec));
    assert!(!durations.without_carrier);
    assert_in_pod(&stage, &spec);
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn the_neighbours_are_told_where_the_pods_addresses_are() {
    let stage = Stage::new();
    let spec = spec(&stage);
    stage.dpu.ip("address add 10.1.0.1/16 dev pf0vf3");
    let arrival = stage.move_in(&spec);
    for address in ["10.1.0.5", "fd00::5"] {
        let known = "lladdr 02:00:00:00:00:99 dev pf0vf3 nud stale";
        stage.dpu.ip(&format!("neigh replace {address} {known}"));
    }
    settled(arrival);
    let is_told = || {
        let neighbours = stage.dpu.ip("neigh show dev pf0vf3");
        let neighbours = neighbours.as_array().unwrap().iter();
        neighbours.filter(|neighbour| neighbour["lladdr"] == POD_MAC).count() == 2
    };
    assert!((0..1000).any(|_| is_told()), "{}", stage.dpu.ip("neigh show"));
}

#[test]
fn a_carrier_that_comes_late_is_awaited_when_all_else_is_done() {
    let stage = Stage::new();
    let mut spec = spec(&stage);
    stage.dpu.ip("link set pf0vf3 down");
    let arrival = stage.move_in(&spec);
    assert_in_pod(&stage, &spec);
    let durations = settled_while(arrival, || drop(stage.dpu.ip("link set pf0vf3 up")));
    assert!(!durations.without_carrier);

    stage.dpu.ip("link set pf0vf3 down");
    spec.plan.carrier_limit = Duration::from_millis(1);
    assert!(settled(stage.move_in(&spec)).without_carrier);
    assert_in_pod(&stage, &spec);
}

#[test]
fn repeating_changes_nothing() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    for _ in 0..3 {
        drop(stage.move_in(&spec));
        assert_in_pod(&stage, &spec);
    }
    for _ in 0..3 {
        stage.vf_move(&spec).move_out().unwrap();
        assert_clean(&stage, &before);
    }
}

#[test]
fn what_is_lost_in_the_pod_is_put_back() {
    let stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    let lost = |change: &str| {
        stage.pod.ip(change);
        assert!(inspect(&spec, &stage.pod.netns()).unwrap().is_some(), "{change}");
        drop(stage.move_in(&spec));
        assert_in_pod(&stage, &spec);
    };
    lost("addr del 10.1.0.5/16 dev eth0");
    lost("route del default");
    lost("rule del priority 100");
    lost("link set eth0 down");
    lost("link set eth0 mtu 1400");
}

#[test]
fn a_move_that_was_broken_off_is_finished() {
    let stage = Stage::new();
    let spec = spec(&stage);
    let mut host = stage.host.rtnl();
    let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
    host.change_link(index, &LinkChange::new().netns(&stage.pod.netns())).unwrap();
    assert_eq!(stage.pod.link_names(), [OWN_NAME]);
    drop(stage.move_in(&spec));
    assert_in_pod(&stage, &spec);
}

#[test]
fn a_taken_interface_name_is_refused_before_anything_is_moved() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let refused = || {
        let failed = stage.vf_move(&spec).move_in().unwrap_err();
        assert_eq!(failed.step, "check-names");
        assert!(
            matches!(&failed.source, Some(MoveError::InterfaceExists(name)) if name == "eth0"),
            "{failed}"
        );
        assert_eq!(stage.host.links(), before);
    };
    stage.pod.ip("link add eth0 type veth peer name other");
    refused();
    stage.pod.ip("link set eth0 name first");
    stage.pod.ip("link property add dev first altname eth0");
    refused();
}

#[test]
fn an_interface_name_that_is_taken_at_the_last_moment_is_refused_as_such() {
    let stage = Stage::new();
    let before = stage.host.links();
    let mut vf_move = stage.vf_move(&spec(&stage));
    let (checks, others) = INWARD_STEPS.split_at(2);
    saga::run(checks, &mut vf_move).unwrap();
    stage.pod.ip("link add eth0 type veth peer name other");
    let failed = saga::run(others, &mut vf_move).unwrap_err();
    assert_eq!(failed.step, "move-in");
    assert!(matches!(&failed.source, Some(MoveError::InterfaceExists(_))), "{failed}");
    assert!(saga::undo(checks, &mut vf_move).is_empty());
    assert_eq!(stage.host.links(), before);
}

#[test]
fn alternative_names_in_the_way_are_taken_off_and_restored() {
    let stage = Stage::new();
    let mut host = stage.host.rtnl();
    let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
    host.change(Request::add_alternative_name(index, "eth0")).unwrap();
    host.change(Request::add_alternative_name(index, "taken")).unwrap();
    stage.pod.ip("link add taken type veth peer name other");
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    assert!(stage.pod.link_names().contains(&"eth0".to_owned()));
    stage.vf_move(&spec).move_out().unwrap();
    assert_eq!(stage.host.links(), before);
}

#[test]
fn a_vf_whose_own_name_was_taken_comes_home_when_the_name_is_free() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    stage.host.ip(&format!("link add {OWN_NAME} type veth peer name usurper"));
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert_eq!(failed.step, "restore");
    assert!(stage.pod.links().is_empty(), "the VF has left the pod all the same");
    stage.host.ip("link del usurper");
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn whatever_the_pod_did_to_the_vf_is_undone() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    for change in [
        "link set eth0 down",
        "link set eth0 name mine",
        "link set mine address 02:00:00:00:00:ee",
        "link set mine mtu 1300",
        "link property add dev mine altname p0v3",
        "link property add dev mine altname another",
        "link set mine promisc on",
        "link set mine allmulticast on",
        "link set mine txqueuelen 77",
        "link set mine group 7",
        "link set mine up",
    ] {
        stage.pod.ip(change);
    }
    stage.vf_move(&spec).move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn no_xdp_program_of_a_pod_comes_home_with_the_vf() {
    if !xdp::may_be_attached() {
        return;
    }
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    let (_folder, program) = xdp::dropping_program();
    for mode in ["xdpgeneric", "xdpdrv"] {
        drop(stage.move_in(&spec));
        stage.pod.ip(&format!("link set eth0 {mode} object {} section xdp", program.display()));
        stage.vf_move(&spec).move_out().unwrap();
        assert_clean(&stage, &before);
    }
}

#[test]
fn a_refused_configuration_is_undone() {
    let stage = Stage::new();
    let before = stage.host.links();
    let mut spec = spec(&stage);
    spec.plan.mtu = 1;
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert_eq!(failed.step, "configure");
    assert!(failed.left.is_empty());
    assert_clean(&stage, &before);
    spec.plan = Plan { name: "a/b".into(), ..plan() };
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert_eq!(failed.step, "move-in");
    assert!(failed.left.is_empty());
    assert_clean(&stage, &before);
}

#[test]
fn a_vf_that_is_nowhere_is_told_as_missing() {
    let stage = Stage::new();
    let spec = spec(&stage);
    stage.host.ip(&format!("link del {OWN_NAME}"));
    let failed = stage.vf_move(&spec).move_in().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
}

#[test]
fn a_vf_that_fell_back_under_the_pods_name_is_restored() {
    let stage = Stage::new();
    let before = stage.host.links();
    let spec = spec(&stage);
    stage.host.ip(&format!("link set {OWN_NAME} down"));
    // As a real VF comes back when its pod's namespace ends.
    stage.host.ip(&format!("link set {OWN_NAME} name eth0 mtu 9000 address {POD_MAC}"));
    let vf_move = VfMove::new(spec, stage.namespaces(None));
    vf_move.move_out().unwrap();
    assert_clean(&stage, &before);
}

#[test]
fn nothing_of_a_pods_namespace_stays_open() {
    let mut stage = Stage::new();
    let spec = spec(&stage);
    drop(stage.move_in(&spec));
    assert!(!stage.dpu.links().is_empty());
    stage.pod = Space::new();
    // The first pod's namespace ends with its last reference, and the veth pair with it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !stage.dpu.links().is_empty() {
        assert!(Instant::now() < deadline, "something keeps the pod's namespace alive");
        std::thread::yield_now();
    }
    let failed = stage.vf_move(&spec).move_out().unwrap_err();
    assert!(matches!(failed.source, Some(MoveError::Missing(_))), "{failed}");
    stage.plug();
    stage.vf_move(&spec).move_out().unwrap();
}

#[test]
fn steps_have_names_of_their_own() {
    let names: Vec<_> = INWARD_STEPS.iter().chain(OUTWARD_STEPS).map(|step| step.name()).collect();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}

/// Every step fails in turn, after its work is done.
#[cfg(feature = "fault-injection")]
mod faults {
    use super::*;

    fn with_fault(step: &str, act: impl FnOnce()) {
        let folder = PathBuf::from(std::env::var_os("OFFLOAD_FAULTS").expect("set by the test"));
        std::fs::write(folder.join(format!("fail-{step}")), "").unwrap();
        act();
        assert!(!folder.join(format!("fail-{step}")).exists(), "the fault of {step} struck");
    }

    /// Faults are read from the environment, which a test can only set for a process of its own.
    fn in_process_with_faults(test: &str) -> bool {
        if std::env::var_os("OFFLOAD_FAULTS").is_some() {
            return true;
        }
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("OFFLOAD_FAULTS", folder.path())
            .status()
            .unwrap();
        assert!(status.success());
        false
    }

    #[test]
    fn every_failed_step_inwards_leaves_a_clean_slate() {
        if !in_process_with_faults("faults::every_failed_step_inwards_leaves_a_clean_slate") {
            return;
        }
        let stage = Stage::new();
        let before = stage.host.links();
        let spec = spec(&stage);
        for step in INWARD_STEPS {
            with_fault(step.name(), || {
                let failed = stage.vf_move(&spec).move_in().unwrap_err();
                assert_eq!(failed.step, step.name());
                assert!(failed.left.is_empty(), "{failed}");
            });
            assert_clean(&stage, &before);
        }
        drop(stage.move_in(&spec));
        assert_in_pod(&stage, &spec);
    }

    #[test]
    fn after_every_failed_step_outwards_the_next_try_succeeds() {
        if !in_process_with_faults("faults::after_every_failed_step_outwards_the_next_try_succeeds")
        {
            return;
        }
        let stage = Stage::new();
        let before = stage.host.links();
        let spec = spec(&stage);
        for step in OUTWARD_STEPS {
            drop(stage.move_in(&spec));
            with_fault(step.name(), || {
                assert_eq!(stage.vf_move(&spec).move_out().unwrap_err().step, step.name());
            });
            stage.vf_move(&spec).move_out().unwrap();
            assert_clean(&stage, &before);
        }
    }
}

#[test]
fn a_vf_without_a_record_is_made_fit_to_be_given_out() {
    let stage = Stage::new();
    stage.host.ip(&format!("link set {OWN_NAME} name eth7 mtu 9000 up"));
    stage.host.ip("link set eth7 promisc on allmulticast on group 7");
    stage.host.ip("address add 10.9.9.9/24 dev eth7");
    let mut host = stage.host.rtnl();
    let stray = host.link_by_name("eth7").unwrap().unwrap();
    let own = OwnState { name: OWN_NAME.into(), mac: None, mtu: OWN_MTU, portrait: None };
    make_clean(&mut host, &stray, &own, None).unwrap();
    let clean = host.link_by_name(OWN_NAME).unwrap().unwrap();
    assert_eq!((clean.index, clean.mtu, clean.is_up), (stray.index, OWN_MTU, false));
    assert!(!clean.is_promiscuous && !clean.is_all_multicast && clean.group == 0);
    assert_eq!(host.addresses(stray.index).unwrap(), []);
}
