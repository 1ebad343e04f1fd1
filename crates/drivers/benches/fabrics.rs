//! What ports cost on each fabric, and what passes between them, on veth ports. Of Open vSwitch it is the userspace
//! datapath: most of a port's time is the daemon's own, and the daemon passes on each frame itself.
//!
//! `cargo bench -p drivers --bench fabrics`, in private namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark may"
)]
#![allow(dead_code, unreachable_pub, reason = "modules of the tests, of which it uses its part")]

#[path = "../../netlink/tests/support/mod.rs"]
mod support;
#[path = "../tests/veth_dpu/mod.rs"]
mod veth_dpu;

#[path = "fabrics/joins.rs"]
mod joins;
#[path = "fabrics/reconcile.rs"]
mod reconcile;
#[path = "fabrics/traffic.rs"]
mod traffic;

use std::time::{Duration, Instant};

fn main() {
    joins::print();
    reconcile::print();
    traffic::print();
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
