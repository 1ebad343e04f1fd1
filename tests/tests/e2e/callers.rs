//! Callers and agents that die or are suspended during an ADD.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Output},
    time::Duration,
};

use e2e::{
    Call, FaultAction, Lab, Netns, Settings, Stopwatch,
    scenarios::{figure, outages::ids, several},
    wait_for,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const AGENT: &str = "host-shim-agent";
const LIMIT: Duration = Duration::from_secs(60);
/// Timeout of a caller for a silent agent: far below the timeouts of runtimes.
const SILENCE: Duration = Duration::from_secs(20);
const KILLS: u32 = 30;

/// From these points on an attachment belongs to its caller: a caller without an answer sends DEL.
const COMMITTED: [&str; 2] = ["attach-committed", "attach-reported"];
/// Prefixes of points that belong to background work.
const OF_OTHERS: [&str; 3] = ["session-", "inventory-", "pass-"];

/// A heartbeat of 60 s: a suspended service keeps its session, and nothing else uses the connection.
fn lab() -> Lab {
    let service = "[limits]\nheartbeat_ms = 60000".into();
    Lab::start(&Settings { service, ..Settings::default() })
}

fn add(lab: &Lab, pod: &Netns) -> Call {
    let call = Call::new("ADD", &lab.configuration("blue"));
    call.of(pod.name(), Some(&pod.path()), "eth0")
}

/// Starts a call and waits until the agent has received it.
fn begin(lab: &Lab, call: &Call) -> Child {
    let before = lab.calls();
    let begun = call.begin(&lab.card.host);
    lab.wait_for_call(&before);
    begun
}

fn kill(mut plugin: Child) {
    plugin.kill().unwrap();
    plugin.wait().unwrap();
}

#[test]
fn killed_agent_undoes_unanswered_add() {
    let mut lab = Lab::start(&Settings::default());
    let points = points_of_an_add(&lab);
    assert!(points.contains("move-in") && points.contains(COMMITTED[0]), "{points:?}");
    for point in &points {
        let pod = Netns::new("pod");
        let armed = lab.arm(AGENT, FaultAction::Kill, point);
        let plugin = add(&lab, &pod).begin(&lab.card.host);
        lab.agent_ends();
        kill(plugin);
        assert!(!armed.exists(), "{point} was not passed");
        lab.start_agent();
        lab.wait_until_good();
        if COMMITTED.contains(&point.as_str()) {
            assert_eq!(ids(&lab).len(), 1, "{point}");
            lab.assert_invariants();
        } else {
            lab.assert_clean_slate();
        }
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
    }
    figure(points.len(), "kill points of an ADD that nobody repeated");
}

/// Points that the agent passes until it answers an ADD.
fn points_of_an_add(lab: &Lab) -> BTreeSet<String> {
    let pod = Netns::new("pod");
    let trace = lab.trace(AGENT);
    let _ = lab.add("blue", &pod, "eth0").result();
    let passed = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).unwrap();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
    let is_own = |point: &&str| !OF_OTHERS.iter().any(|others| point.starts_with(others));
    passed.lines().filter(is_own).map(str::to_owned).collect()
}

#[test]
fn killed_caller_leaves_nothing() {
    let lab = Lab::start(&Settings::default());
    // The first ADD takes longest, and a busy machine slows it further.
    let length = (0..4).map(|_| length_of_an_add(&lab)).min().unwrap();
    let mut undone = 0;
    for moment in 0..KILLS {
        let pod = Netns::new("pod");
        let mut plugin = add(&lab, &pod).begin(&lab.card.host);
        // Not a wait for a condition: the kills are spread over the whole call.
        e2e::sleep_until_moment(length * moment / KILLS);
        plugin.kill().unwrap();
        let status = plugin.wait().unwrap();
        // The agent's answer may have been on its way.
        if status.success() || is_answered(&lab, &pod) {
            lab.del("blue", &pod, "eth0").nothing();
        } else {
            undone += 1;
        }
        lab.assert_clean_slate();
    }
    assert!(undone > KILLS / 4, "{undone} of {KILLS}");
    figure(undone as usize, "callers killed amid an ADD");
}

fn length_of_an_add(lab: &Lab) -> Duration {
    let pod = Netns::new("pod");
    let begun = Stopwatch::start();
    let _ = lab.add("blue", &pod, "eth0").result();
    let length = begun.elapsed();
    lab.del("blue", &pod, "eth0").nothing();
    length
}

/// Whether the agent has logged the answer to the pod's ADD.
fn is_answered(lab: &Lab, pod: &Netns) -> bool {
    let is_reported = |line: &str| line.contains("attached") && line.contains(pod.name());
    wait_until_idle(lab);
    lab.agent.log().lines().any(|line| is_reported(line) && !line.contains("detached"))
}

fn wait_until_idle(lab: &Lab) {
    wait_for("the agent's end of the call", LIMIT, || lab.calls().is_empty().then_some(()));
}

#[test]
fn unaccepted_add_of_suspended_agent_fails_fast() {
    let lab = lab();
    let pod = Netns::new("pod");
    lab.agent.signal(Signal::SIGSTOP);
    let begun = Stopwatch::start();
    lab.add("blue", &pod, "eth0").fails(11, &["AGENT_UNREACHABLE", "sends no heartbeat"]);
    assert!(begun.unstalled() < SILENCE, "{:?}", begun.unstalled());
    lab.agent.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_clean_slate();
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}

#[test]
fn agent_suspended_during_add_fails_it_fast() {
    let lab = lab();
    let pod = Netns::new("pod");
    lab.service.signal(Signal::SIGSTOP);
    let plugin = begin(&lab, &add(&lab, &pod));
    lab.agent.signal(Signal::SIGSTOP);
    lab.service.signal(Signal::SIGCONT);
    let begun = Stopwatch::start();
    let output = plugin.wait_with_output().unwrap();
    assert!(begun.unstalled() < SILENCE, "{:?}", begun.unstalled());
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(error["details"].as_str().unwrap().starts_with("AGENT_UNREACHABLE"), "{error}");
    lab.agent.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_clean_slate();
}

/// The caller of the first ADD dies during the request to the DPU, and the second one continues it.
fn take_over(lab: &Lab, first: &Call, second: &Call) -> Output {
    lab.service.signal(Signal::SIGSTOP);
    let first = begin(lab, first);
    let second = begin(lab, second);
    kill(first);
    lab.service.signal(Signal::SIGCONT);
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn repeated_add_takes_over_orphaned_add() {
    let lab = lab();
    let pod = Netns::new("pod");
    let output = take_over(&lab, &add(&lab, &pod), &add(&lab, &pod));
    assert_eq!(ids(&lab).len(), 1);
    lab.assert_invariants();
    let repeated = lab.add("blue", &pod, "eth0").result();
    assert_eq!(repeated, serde_json::from_slice::<Value>(&output.stdout).unwrap());
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The second ADD has fewer networks than the first.
#[test]
fn orphaned_group_members_are_released() {
    let lab = lab();
    let pod = Netns::new("pod");
    let first = several::call(&lab, "ADD", &pod, "green");
    let _ = take_over(&lab, &first, &add(&lab, &pod));
    wait_for("one attachment alone", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn dead_repeat_keeps_answered_attachment() {
    let lab = lab();
    let pod = Netns::new("pod");
    let answer = lab.add("blue", &pod, "eth0").result();
    let before = ids(&lab);
    lab.service.signal(Signal::SIGSTOP);
    kill(begin(&lab, &add(&lab, &pod)));
    lab.service.signal(Signal::SIGCONT);
    wait_until_idle(&lab);
    assert_eq!(ids(&lab), before);
    lab.assert_invariants();
    assert_eq!(lab.add("blue", &pod, "eth0").result(), answer);
}

#[test]
fn caller_death_during_dpu_request_leaves_nothing() {
    let lab = lab();
    let pod = Netns::new("pod");
    lab.service.signal(Signal::SIGSTOP);
    kill(begin(&lab, &add(&lab, &pod)));
    let begun = Stopwatch::start();
    wait_until_idle(&lab);
    // The agent does not wait for the DPU's answer.
    assert!(begun.unstalled() < SILENCE, "{:?}", begun.unstalled());
    lab.service.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_clean_slate();
}
