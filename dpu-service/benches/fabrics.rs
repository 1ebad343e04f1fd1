//! What a port costs on each fabric: to join it, guarded, and to leave it, one at a time and many at once, on veth
//! ports. Of Open vSwitch it is the userspace datapath, and most of a port's time is the daemon's own.
//!
//! `cargo bench -p dpu-service --bench fabrics`, in private namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark may"
)]
#![allow(dead_code, unreachable_pub, reason = "modules of the tests, of which it uses its part")]

#[path = "../../crates/netlink/tests/support/mod.rs"]
mod support;
#[path = "../tests/veth_dpu/mod.rs"]
mod veth_dpu;

use std::time::{Duration, Instant};

use veth_dpu::{Dpu, On, Pod, at_once};

const PORTS: u16 = 64;
const ROUNDS: usize = 5;

fn main() {
    for on in On::EVERY {
        let dpu = Dpu::on(on, &[]);
        dpu.prepare().unwrap();
        let pods: Vec<_> = (0..PORTS).map(|number| dpu.plug(number)).collect();
        let one_by_one = |work: &dyn Fn(&Pod)| median(pods.iter().map(|pod| time(|| work(pod))));
        let (join, leave) = (|pod: &Pod| join(&dpu, pod), |pod: &Pod| leave(&dpu, pod));
        let (mut joins, mut leaves) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            joins.push(one_by_one(&join));
            leaves.push(one_by_one(&leave));
        }
        let (one_joins, one_leaves) = (median(joins.into_iter()), median(leaves.into_iter()));
        let (mut joins, mut looks, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            joins.push(time(|| at_once(&pods, join)));
            looks.push(time(|| pods.iter().for_each(|pod| look(&dpu, pod))));
            leaves.push(time(|| at_once(&pods, leave)));
        }
        let [joins, looks, leaves] = [joins, looks, leaves].map(|all| median(all.into_iter()));
        println!(
            "{on:?}: join {one_joins:.1?}, leave {one_leaves:.1?}; {PORTS} at once: join {joins:.1?} ({:.1} times as \
             fast), leave {leaves:.1?}; a close look at {PORTS}: {looks:.1?}",
            (one_joins * u32::from(PORTS)).as_secs_f64() / joins.as_secs_f64()
        );
    }
}

fn join(dpu: &Dpu, pod: &Pod) {
    let port = dpu.representor(pod);
    dpu.fabric.join(&port, &pod.settings).unwrap();
    dpu.fabric.set_guard(&port, &pod.settings).unwrap();
}

fn leave(dpu: &Dpu, pod: &Pod) {
    dpu.fabric.leave(&dpu.representor(pod)).unwrap();
}

fn look(dpu: &Dpu, pod: &Pod) {
    let port = dpu.representor(pod);
    assert!(dpu.fabric.member(&port).unwrap().is_some());
    assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
}

fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}
