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

macro_rules! after_each_record {
    ($($name:ident: $wish:ident, $fault:ident;)+) => {
        $(
            #[test]
            fn $name() {
                the_network_fails_after_each_record(Wish::$wish, Fault::$fault);
            }
        )+
    };
}

after_each_record! {
    connections_cut_after_each_record_of_an_add: Add, Cut;
    connections_cut_after_each_record_of_a_del: Del, Cut;
    connections_cut_after_each_record_of_a_check: Check, Cut;
    connections_cut_after_each_record_of_a_gc: Collect, Cut;
    connections_cut_after_each_record_of_a_hello: Hello, Cut;
    requests_held_up_after_each_record_of_an_add: Add, HoldUp;
    requests_held_up_after_each_record_of_a_del: Del, HoldUp;
    requests_held_up_after_each_record_of_a_check: Check, HoldUp;
    requests_held_up_after_each_record_of_a_gc: Collect, HoldUp;
    requests_held_up_after_each_record_of_a_hello: Hello, HoldUp;
    answers_held_up_after_each_record_of_an_add: Add, HoldDown;
    answers_held_up_after_each_record_of_a_del: Del, HoldDown;
    answers_held_up_after_each_record_of_a_check: Check, HoldDown;
    answers_held_up_after_each_record_of_a_gc: Collect, HoldDown;
    answers_held_up_after_each_record_of_a_hello: Hello, HoldDown;
    a_dpu_that_is_gone_after_each_record_of_an_add: Add, Gone;
    a_dpu_that_is_gone_after_each_record_of_a_del: Del, Gone;
    a_dpu_that_is_gone_after_each_record_of_a_check: Check, Gone;
    a_dpu_that_is_gone_after_each_record_of_a_gc: Collect, Gone;
    a_dpu_that_is_gone_after_each_record_of_a_hello: Hello, Gone;
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
