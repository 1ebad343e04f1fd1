//! One host with cards of two DPUs and an agent for each.

use std::{thread, time::Duration};

use e2e::{Call, Card, DpuPlan, Fleet, Netns, Settings, scenarios::pods::addresses, wait_for};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::routing::rules_to_table;

const LIMIT: Duration = Duration::from_secs(60);

/// Interface of each DPU in a pod.
const INTERFACES: [&str; 2] = ["eth0", "net1"];

/// Network of one DPU, which does not know the other's.
fn network(dpu: u8) -> String {
    format!(
        r#"
[[network]]
name = "blue"
default = true
[[network.subnets]]
cidr = "10.{dpu}.0.0/16"
gateway = "10.{dpu}.0.1"
[[network.subnets]]
cidr = "fd00:10:{dpu}::/64"
gateway = "fd00:10:{dpu}::1"
"#
    )
}

/// The same rule in the networks of both DPUs, and a route of each in its table.
fn network_with_rule(dpu: u8) -> String {
    let routes = format!(
        r#"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.{dpu}.0.1"
table = 100
[[network.rules]]
source = "10.0.0.0/8"
table = 100
priority = 1000
"#
    );
    network(dpu) + &routes
}

/// node-1 with a card of dpu-1 and one of dpu-2.
fn one_host() -> Fleet {
    one_host_with(network)
}

fn one_host_with(network: fn(u8) -> String) -> Fleet {
    let plan = |name, dpu| {
        let settings = Settings { networks: network(dpu), ..Settings::default() };
        DpuPlan { name, hosts: vec!["node-1"], settings }
    };
    Fleet::start(&[plan("dpu-1", 1), plan("dpu-2", 2)])
}

/// Two pods with an interface of each DPU.
struct Pods {
    a: Netns,
    b: Netns,
    of_b: Vec<String>,
}

impl Pods {
    fn attach(fleet: &Fleet) -> Self {
        let (a, b) = (Netns::new("a"), Netns::new("b"));
        let mut of_b = Vec::new();
        for (agent, interface) in fleet.agents.iter().zip(INTERFACES) {
            let _ = agent.add("blue", &a, interface).result();
            of_b.extend(addresses(&agent.add("blue", &b, interface).result()));
        }
        let pods = Self { a, b, of_b };
        pods.assert_reach();
        fleet.assert_invariants();
        pods
    }

    /// By both DPUs and in both families.
    fn reach(&self) -> bool {
        self.of_b.iter().all(|address| self.a.pings(address))
    }

    fn assert_reach(&self) {
        assert!(self.reach(), "{} does not reach {:?}", self.a.name(), self.of_b);
    }

    fn detach(&self, fleet: &Fleet) {
        for (agent, interface) in fleet.agents.iter().zip(INTERFACES) {
            agent.del("blue", &self.a, interface).nothing();
            agent.del("blue", &self.b, interface).nothing();
        }
        fleet.assert_clean_slate();
    }
}

#[test]
fn pod_has_interface_of_each_dpu() {
    let fleet = one_host();
    let pods = Pods::attach(&fleet);
    for (dpu, domain) in ["d000:", "d010:"].iter().enumerate() {
        let attachments = fleet.operator(dpu).get("attachments");
        let is_of_its_card =
            |a: &Value| a["vf"]["device"].as_str().is_some_and(|pci| pci.starts_with(domain));
        assert_eq!(attachments.len(), 2, "{attachments:?}");
        assert!(attachments.iter().all(is_of_its_card), "{attachments:?}");
    }
    pods.detach(&fleet);
}

#[test]
fn each_agent_leaves_the_other_dpus_vfs_alone() {
    let fleet = one_host();
    let pods = Pods::attach(&fleet);
    let [first, second] = &fleet.agents[..] else { panic!("two agents") };
    for agent in [first, second] {
        agent.program.signal(Signal::SIGHUP);
    }
    fleet.wait_until_good();
    for (dpu, domain_of_other) in [(0, "d010:"), (1, "d000:")] {
        assert_eq!(fleet.operator(dpu).get("vfs").len(), 4);
        let found = fleet.operator(dpu).output(&["doctor"]);
        assert!(!found.contains(domain_of_other), "{found}");
    }
    second.del("blue", &pods.a, "eth0").nothing();
    first.del("blue", &pods.a, "net1").nothing();
    pods.assert_reach();
    fleet.assert_invariants();
    pods.detach(&fleet);
}

#[test]
fn agent_repairs_only_its_own_vfs() {
    let mut fleet = one_host();
    fleet.agents[1].program.stop();
    let host = &fleet.agents[0].card.host;
    let mtu = |vf: &str| {
        let links = host.json("ip", &["link", "show"]);
        links.iter().find(|link| link["ifname"] == vf).map(|link| link["mtu"].clone())
    };
    host.ip(&["link", "set", "c1p0v3", "mtu", "1400"]);
    // After two repairs the agent has looked at all VFs.
    for _ in 0..2 {
        host.ip(&["link", "set", "p0v3", "mtu", "1400"]);
        fleet.agents[0].program.signal(Signal::SIGHUP);
        wait_for("its own VF to be right", LIMIT, || (mtu("p0v3")? == 1500).then_some(()));
    }
    assert_eq!(mtu("c1p0v3").unwrap(), 1400);
    fleet.agents[1].start();
    fleet.wait_until_good();
    fleet.assert_clean_slate();
}

#[test]
fn other_dpu_serves_during_outage() {
    let mut fleet = one_host();
    let pods = Pods::attach(&fleet);
    fleet.dpus[1].service.crash();
    fleet.agents[1].program.crash();
    pods.assert_reach();
    let pod = Netns::new("pod");
    let _ = fleet.agents[0].add("blue", &pod, "eth0").result();
    fleet.agents[1].add("blue", &pod, "net1").fails(11, &["AGENT_UNREACHABLE"]);
    fleet.agents[0].status().nothing();
    fleet.agents[0].del("blue", &pod, "eth0").nothing();
    fleet.dpus[1].start();
    fleet.agents[1].start();
    fleet.wait_until_good();
    fleet.assert_invariants();
    pods.detach(&fleet);
}

#[test]
fn second_card_reset_returns_its_vfs() {
    let mut fleet = one_host();
    let pods = Pods::attach(&fleet);
    let index = || pods.a.json("ip", &["link", "show", "eth0"])[0]["ifindex"].clone();
    let before = index();
    fleet.agents[1].reset_card();
    wait_for("the pods to reach each other again", LIMIT, || pods.reach().then_some(()));
    assert_eq!(index(), before, "the other card was not reset");
    fleet.wait_until_good();
    fleet.assert_invariants();
    pods.detach(&fleet);
}

#[test]
fn dead_pod_returns_both_dpus_vfs() {
    let fleet = one_host();
    let Pods { a, b, .. } = Pods::attach(&fleet);
    let name = a.name().to_owned();
    drop(a);
    for (agent, interface) in fleet.agents.iter().zip(INTERFACES) {
        let del = Call::new("DEL", &agent.configuration("blue"));
        agent.execute(&del.of(&name, None, interface)).nothing();
        agent.del("blue", &b, interface).nothing();
    }
    fleet.assert_clean_slate();
    assert_eq!(Card::ends_in(&fleet.agents[0].card.host).len(), 8);
}

#[test]
fn shared_rule_of_two_dpus_stays() {
    let fleet = one_host_with(network_with_rule);
    let [first, second] = &fleet.agents[..] else { panic!("two agents") };
    let pod = Netns::new("pod");
    let _ = first.add("blue", &pod, "eth0").result();
    for round in 0..4 {
        let _ = second.add("blue", &pod, "net1").result();
        thread::scope(|scope| {
            scope.spawn(|| second.del("blue", &pod, "net1").nothing());
            let _ = first.add("blue", &pod, "net2").result();
        });
        assert_eq!(rules_to_table(&pod), 1, "round {round}");
        first.del("blue", &pod, "net2").nothing();
        assert_eq!(rules_to_table(&pod), 1, "round {round}");
        thread::scope(|scope| {
            scope.spawn(|| first.del("blue", &pod, "eth0").nothing());
            let _ = second.add("blue", &pod, "net1").result();
        });
        assert_eq!(rules_to_table(&pod), 1, "round {round}");
        let _ = first.add("blue", &pod, "eth0").result();
        second.del("blue", &pod, "net1").nothing();
        assert_eq!(rules_to_table(&pod), 1, "round {round}");
    }
    first.del("blue", &pod, "eth0").nothing();
    assert_eq!(rules_to_table(&pod), 0);
    fleet.assert_clean_slate();
}
