//! The cost of reserving and releasing a VF, by the number of VFs.
//!
//! Run `cargo bench -p vf-alloc`. Half of the VFs are held. A pair is a reservation for a new key and the release
//! of the oldest one.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may")]

use std::{hint::black_box, time::Instant};

use vf_alloc::{
    Allocator, FunctionId, HostId, Policy, PoolSpec, Request, Settings, VfFacts, parse_selectors,
};

const PAIRS: u32 = 50_000;
const ROUNDS: usize = 20;
const PFS: u16 = 4;

fn pool(name: &str, policy: Policy) -> PoolSpec {
    let select = (0..PFS).flat_map(|pf| parse_selectors(&format!("p{pf}")).unwrap()).collect();
    PoolSpec { name: name.into(), select, policy, pinned_only: false }
}

fn allocator(vfs: u16, pools: Vec<PoolSpec>) -> Allocator<u128> {
    let settings = Settings { quarantine_after: 3, ..Settings::default() };
    let mut allocator = Allocator::new(pools, settings).unwrap();
    for number in 0..vfs {
        let facts = VfFacts {
            host: HostId(0),
            device: format!("0000:{:02x}:{:02x}.0", number >> 8, number & 0xff).into(),
            vendor_id: 0x15b3,
            device_id: 0x101e,
        };
        allocator.mark_free(FunctionId::local(number % PFS, number / PFS), facts);
    }
    allocator
}

/// Nanoseconds per pair, in the least disturbed round.
fn pair(mut allocator: Allocator<u128>, held: u128) -> f64 {
    let request = Request { host: HostId(0), pool: "default", pinned: None, offered: None };
    let mut next = 0;
    while next < held {
        allocator.reserve(&request, next).unwrap();
        next += 1;
    }
    let round = |_| {
        let start = Instant::now();
        for _ in 0..PAIRS {
            black_box(allocator.reserve(&request, next).unwrap());
            black_box(allocator.release(&(next - held)).unwrap());
            next += 1;
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("   VFs   spread     pack   in 3 pools");
    println!("             ns       ns           ns");
    for vfs in [16, 256, 4_096, 32_768] {
        let held = u128::from(vfs / 2);
        let one = |policy| vec![pool("default", policy)];
        let three = ["default", "second", "third"].map(|name| pool(name, Policy::Spread)).into();
        let spread = pair(allocator(vfs, one(Policy::Spread)), held);
        let pack = pair(allocator(vfs, one(Policy::Pack)), held);
        let shared = pair(allocator(vfs, three), held);
        println!("{vfs:>6} {spread:>8.0} {pack:>8.0} {shared:>12.0}");
    }
}
