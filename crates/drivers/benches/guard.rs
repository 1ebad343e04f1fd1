//! What a port's guard costs: the kernel's time to set it and to look at it, on veth ports of a bridge.
//!
//! `cargo bench -p drivers --bench guard`, in private namespaces.
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

use std::time::{Duration, Instant};

use drivers::eswitch::Representor;
use model::{AntiSpoofing, PortSettings, Source};
use veth_dpu::Dpu;

const ROUNDS: u32 = 500;

fn main() {
    let dpu = Dpu::new();
    dpu.prepare().unwrap();
    let pod = dpu.plug(0);
    dpu.program(&pod);
    let port = dpu.representor(&pod);
    let source = |last: u16| format!("fd00::{last:x}").parse::<Source>().unwrap();
    let with = |anti_spoofing, sources: u16| PortSettings {
        anti_spoofing,
        allowed_sources: (0..sources).map(source).collect(),
        ..pod.settings.clone()
    };
    for (name, settings) in [
        ("off", with(AntiSpoofing::Off, 0)),
        ("mac", with(AntiSpoofing::Mac, 0)),
        ("full, an address of each family", with(AntiSpoofing::Full, 0)),
        ("full, and 64 prefixes of IPv6", with(AntiSpoofing::Full, 64)),
    ] {
        let set = median(|| dpu.fabric.set_guard(&port, &settings).unwrap());
        let look = median(|| assert!(is_in_place(&dpu, &port, &settings)));
        println!("{name:34} set {:4} us, looked at {:4} us", set.as_micros(), look.as_micros());
    }
}

fn is_in_place(dpu: &Dpu, port: &Representor, settings: &PortSettings) -> bool {
    dpu.fabric.guard(port, settings).unwrap().in_place
}

fn median(work: impl Fn()) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        work();
        begin.elapsed()
    };
    let mut times: Vec<_> = (0..ROUNDS).map(time).collect();
    times.sort_unstable();
    times[times.len() / 2]
}
