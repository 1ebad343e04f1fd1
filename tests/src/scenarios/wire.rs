//! Two DPUs with a host each, whose uplinks are wired to one switch.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use super::pods::addresses;
use crate::{Dpu, DpuPlan, FabricKind, Fleet, Netns, Settings, UPLINK, fabric, wait_for};

const LIMIT: Duration = Duration::from_secs(120);

/// The network `blue` of one DPU. Both DPUs share a subnet, of which each allocates its part.
fn blue(dpu: u8) -> String {
    format!(
        r#"
[[network]]
name = "blue"
default = true
[[network.subnets]]
cidr = "10.1.0.0/16"
gateway = "10.1.0.1"
ranges = [{{ start = "10.1.{dpu}.1", end = "10.1.{dpu}.254" }}]
[[network.subnets]]
cidr = "fd00:10:1::/64"
gateway = "fd00:10:1::1"
ranges = [{{ start = "fd00:10:1::{dpu}:1", end = "fd00:10:1::{dpu}:ffff" }}]
"#
    )
}

/// The network `red` of one DPU, in VLAN 100.
fn red(dpu: u8) -> Value {
    json!({
        "name": "red",
        "vlan": 100,
        "subnets": [{
            "cidr": "10.7.0.0/16",
            "ranges": [{ "start": format!("10.7.{dpu}.1"), "end": format!("10.7.{dpu}.254") }],
        }],
    })
}

/// node-1 with dpu-1 and node-2 with dpu-2, wired to one switch.
fn two_dpus(settings: &Settings) -> Fleet {
    let plan = |name, host, dpu| {
        let settings = Settings { networks: blue(dpu), ..settings.clone() };
        DpuPlan { name, hosts: vec![host], settings }
    };
    Fleet::start_wired(&[plan("dpu-1", "node-1", 1), plan("dpu-2", "node-2", 2)])
}

/// A pod behind each DPU.
struct Pods {
    network: &'static str,
    pods: [Netns; 2],
    addresses: [Vec<String>; 2],
}

impl Pods {
    fn attach(fleet: &Fleet, network: &'static str) -> Self {
        let pods = ["a", "b"].map(Netns::new);
        let added =
            |dpu: usize| addresses(&fleet.agents[dpu].add(network, &pods[dpu], "eth0").result());
        let addresses = [added(0), added(1)];
        Self { network, pods, addresses }
    }

    /// Whether the pods reach each other in all families and both directions.
    fn reach(&self) -> bool {
        let [a, b] = &self.pods;
        let [of_a, of_b] = &self.addresses;
        of_b.iter().all(|to| a.pings(to)) && of_a.iter().all(|to| b.pings(to))
    }

    fn assert_reach(&self) {
        assert!(self.reach(), "no way over the wire on {}: {:?}", self.network, self.addresses);
    }

    fn detach(&self, fleet: &Fleet) {
        for (agent, pod) in fleet.agents.iter().zip(&self.pods) {
            agent.del(self.network, pod, "eth0").nothing();
        }
    }
}

/// VLANs of the uplink in `bridge vlan`.
fn vlans_of_uplink(dpu: &Netns) -> Vec<u64> {
    let ports = dpu.json("bridge", &["vlan", "show", "dev", UPLINK]);
    let vlans = ports.iter().flat_map(|port| port["vlans"].as_array().into_iter().flatten());
    vlans.filter_map(|vlan| vlan["vlan"].as_u64()).collect()
}

/// Pods of two DPUs ping each other over their uplinks, despite failures of the wire and the services.
///
/// # Panics
/// If an expectation is not met.
pub fn two_dpus_pods_ping_over_uplinks(settings: &Settings) {
    let mut fleet = two_dpus(settings);
    let pods = Pods::attach(&fleet, "blue");
    fleet.assert_invariants();
    pods.assert_reach();

    fleet.cut_wire(0);
    assert!(!pods.reach(), "there is another way than the wire");
    fleet.assert_invariants();
    fleet.repair_wire(0);
    wait_for("the pods to reach each other again", LIMIT, || pods.reach().then_some(()));

    for dpu in 0..fleet.dpus.len() {
        fleet.dpus[dpu].service.crash();
        pods.assert_reach();
        fleet.dpus[dpu].start();
        fleet.wait_until_good();
        pods.assert_reach();
    }
    fleet.assert_invariants();
    pods.detach(&fleet);
    fleet.assert_clean_slate();
}

/// An uplink that another program removes and switches off is repaired: at once by a running service, else at its
/// start.
///
/// # Panics
/// If an expectation is not met.
pub fn removed_uplink_is_restored(settings: &Settings) {
    let mut fleet = two_dpus(settings);
    let pods = Pods::attach(&fleet, "blue");
    pods.assert_reach();
    let take_out = |dpu: &Dpu| {
        fabric::take_out(&dpu.netns, dpu.vswitch.as_ref(), UPLINK);
        dpu.netns.ip(&["link", "set", UPLINK, "down"]);
    };
    take_out(&fleet.dpus[0]);
    wait_for("the pods to reach each other again", LIMIT, || pods.reach().then_some(()));

    fleet.dpus[1].service.crash();
    take_out(&fleet.dpus[1]);
    assert!(!pods.reach(), "there is another way than the wire");
    fleet.dpus[1].start();
    wait_for("the pods to reach each other again", LIMIT, || pods.reach().then_some(()));
    fleet.wait_until_good();
    fleet.assert_invariants();
    pods.detach(&fleet);
    fleet.assert_clean_slate();
}

/// A network's MTU must fit through the uplink.
///
/// # Panics
/// If an expectation is not met.
pub fn mtu_beyond_uplink_is_refused(settings: &Settings) {
    let fleet = two_dpus(settings);
    let (operator, dpu) = (fleet.operator(0), &fleet.dpus[0].netns);
    let file = operator.configuration.with_file_name("jumbo.json");
    fs::write(&file, r#"{"name": "jumbo", "mtu": 9000}"#).unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap()];
    let refused = operator.is_refused(&apply);
    let names =
        |reported: &str, values: &[&str]| values.iter().all(|value| reported.contains(value));
    assert!(names(&refused, &["network jumbo", "mtu of 9000", "carries 1500"]), "{refused}");

    let resize = |mtu| dpu.ip(&["link", "set", UPLINK, "mtu", mtu]);
    let is_reported = || {
        let status = operator.output(&["status", "-o", "json"]);
        names(&status, &["network blue", "mtu of 1500", "carries 1400"])
    };
    assert!(!is_reported());
    resize("1400");
    wait_for("it to be told", LIMIT, || is_reported().then_some(()));
    resize("9000");
    wait_for("it to be told no more", LIMIT, || (!is_reported()).then_some(()));
    let _ = operator.output(&apply);
}

/// On a kernel with VLAN filtering, the wire carries the pods' VLANs with tags. On others, an interface in a VLAN is
/// refused by name. Returns which case was tested.
///
/// # Panics
/// If an expectation is not met.
#[must_use]
pub fn vlan_crosses_uplink_or_is_refused(settings: &Settings) -> bool {
    let fleet = two_dpus(settings);
    let kernel_can = fleet.operator(0).dpu_can("vlan-filtering");
    for (dpu, number) in [(0, 1), (1, 2)] {
        let operator = fleet.operator(dpu);
        let file = operator.configuration.with_file_name("red.json");
        fs::write(&file, red(number).to_string()).unwrap();
        let apply = ["apply", "-f", file.to_str().unwrap()];
        if kernel_can {
            let _ = operator.output(&apply);
            continue;
        }
        let refused = operator.is_refused(&apply);
        let words = ["UNSUPPORTED", "network red", "VLAN 100 "];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
    if kernel_can {
        vlans_go_over_the_wire(&fleet, settings.kind_of_fabric);
    } else {
        fleet.assert_clean_slate();
    }
    kernel_can
}

fn vlans_go_over_the_wire(fleet: &Fleet, fabric: FabricKind) {
    // Open vSwitch's uplinks carry every VLAN.
    let is_carried = |dpu: &Dpu| vlans_of_uplink(&dpu.netns).contains(&100);
    let follows =
        |dpu: &Dpu, carried: bool| fabric == FabricKind::OpenVswitch || is_carried(dpu) == carried;
    let untagged = Pods::attach(fleet, "blue");
    let tagged = Pods::attach(fleet, "red");
    fleet.assert_invariants();
    untagged.assert_reach();
    tagged.assert_reach();
    for dpu in &fleet.dpus {
        assert!(follows(dpu, true));
    }
    // One subnet for both networks, so that only the VLAN separates them.
    untagged.pods[0].ip(&["addr", "add", "192.0.2.1/24", "dev", "eth0"]);
    tagged.pods[1].ip(&["addr", "add", "192.0.2.2/24", "dev", "eth0"]);
    assert!(!untagged.pods[0].pings("192.0.2.2"), "the wire joins VLANs");

    tagged.detach(fleet);
    for dpu in &fleet.dpus {
        assert!(follows(dpu, false), "no pod is in it any more");
    }
    untagged.assert_reach();
    untagged.detach(fleet);
    fleet.assert_clean_slate();
}
