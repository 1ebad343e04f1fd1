//! Scenarios for every runtime: each function is a test that gets the runtime.

use std::{collections::BTreeSet, net::SocketAddr, thread, time::Duration};

use e2e::{
    DPU_OUTSIDE, Lab, Settings, Stopwatch, outside_of,
    runtime::{Conversation, Kind, Node},
    wait_for,
};
use nix::sys::signal::Signal;

/// Timeout of a plugin for reaching the agent.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of moments during a pod's start at which its runtime is killed.
const KILLS: u32 = 6;

/// Starts pods at the same time, and returns their IDs or the runtime's errors.
fn run_at_once(node: &Node, count: usize) -> Vec<Result<String, String>> {
    let runtime = &*node.runtime;
    thread::scope(|scope| {
        let run = |number| scope.spawn(move || runtime.run(&format!("pod-{number}")));
        let runs: Vec<_> = (0..count).map(run).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

pub(crate) fn two_pods_communicate_in_both_families(kind: Kind) {
    let node = Node::start(kind, &Settings::default());
    let pods = ["one", "two"].map(|name| node.run(name));
    for pod in &pods {
        assert!(node.inside(pod).alias.starts_with("virtual-nic "), "{:?}", node.inside(pod));
    }
    node.assert_reaches(&pods[0], &pods[1]);
    node.assert_reaches(&pods[1], &pods[0]);
    node.assert_invariants();
    for pod in &pods {
        node.runtime.stop(pod).unwrap();
        node.remove(pod);
    }
    node.assert_clean_slate();
}

pub(crate) fn twenty_concurrent_pods_have_addresses(kind: Kind) {
    let node = Node::start(kind, &Settings::with_vfs(20));
    let pods: Vec<_> = run_at_once(&node, 20).into_iter().map(Result::unwrap).collect();
    let addresses: BTreeSet<_> = pods.iter().flat_map(|pod| node.inside(pod).addresses).collect();
    assert_eq!(addresses.len(), 40, "{addresses:?}");
    node.assert_reaches(&pods[0], &pods[19]);
    node.assert_invariants();
    thread::scope(|scope| {
        for pod in &pods {
            let runtime = &*node.runtime;
            scope.spawn(move || runtime.remove(pod).unwrap());
        }
    });
    node.assert_clean_slate();
}

pub(crate) fn excess_pod_is_refused_until_room(kind: Kind) {
    let node = Node::start(kind, &Settings::with_vfs(2));
    let (pods, complaints): (Vec<_>, Vec<_>) =
        run_at_once(&node, 3).into_iter().partition(Result::is_ok);
    assert_eq!(pods.len(), 2, "{complaints:?}");
    let complaint = complaints[0].as_ref().unwrap_err();
    let subject = r#"VF pool "default" "#;
    assert_eq!(complaint.matches(subject).count(), 1, "{complaint}");
    assert!(complaint.contains("VFS_EXHAUSTED: "), "{complaint}");
    node.assert_invariants();
    node.remove_all();
    let pod = node.run("again");
    assert_eq!(node.inside(&pod).addresses.len(), 2);
    node.remove(&pod);
    node.assert_clean_slate();
}

pub(crate) fn runtime_killed_during_add_leaves_nothing(kind: Kind) {
    let node = Node::start(kind, &Settings::default());
    let bystander = node.run("bystander");
    node.lab.service.signal(Signal::SIGSTOP);
    let before = node.lab.calls();
    thread::scope(|scope| {
        let run = scope.spawn(|| node.runtime.run("victim"));
        node.lab.wait_for_call(&before);
        node.runtime.crash();
        node.lab.service.signal(Signal::SIGCONT);
        let complaint = run.join().unwrap();
        assert!(complaint.is_err(), "{complaint:?}");
    });
    node.runtime.recover();
    assert_eq!(node.inside(&bystander).addresses.len(), 2);
    node.remove_all();
    node.assert_clean_slate();
}

pub(crate) fn runtime_killed_at_start_leaves_nothing(kind: Kind) {
    let node = Node::start(kind, &Settings::default());
    // The first start takes longer than the following ones.
    node.remove(&node.run("first"));
    let began = Stopwatch::start();
    let second = node.run("second");
    let length = began.elapsed();
    node.remove(&second);
    let mut cut_short = 0;
    for moment in 0..KILLS {
        thread::scope(|scope| {
            let run = scope.spawn(|| node.runtime.run(&format!("victim-{moment}")));
            e2e::sleep_until_moment(length * moment / KILLS);
            node.runtime.crash();
            cut_short += u32::from(run.join().unwrap().is_err());
        });
        node.runtime.recover();
        node.remove_all();
        node.assert_clean_slate();
    }
    assert!(cut_short > 0, "each start was over before its runtime was killed, within {length:?}");
}

pub(crate) fn pods_survive_agent_service_and_runtime(kind: Kind) {
    let mut node = Node::start(kind, &Settings::default());
    let pods = ["one", "two"].map(|name| node.run(name));
    let conversations = node.connect(&pods[0], &pods[1]);
    node.lab.agent.crash();
    node.assert_reaches(&pods[0], &pods[1]);
    node.lab.start_agent();
    node.lab.service.crash();
    node.assert_reaches(&pods[1], &pods[0]);
    node.lab.start_service();
    node.lab.wait_until_good();
    node.lab.agent.stop();
    node.lab.service.stop();
    node.assert_reaches(&pods[0], &pods[1]);
    node.runtime.crash();
    node.lab.start_service();
    node.lab.start_agent();
    node.lab.wait_until_good();
    node.runtime.recover();
    node.assert_reaches(&pods[0], &pods[1]);
    node.runtime.restart();
    node.assert_reaches(&pods[1], &pods[0]);
    conversations.iter().for_each(Conversation::goes_on);
    node.assert_invariants();
    node.remove_all();
    node.assert_clean_slate();
}

pub(crate) fn pod_start_reports_absent_dpu(kind: Kind) {
    let mut node = Node::start(kind, &Settings::default());
    node.lab.service.stop();
    let complaint = node.runtime.run("early").unwrap_err();
    assert!(complaint.contains("the DPU at 192.168.100.2:7443"), "{complaint}");
    node.remove_all();
    node.lab.start_service();
    node.lab.wait_until_good();
    let pod = node.run("late");
    node.assert_invariants();
    node.remove(&pod);
    node.assert_clean_slate();
}

pub(crate) fn pod_removed_without_dpu_is_released_later(kind: Kind) {
    let mut node = Node::start(kind, &Settings::default());
    let pod = node.run("pod");
    node.lab.service.crash();
    node.remove(&pod);
    node.lab.start_service();
    node.lab.wait_until_good();
    node.assert_clean_slate();
}

/// A kubelet repeats the removal; a podman user need not, because the network namespace ends with the container.
pub(crate) fn pod_removed_without_agent_is_released_later(kind: Kind) {
    let mut node = Node::start(kind, &Settings::default());
    let pod = node.run("pod");
    node.lab.agent.stop();
    let removed = node.runtime.remove(&pod);
    assert!(removed.is_err() || node.runtime.ids().is_empty(), "{removed:?}");
    node.lab.start_agent();
    node.lab.wait_until_good();
    node.remove_all();
    node.assert_clean_slate();
}

pub(crate) fn published_port_is_reachable(kind: Kind) {
    let others = "reconcile_s = 1\n[[host_port]]\nnetwork = \"blue\"\n";
    let lab = Lab::start(&Settings { timeouts: others.into(), ..Settings::with_gateways() });
    let outside = outside_of(&lab);
    let node = Node::on(kind, lab);
    let host = &node.lab.card.host;
    wait_for("the host port", LIMIT, || host.pings("10.1.0.1").then_some(()));
    let pod = node.runtime.run_with_port("pod", (8080, 80)).unwrap();
    let netns = node.netns(&pod);
    let ways = DPU_OUTSIDE.map(|address| (&outside, address));
    for (from, address) in ways.into_iter().chain([(&**host, "10.1.0.1")]) {
        let target = SocketAddr::new(address.parse().unwrap(), 8080);
        let _ = Conversation::by_port(from.name(), (&netns, 80), target);
    }
    let complaint = node.runtime.run_with_port("second", (8080, 80)).unwrap_err();
    assert!(complaint.contains("8080"), "{complaint}");
    node.remove_all();
    let again = node.runtime.run_with_port("again", (8080, 80)).unwrap();
    node.remove(&again);
    node.assert_invariants();
}

/// podman 5 reports an error, because netavark opens the network namespace before it calls the plugin. It still removes
/// the container.
pub(crate) fn pod_without_netns_is_removed(kind: Kind) {
    let node = Node::start(kind, &Settings::default());
    let pod = node.run("pod");
    node.delete_netns(&pod);
    let removed = node.runtime.remove(&pod);
    assert!(node.runtime.ids().is_empty(), "{removed:?}");
    node.assert_clean_slate();
}
