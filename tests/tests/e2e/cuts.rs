//! The network between host and DPU is cut or delayed after each single record of each call.

use std::{thread, time::Duration};

use e2e::{
    Call, Fault, Lab, Netns, Settings, Stopwatch, Timeouts,
    scenarios::{
        cuts::{RuntimeCall, network_fails_after_each_record},
        outages::{Pair, ids},
    },
    wait_for,
};

/// Less than any timeout of these tests, so a mere delay must not make calls fail.
const LATE: Fault = Fault::Late(Duration::from_millis(400));

macro_rules! after_each_record {
    ($($name:ident: $wish:ident, $fault:expr;)+) => {
        $(
            #[test]
            fn $name() {
                network_fails_after_each_record(RuntimeCall::$wish, $fault);
            }
        )+
    };
}

after_each_record! {
    connections_cut_after_each_record_of_an_add: Add, Fault::Cut;
    connections_cut_after_each_record_of_a_del: Del, Fault::Cut;
    connections_cut_after_each_record_of_a_check: Check, Fault::Cut;
    connections_cut_after_each_record_of_a_gc: Collect, Fault::Cut;
    connections_cut_after_each_record_of_a_hello: Hello, Fault::Cut;
    requests_held_up_after_each_record_of_an_add: Add, Fault::HoldUp;
    requests_held_up_after_each_record_of_a_del: Del, Fault::HoldUp;
    requests_held_up_after_each_record_of_a_check: Check, Fault::HoldUp;
    requests_held_up_after_each_record_of_a_gc: Collect, Fault::HoldUp;
    requests_held_up_after_each_record_of_a_hello: Hello, Fault::HoldUp;
    answers_held_up_after_each_record_of_an_add: Add, Fault::HoldDown;
    answers_held_up_after_each_record_of_a_del: Del, Fault::HoldDown;
    answers_held_up_after_each_record_of_a_check: Check, Fault::HoldDown;
    answers_held_up_after_each_record_of_a_gc: Collect, Fault::HoldDown;
    answers_held_up_after_each_record_of_a_hello: Hello, Fault::HoldDown;
    a_dpu_that_is_gone_after_each_record_of_an_add: Add, Fault::Gone;
    a_dpu_that_is_gone_after_each_record_of_a_del: Del, Fault::Gone;
    a_dpu_that_is_gone_after_each_record_of_a_check: Check, Fault::Gone;
    a_dpu_that_is_gone_after_each_record_of_a_gc: Collect, Fault::Gone;
    a_dpu_that_is_gone_after_each_record_of_a_hello: Hello, Fault::Gone;
    each_record_of_an_add_may_be_late: Add, LATE;
    each_record_of_a_del_may_be_late: Del, LATE;
    each_record_of_a_check_may_be_late: Check, LATE;
    each_record_of_a_gc_may_be_late: Collect, LATE;
    each_record_of_a_hello_may_be_late: Hello, LATE;
}

#[test]
fn down_management_link_fails_adds_fast() {
    const LIMIT: Duration = Duration::from_secs(30);
    const FAST: Duration = Duration::from_secs(10);
    let timeouts = Timeouts { grace: 3, ..Timeouts::default() };
    let lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let pair = Pair::attach(&lab);
    let management = |how: &str| lab.card.dpu.ip(&["link", "set", "mgmt0", how]);
    management("down");
    let down = Stopwatch::start();
    lab.add("blue", &Netns::new("other"), "eth0").fails(11, &["DPU_UNREACHABLE"]);
    assert!(down.unstalled() < FAST, "{:?}", down.unstalled());
    wait_for("a STATUS of 50", LIMIT, || (!lab.status().status.success()).then_some(()));
    lab.status().fails(50, &["DPU_UNREACHABLE"]);
    lab.del("blue", &pair.a, "eth0").nothing();
    management("up");
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    lab.assert_invariants();
    lab.del("blue", &pair.b, "eth0").nothing();
    lab.assert_clean_slate();
}

/// A change of another VF causes an inventory during the wait for the DPU's answer.
#[test]
fn vf_is_available_after_late_del() {
    const LIMIT: Duration = Duration::from_secs(30);
    // Keep the session during the test. The first Detach times out; a second one after the DEL's answer frees the VF.
    let lab = Lab::start(&Settings {
        proxied: true,
        pool: 1,
        service: "[limits]\nheartbeat_ms = 60000".into(),
        timeouts: "detach_s = 5".into(),
        ..Settings::with_vfs(2)
    });
    // The agent gets no events of addresses, but of links that go up and down.
    let of_host = |change: &str, state: &str| {
        lab.card.host.ip(&["addr", change, "10.1.1.1/24", "dev", "p0v1"]);
        lab.card.host.ip(&["link", "set", "p0v1", state]);
    };
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.proxy().strike(Fault::HoldDown);
    thread::scope(|scope| {
        let deleted = scope.spawn(|| lab.del("blue", &pod, "eth0"));
        wait_for("the release", LIMIT, || ids(&lab).is_empty().then_some(()));
        of_host("add", "up");
        let state = || lab.operator().get("vfs")[1]["state"].clone();
        wait_for("the inventory", LIMIT, || (state() == "VF_STATE_ABSENT").then_some(()));
        lab.proxy().heal();
        deleted.join().expect("a DEL").nothing();
        let _ = lab.add("blue", &pod, "eth0").result();
    });
    of_host("del", "down");
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

/// The DPU holds the VF of an ADD whose caller died until an inventory reports it as free.
#[test]
fn interface_is_available_after_orphaned_add() {
    const LIMIT: Duration = Duration::from_secs(30);
    let lab = Lab::start(&Settings {
        proxied: true,
        service: "[limits]\nheartbeat_ms = 60000".into(),
        ..Settings::with_vfs(2)
    });
    let pod = Netns::new("pod");
    lab.proxy().strike(Fault::HoldDown);
    let add = Call::new("ADD", &lab.configuration("blue"));
    let add = add.of(pod.name(), Some(&pod.path()), "eth0");
    let mut dying = add.begin(&lab.card.host);
    wait_for("the attachment", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    dying.kill().unwrap();
    dying.wait().unwrap();
    wait_for("the release", LIMIT, || ids(&lab).is_empty().then_some(()));
    lab.proxy().heal();
    lab.del("blue", &pod, "eth0").nothing();
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
