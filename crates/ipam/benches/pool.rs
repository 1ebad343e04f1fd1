//! What an allocation costs, in time and in room, from an empty pool to 16 million leases.
//!
//! `cargo bench -p ipam`. The pair is an allocation for a new key and the release of the oldest
//! lease, while some 60,000 addresses cool down; the undo is an allocation that is forgotten again.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may")]

use std::{
    alloc::System,
    hash::Hash,
    hint::black_box,
    time::{Duration, Instant},
};

use ipam::{Pool, SubnetSpec};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LEVELS: [u64; 5] = [0, 1_000, 64_000, 1_000_000, 16_000_000];
const COOL_DOWN: u64 = 60;
const RELEASES_PER_SECOND: u64 = 1_000;
const PAIRS: u32 = 200_000;
const ROUNDS: usize = 7;

/// Leases of keys that look random, the oldest first.
struct Bench<K> {
    pool: Pool<K>,
    key: fn(u64) -> K,
    oldest: u64,
    next: u64,
    released: u64,
}

impl<K: Clone + Eq + Hash> Bench<K> {
    fn new(cidr: &str, key: fn(u64) -> K) -> Self {
        let cidr = cidr.parse().unwrap();
        let spec = SubnetSpec { cidr, gateway: None, ranges: Vec::new(), exclude: Vec::new() };
        let pool = Pool::new(spec, COOL_DOWN).unwrap();
        Self { pool, key, oldest: 0, next: 0, released: 0 }
    }

    fn now(&self) -> u64 {
        self.released / RELEASES_PER_SECOND
    }

    fn allocate(&mut self) {
        let key = (self.key)(self.next);
        self.next += 1;
        black_box(self.pool.allocate(key, self.now()).unwrap());
    }

    fn release(&mut self) {
        let key = (self.key)(self.oldest);
        self.oldest += 1;
        self.released += 1;
        black_box(self.pool.release(&key, self.now()).unwrap());
    }

    fn undo(&mut self) {
        self.allocate();
        self.next -= 1;
        let key = (self.key)(self.next);
        black_box(self.pool.forget(&key).unwrap());
    }

    fn get(&mut self) {
        let key = (self.key)(self.oldest + self.next % (self.next - self.oldest).max(1));
        self.next += 0;
        black_box(self.pool.get(&key));
    }

    /// Fills up to `level` leases; the longest single call.
    fn fill(&mut self, level: u64) -> Duration {
        let mut longest = Duration::ZERO;
        while self.next - self.oldest < level {
            let start = Instant::now();
            self.allocate();
            longest = longest.max(start.elapsed());
        }
        longest
    }

    /// Nanoseconds per call of `work`: the median of some rounds.
    fn time(&mut self, work: impl Fn(&mut Self)) -> f64 {
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..PAIRS {
                    work(self);
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    }
}

/// A bijection whose values look random (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

fn run<K: Clone + Eq + Hash>(cidr: &str, name: &str, key: fn(u64) -> K) {
    println!("\n{cidr}, keys: {name}");
    println!(
        "{:>11} {:>10} {:>10} {:>10} {:>13} {:>13} {:>13}",
        "leases", "pair", "undo", "get", "longest fill", "room/lease", "resident"
    );
    println!(
        "{:>11} {:>10} {:>10} {:>10} {:>13} {:>13} {:>13}",
        "", "ns", "ns", "ns", "us", "bytes - key", "bytes - key"
    );
    let (region, before) = (Region::new(ALLOCATOR), resident());
    let mut bench = Bench::new(cidr, key);
    for level in LEVELS {
        let longest = bench.fill(level);
        let stats = region.change();
        let allocated = stats.bytes_allocated as f64 - stats.bytes_deallocated as f64;
        let leases = level.max(1) as f64;
        let beyond = |bytes: f64| bytes / leases - size_of::<K>() as f64;
        let (room, resident) = (beyond(allocated), beyond(resident() - before));
        let pair = bench.time(|bench| {
            bench.allocate();
            bench.release();
        });
        let undo = bench.time(Bench::undo);
        let get = bench.time(Bench::get);
        println!(
            "{level:>11} {pair:>10.0} {undo:>10.0} {get:>10.0} {:>13.1} {room:>13.2} {resident:>13.2}",
            longest.as_secs_f64() * 1e6
        );
    }
}

fn main() {
    run("10.0.0.0/8", "u64", mixed);
    run("10.0.0.0/8", "u128", |number| u128::from(mixed(number)) << 64 | u128::from(number));
    run("2001:db8::/64", "u128", |number| u128::from(mixed(number)) << 64 | u128::from(number));
}
