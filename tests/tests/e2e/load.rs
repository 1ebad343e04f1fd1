//! Many pods at once.

use std::{fs, process::Child, thread, time::Duration};

use e2e::{
    Call, CardSettings, Lab, Netns, Settings, Timeouts,
    scenarios::load::{concurrent_callers_attach_once, pods_for_all_vfs_come_and_go},
    wait_for,
};
use nix::sys::signal::Signal;

/// More pods than the agent moves at the same time.
const PODS: u32 = 6;
/// Pods that leave in a rolling update.
const LEAVING: usize = 32;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn sixteen_callers_attach_two_hundred_pods() {
    pods_for_all_vfs_come_and_go(&Settings::with_vfs(200));
}

#[test]
fn concurrent_calls_attach_a_pod_once() {
    concurrent_callers_attach_once(&Settings::default());
}

/// On a card without an eswitch, the test controls the carrier.
#[test]
fn carrier_waits_are_independent() {
    let lab = Lab::start(&Settings {
        card: CardSettings { has_eswitch: false, ..CardSettings::default() },
        timeouts: Timeouts { carrier_ms: 5000, ..Timeouts::default() },
        networks: "[[network]]\nname = \"open\"\nanti_spoofing = \"off\"\n".into(),
        ..Settings::with_vfs(PODS)
    });
    let pods: Vec<_> = (0..PODS).map(|_| Netns::new("pod")).collect();
    thread::scope(|scope| {
        let add = |pod| lab.add("open", pod, "eth0").result();
        let adds: Vec<_> = pods.iter().map(|pod| scope.spawn(move || add(pod))).collect();
        wait_for("all VFs to be in their pods", LIMIT, || {
            pods.iter().all(has_interface).then_some(())
        });
        assert!(adds.iter().all(|add| !add.is_finished()), "without a carrier nobody is done");
        for representor in lab.card.representors() {
            lab.card.dpu.ip(&["link", "set", representor["ifname"].as_str().unwrap(), "up"]);
        }
        adds.into_iter().for_each(|add| drop(add.join().unwrap()));
    });
    // Each is reported just after its answer.
    let all_told = || lab.agent.log().matches("\"carrier\":true").count() == pods.len();
    wait_for("each with a carrier", LIMIT, || all_told().then_some(()));
}

/// In order of arrival the ADD's move would be last. It begins beside the two DELs in progress, and two at a time
/// continue beside it.
#[test]
fn add_overtakes_waiting_dels() {
    let lab = Lab::start(&Settings::with_vfs(1 + u32::try_from(LEAVING).unwrap()));
    let (waiting, overtaken) =
        wait_for("most DELs to wait", LIMIT, || overtaken_by_an_add(&lab, &Netns::new("coming")));
    assert!(overtaken > waiting / 2, "{overtaken} of {waiting}");
    lab.assert_clean_slate();
}

/// Number of DELs that wait when an ADD arrives, and of VFs moved out after the ADD's VF. Other work of the ADD depends
/// on the machine's load. `None`: too many DELs did not have to wait, or the VF did not move speculatively.
fn overtaken_by_an_add(lab: &Lab, coming: &Netns) -> Option<(usize, usize)> {
    let call = |verb, pod: &Netns| {
        Call::new(verb, &lab.configuration("blue")).of(pod.name(), Some(&pod.path()), "eth0")
    };
    let leaving: Vec<_> = (0..LEAVING).map(|_| Netns::new("leaving")).collect();
    leaving.iter().for_each(|pod| drop(lab.add("blue", pod, "eth0").result()));
    let trace = lab.trace("host-shim-agent");
    let passed = |point| fs::read_to_string(&trace).unwrap().matches(point).count();
    let lie_in_socket = |number| (lab.agent.unaccepted(&lab.socket()) == number).then_some(());
    lab.agent.signal(Signal::SIGSTOP);
    let begin = |verb, pod| call(verb, pod).begin(&lab.card.host);
    let mut calls: Vec<_> = leaving.iter().map(|pod| begin("DEL", pod)).collect();
    wait_for("the DELs to lie in the socket", LIMIT, || lie_in_socket(LEAVING));
    lab.agent.signal(Signal::SIGCONT);
    let all_begun = || (passed("release-begun") == LEAVING).then_some(());
    wait_for("the DELs to begin", LIMIT, all_begun);
    lab.agent.signal(Signal::SIGSTOP);
    let waiting = LEAVING - passed("move-out");
    calls.push(begin("ADD", coming));
    wait_for("the ADD to lie in the socket", LIMIT, || lie_in_socket(1));
    lab.agent.signal(Signal::SIGCONT);
    calls.into_iter().for_each(assert_success);
    wait_for("all VFs to be out", LIMIT, || (passed("move-out") == LEAVING).then_some(()));
    let passed = fs::read_to_string(&trace).unwrap();
    lab.assert_invariants();
    lab.del("blue", coming, "eth0").nothing();
    let (_, after) = passed.split_once("attach-speculation-moved")?;
    (waiting > LEAVING / 2).then(|| (waiting, after.matches("move-out").count()))
}

fn assert_success(call: Child) {
    let output = call.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn has_interface(pod: &Netns) -> bool {
    pod.json("ip", &["link", "show"]).iter().any(|link| link["ifname"] == "eth0")
}
