//! What a DPU with thousands of VFs, networks and attachments takes, with card, kernel and disk in memory; and the memory
//! of the real program with a thousand sessions.
//!
//! `cargo bench -p dpu-service --bench scale`, in private namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a benchmark may"
)]
#![allow(dead_code, unreachable_pub, reason = "modules of the tests, of which it uses its part")]

#[path = "../../tests/engine/fake_kernel/mod.rs"]
mod fake_kernel;
#[path = "../../tests/engine/fleet.rs"]
mod fleet;
#[path = "../../tests/netns_service/idle.rs"]
mod idle;
#[path = "../../tests/service_support/mod.rs"]
mod service_support;
#[path = "../../tests/netns_service/session.rs"]
mod session;
#[path = "../../../crates/netlink/tests/support/mod.rs"]
mod support;
#[path = "../../tests/engine/world.rs"]
mod world;

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use fleet::{LARGE, RECORDED, SMALL, Size, attach_and_detach, empty, filled, start_with};
use world::{World, host};

const ROUNDS: usize = 1000;

/// An operator who looks at all there is, that often.
const LISTED_EVERY: Duration = Duration::from_millis(10);

fn main() {
    let runtime = Runtime::new().unwrap();
    println!("                                    attach, us        detach, us");
    println!("  VFs  networks                     p50    p99        p50    p99");
    for size in [SMALL, Size { vfs: 1024, networks: 64 }, LARGE] {
        let world = runtime.block_on(filled(size));
        print_times(size, "", &runtime.block_on(times(&world, size)));
        if size.vfs == LARGE.vfs {
            let beside = beside_lists(&world, || runtime.block_on(times(&world, size)));
            print_times(size, "beside lists", &beside);
            print_lists(&world);
        }
    }
    print_guarantees(&runtime.block_on(empty(LARGE)));
    for recorded in [RECORDED / 10, RECORDED] {
        let took = runtime.block_on(start_with(recorded));
        println!("start with {recorded} attachments in the journal: {:.2} s", took.as_secs_f64());
    }
    println!("{} idle sessions: {:.1} MiB", idle::SESSIONS, idle::growth_by_sessions());
}

async fn times(world: &World, size: Size) -> Vec<[Duration; 2]> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(attach_and_detach(world, size).await);
    }
    times
}

fn print_times(size: Size, beside: &str, times: &[[Duration; 2]]) {
    print!("{:5} {:9} {beside:>15}", size.vfs, size.networks);
    for half in 0..2 {
        let mut times: Vec<_> = times.iter().map(|both| both[half].as_micros()).collect();
        times.sort_unstable();
        print!("   {:6} {:6}", times[times.len() / 2], times[times.len() * 99 / 100]);
    }
    println!();
}

fn beside_lists<T>(world: &World, work: impl FnOnce() -> T) -> T {
    let over = CancellationToken::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.is_cancelled() {
                list(world);
                thread::park_timeout(LISTED_EVERY);
            }
        });
        let _over = over.clone().drop_guard();
        work()
    })
}

fn list(world: &World) {
    drop((world.list(), world.engine.networks().list(), world.engine.operators().pools()));
}

fn print_lists(world: &World) {
    let operators = || world.engine.operators();
    print_time("a list of all attachments", || drop(world.list()));
    print_time("a list of all networks", || drop(world.engine.networks().list()));
    print_time("a list of all pools", || drop(operators().pools()));
    print_time("all faults of networks", || drop(operators().network_faults()));
    print_time("all faults of attachments", || drop(operators().attachment_faults()));
    print_time("a host's pools", || drop(world.engine.hosts().pools(&host())));
}

fn print_guarantees(world: &World) {
    let offer = || world.engine.hosts().offer_vfs(&host(), world.session_id());
    print_time("offers of a new session", || assert!(!offer().is_empty()));
    print_time("no further ones", || assert!(offer().is_empty()));
}

fn print_time(what: &str, work: impl FnOnce()) {
    let begun = Instant::now();
    work();
    println!("{what}: {} us", begun.elapsed().as_micros());
}
