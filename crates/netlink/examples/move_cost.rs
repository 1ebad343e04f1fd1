//! Cost of moving and configuring a pod's interface on this kernel, with this crate.
//!
//! `unshare -rnm cargo run --release --example move_cost -p netlink`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement by hand stops at the first failure and prints what it finds"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

use netlink::{IpNetwork, LinkChange, Netns, Request, Route, Rtnl, VethEnd};
use nix::sched::{CloneFlags, unshare};

const ROUNDS: u32 = 50;
const VF: u32 = 1000;

fn main() {
    let host = new_netns();
    let mut rtnl = Rtnl::open_in(&host).unwrap();
    rtnl.change(Request::add_veth(
        &VethEnd::new("vf").index(VF),
        &VethEnd::new("rep").index(VF + 1),
    ))
    .unwrap();
    rtnl.change_link(VF + 1, &LinkChange::new().up()).unwrap();

    let [mut out, mut entering, mut configuring, mut back] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let pod = new_netns();
        let change = LinkChange::new().netns(&pod).name("eth0").new_index(VF);
        out.push(time(|| rtnl.change_link(VF, &change).unwrap()));
        let start = Instant::now();
        let (entered, configured) = pod.run(|| configure(start)).unwrap();
        entering.push(entered);
        configuring.push(configured);
        let mut inside = Rtnl::open_in(&pod).unwrap();
        let change = LinkChange::new().netns(&host).name("vf").down();
        back.push(time(|| inside.change_link(VF, &change).unwrap()));
    }
    tell("move to the pod", out);
    tell("thread in its namespace with a socket", entering);
    tell("up, 2 addresses and 2 default routes in one send", configuring);
    tell("move back", back);
}

/// The time for the move, and for the configuration of the interface.
fn configure(start: Instant) -> (Duration, Duration) {
    let mut rtnl = Rtnl::open().unwrap();
    let entered = start.elapsed();
    let net = |text: &str| text.parse::<IpNetwork>().unwrap();
    let default_v4 = Route::new(net("0.0.0.0/0"), VF).via([169, 254, 1, 1].into()).on_link();
    let default_v6 = Route::new(net("::/0"), VF).via("fe80::1".parse().unwrap());
    let requests = [
        Request::change_link(VF, &LinkChange::new().up()),
        Request::add_address(VF, net("192.0.2.7/32")),
        Request::add_address(VF, net("2001:db8::7/128")),
        Request::add_route(&default_v4),
        Request::add_route(&default_v6),
    ];
    (entered, time(|| rtnl.batch(&requests).unwrap()))
}

fn new_netns() -> Netns {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Netns::current().unwrap()
    };
    thread::spawn(make).join().unwrap()
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what}: p50 {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
}
