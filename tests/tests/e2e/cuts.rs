//! The network between host and DPU is cut, or holds up what is on its way, after each single record
//! of each call.

use std::time::{Duration, Instant};

use e2e::{
    Fault, Lab, Netns, Settings,
    scenarios::{
        cuts::{Wish, the_network_fails_after_each_record},
        outages::{Pair, ids},
    },
    wait_for,
};

#[test]
fn connections_cut_after_each_record_of_an_add() {
    the_network_fails_after_each_record(Wish::Add, Fault::Cut);
}

#[test]
fn connections_cut_after_each_record_of_a_del() {
    the_network_fails_after_each_record(Wish::Del, Fault::Cut);
}

#[test]
fn connections_cut_after_each_record_of_a_check() {
    the_network_fails_after_each_record(Wish::Check, Fault::Cut);
}

#[test]
fn connections_cut_after_each_record_of_a_gc() {
    the_network_fails_after_each_record(Wish::Collect, Fault::Cut);
}

#[test]
fn connections_cut_after_each_record_of_a_hello() {
    the_network_fails_after_each_record(Wish::Hello, Fault::Cut);
}

#[test]
fn requests_held_up_after_each_record_of_an_add() {
    the_network_fails_after_each_record(Wish::Add, Fault::HoldUp);
}

#[test]
fn answers_held_up_after_each_record_of_an_add() {
    the_network_fails_after_each_record(Wish::Add, Fault::HoldDown);
}

#[test]
fn requests_held_up_after_each_record_of_a_del() {
    the_network_fails_after_each_record(Wish::Del, Fault::HoldUp);
}

#[test]
fn answers_held_up_after_each_record_of_a_del() {
    the_network_fails_after_each_record(Wish::Del, Fault::HoldDown);
}

#[test]
fn a_dpu_that_is_gone_after_each_record_of_an_add() {
    the_network_fails_after_each_record(Wish::Add, Fault::Gone);
}

#[test]
fn a_dpu_that_is_gone_after_each_record_of_a_del() {
    the_network_fails_after_each_record(Wish::Del, Fault::Gone);
}

#[test]
fn a_management_link_that_is_down_fails_adds_fast_and_delivers_dels_once_it_is_up() {
    const LIMIT: Duration = Duration::from_secs(30);
    const FAST: Duration = Duration::from_secs(10);
    let lab = Lab::start(&Settings { grace: 3, ..Settings::default() });
    let pair = Pair::attach(&lab);
    let management = |how: &str| lab.card.dpu.ip(&["link", "set", "mgmt0", how]);
    management("down");
    let down = Instant::now();
    lab.add("blue", &Netns::new("other"), "eth0").fails(11, &["DPU_UNREACHABLE"]);
    assert!(down.elapsed() < FAST, "{:?}", down.elapsed());
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
