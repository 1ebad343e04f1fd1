//! The cost of an allocation in time and memory, from an empty pool to the most that a DPU can hold.
//!
//! Run `cargo bench -p ipam`. Some 60,000 addresses are in cool-down, and all keys are new:
//!
//! * pair: an allocation, and the release of the oldest lease;
//! * at once: an allocation, and its own release, which starts a cool-down;
//! * undo: an allocation that is forgotten, so that no cool-down starts;
//! * get: a lookup of some lease;
//! * std map: an insertion and a removal in the standard library's map from keys to numbers: the yardstick, without
//!   choice of addresses and cool-down;
//! * ahash map: the same with the pool's hasher;
//! * longest call: the slowest allocation of the filling up to the row; on a busy machine it measures the
//!   scheduler.
//!
//! The last row is the pair with leases released in random order.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a benchmark may"
)]

use std::{
    alloc::System,
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hash},
    hint::black_box,
    mem,
    time::{Duration, Instant},
};

use ipam::{Pool, SubnetSpec};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LEVELS: [u64; 4] = [0, 1_000, 16_384, 65_536];
const COOL_DOWN: u64 = 60;
const RELEASES_PER_SECOND: u64 = 1_000;
/// Rounds are shorter than the scheduler's time slice, so that many are undisturbed on a busy machine.
const CALLS: u32 = 1_000;
const ROUNDS: usize = 1_000;
/// Keys with these numbers are used for one or two calls.
const PASSING: u64 = 1 << 40;

/// Leases of random-looking keys, the oldest first.
struct Bench<K> {
    pool: Pool<K>,
    key: fn(u64) -> K,
    oldest: u64,
    next: u64,
    released: u64,
    looked_up: u64,
    passing: u64,
}

impl<K: Copy + Eq + Hash> Bench<K> {
    fn new(cidr: &str, key: fn(u64) -> K) -> Self {
        let cidr = cidr.parse().unwrap();
        let spec = SubnetSpec { cidr, gateway: None, ranges: Vec::new(), exclude: Vec::new() };
        let pool = Pool::new(spec, COOL_DOWN).unwrap();
        Self { pool, key, oldest: 0, next: 0, released: 0, looked_up: 0, passing: PASSING }
    }

    fn now(&self) -> u64 {
        self.released / RELEASES_PER_SECOND
    }

    // Reads the answers in place: a copy of bytes that were just written would wait for all pending stores, which
    // the map's answers do not need.
    fn allocate(&mut self) {
        let key = (self.key)(self.next);
        self.next += 1;
        assert!(black_box(&self.pool.allocate(key, self.now())).is_ok());
    }

    fn release(&mut self) {
        let key = (self.key)(self.oldest);
        self.oldest += 1;
        self.released += 1;
        assert!(black_box(&self.pool.release(&key, self.now())).is_some());
    }

    fn allocate_passing(&mut self) -> K {
        let key = (self.key)(self.passing);
        self.passing += 1;
        assert!(black_box(&self.pool.allocate(key, self.now())).is_ok());
        key
    }

    fn pair(&mut self) {
        self.allocate();
        self.release();
    }

    fn at_once(&mut self) {
        let key = self.allocate_passing();
        self.released += 1;
        assert!(black_box(&self.pool.release(&key, self.now())).is_some());
    }

    fn undo(&mut self) {
        let key = self.allocate_passing();
        assert!(black_box(&self.pool.forget(&key)).is_some());
    }

    /// Releases a random one of the `live` leases, and allocates for a new key.
    fn pair_in_any_order(&mut self, live: &mut [u64]) {
        let any = mixed(self.next) as usize % live.len();
        let released = mem::replace(&mut live[any], self.next);
        self.allocate();
        self.released += 1;
        assert!(black_box(&self.pool.release(&(self.key)(released), self.now())).is_some());
    }

    /// Looks up a lease far from the previous one.
    fn get(&mut self) {
        self.looked_up = self.looked_up.wrapping_add(0x9e37_79b9);
        let lease = self.oldest + self.looked_up % (self.next - self.oldest).max(1);
        black_box(self.pool.get(&(self.key)(lease)));
    }

    /// Fills up to `level` leases. Returns the longest single call.
    fn fill(&mut self, level: u64) -> Duration {
        let mut longest = Duration::ZERO;
        while self.next - self.oldest < level {
            let start = Instant::now();
            self.allocate();
            longest = longest.max(start.elapsed());
        }
        longest
    }

    fn time(&mut self, work: impl Fn(&mut Self)) -> f64 {
        nanoseconds(|| work(self))
    }
}

/// Nanoseconds per call of `work` in a barely disturbed round: one of ten rounds is faster.
fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            work();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 10]
}

/// An insertion and a removal in a map of `level` keys.
fn map_pair<K: Eq + Hash, S: BuildHasher + Default>(key: fn(u64) -> K, level: u64) -> impl FnMut() {
    let mut map: HashMap<K, u128, S> = (0..level).map(|number| (key(number), 0)).collect();
    let mut next = level;
    move || {
        map.insert(key(next), 0);
        black_box(map.remove(&key(next - level)));
        next += 1;
    }
}

/// A bijection with random-looking values (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn run<K: Copy + Eq + Hash>(cidr: &str, name: &str, key: fn(u64) -> K) {
    println!("\n{cidr}, keys: {name}");
    println!("leases   pair  std map  ahash map  at once  undo  get  longest call  room a lease");
    println!("           ns       ns         ns       ns    ns   ns            us   bytes + key");
    let region = Region::new(ALLOCATOR);
    let mut bench = Bench::new(cidr, key);
    for level in LEVELS {
        let longest = bench.fill(level).as_secs_f64() * 1e6;
        let stats = region.change();
        let room = stats.bytes_allocated as f64 - stats.bytes_deallocated as f64;
        let room = room / level.max(1) as f64 - size_of::<K>() as f64;
        let pair = bench.time(Bench::pair);
        let std_map = nanoseconds(map_pair::<K, RandomState>(key, level));
        let ahash_map = nanoseconds(map_pair::<K, ahash::RandomState>(key, level));
        let at_once = bench.time(Bench::at_once);
        let undo = bench.time(Bench::undo);
        let get = bench.time(Bench::get);
        println!(
            "{level:>6} {pair:>6.0} {std_map:>8.0} {ahash_map:>10.0} {at_once:>8.0} {undo:>5.0} \
             {get:>4.0} {longest:>13.1} {room:>13.2}"
        );
    }
    let mut live: Vec<u64> = (bench.oldest..bench.next).collect();
    let pair = nanoseconds(|| bench.pair_in_any_order(&mut live));
    println!("in any order: pair {pair:.0} ns");
}

fn main() {
    let key = |number| u128::from(mixed(number)) << 64 | u128::from(number);
    run("10.0.0.0/8", "u128", key);
    run("2001:db8::/64", "u128", key);
}
