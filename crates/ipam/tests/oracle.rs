//! Random operations on a pool, each compared with a plain one of sets and maps.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipam::{
    AllocateError, Pool, RequestError, Reservation, ResizeError, RestoreError, SHORTEST_COOL_DOWN,
    SubnetSpec,
};
use ipnetwork::IpNetwork;
use proptest::prelude::*;

const COOL_DOWN: u64 = 10;

/// The plain pool, which goes through the addresses one by one.
struct Oracle {
    spec: SubnetSpec,
    held: BTreeMap<u16, IpAddr>,
    cooling: BTreeMap<IpAddr, u64>,
}

impl Oracle {
    fn reservation(spec: &SubnetSpec, address: IpAddr) -> Option<Reservation> {
        let (first, last) = (spec.cidr.network(), spec.cidr.iter().last().unwrap());
        let roomy = spec.cidr.iter().nth(2).is_some();
        if spec.gateway == Some(address) {
            Some(Reservation::Gateway)
        } else if roomy && address == first {
            Some(Reservation::Network)
        } else if roomy && spec.cidr.is_ipv4() && address == last {
            Some(Reservation::Broadcast)
        } else {
            let excluded = spec.exclude.iter().any(|exclusion| exclusion.contains(address));
            excluded.then_some(Reservation::Excluded)
        }
    }

    fn is_open(spec: &SubnetSpec, address: IpAddr) -> bool {
        let mut ranges = spec.ranges.iter();
        let in_range =
            spec.ranges.is_empty() || ranges.any(|(start, end)| (start..=end).contains(&&address));
        in_range && spec.cidr.contains(address) && Self::reservation(spec, address).is_none()
    }

    fn rank(spec: &SubnetSpec, address: IpAddr) -> u8 {
        match () {
            () if !spec.cidr.contains(address) => 0,
            () if Self::reservation(spec, address).is_some() => 1,
            () if !Self::is_open(spec, address) => 2,
            () => 3,
        }
    }

    fn open(&self) -> BTreeSet<IpAddr> {
        self.spec.cidr.iter().filter(|&address| Self::is_open(&self.spec, address)).collect()
    }

    fn holder(&self, address: IpAddr) -> Option<u16> {
        self.held.iter().find(|(_, held)| **held == address).map(|(&key, _)| key)
    }

    fn rests(&self, address: IpAddr, now: u64) -> bool {
        self.cooling.get(&address).is_some_and(|&until| until > now)
    }

    fn free(&self, now: u64) -> BTreeSet<IpAddr> {
        let free = |address: &IpAddr| self.holder(*address).is_none() && !self.rests(*address, now);
        self.open().into_iter().filter(free).collect()
    }

    /// The addresses that may be allocated: free ones, or without any the one longest in cool-down.
    fn candidates(&self, now: u64) -> BTreeSet<IpAddr> {
        let free = self.free(now);
        if !free.is_empty() {
            return free;
        }
        let early = |until: u64| until < now + COOL_DOWN - SHORTEST_COOL_DOWN;
        let open = self.open();
        let cooling = self.cooling.iter().filter(|(address, _)| open.contains(*address));
        let cooling: Vec<_> = cooling.filter(|&(_, &until)| early(until)).collect();
        let first = cooling.iter().map(|&(_, until)| *until).min();
        let earliest = cooling.into_iter().filter(|&(_, until)| Some(*until) == first);
        earliest.map(|(address, _)| *address).collect()
    }

    fn hold(&mut self, key: u16, address: IpAddr) {
        self.cooling.remove(&address);
        self.held.insert(key, address);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u16),
    Request(u16, usize),
    Release(u16),
    Forget(u16),
    Restore(u16, usize),
    Rest(usize, u64),
    EndRest(usize),
    Resize(usize),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0..60_u16;
    prop_oneof![
        8 => key.clone().prop_map(Operation::Allocate),
        2 => (key.clone(), 0..80_usize).prop_map(|(key, address)| Operation::Request(key, address)),
        6 => key.clone().prop_map(Operation::Release),
        1 => key.clone().prop_map(Operation::Forget),
        1 => (key, 0..80_usize).prop_map(|(key, address)| Operation::Restore(key, address)),
        1 => (0..80_usize, 0..40_u64).prop_map(|(address, wait)| Operation::Rest(address, wait)),
        1 => (0..80_usize).prop_map(Operation::EndRest),
        1 => (0..specs().len()).prop_map(Operation::Resize),
        2 => (0..6_u64).prop_map(Operation::Wait),
    ]
}

fn spec(cidr: &str, gateway: &str, ranges: &[(&str, &str)], exclude: &[&str]) -> SubnetSpec {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    SubnetSpec {
        cidr: cidr.parse().unwrap(),
        gateway: (!gateway.is_empty()).then(|| address(gateway)),
        ranges: ranges.iter().map(|(start, end)| (address(start), address(end))).collect(),
        exclude: exclude.iter().map(|text| text.parse().unwrap()).collect(),
    }
}

/// Nested subnets, so that many resizes succeed.
fn specs() -> Vec<SubnetSpec> {
    vec![
        spec("10.0.16.0/26", "10.0.16.1", &[], &[]),
        spec("10.0.16.0/27", "10.0.16.1", &[], &[]),
        spec("10.0.16.0/27", "", &[("10.0.16.4", "10.0.16.9"), ("10.0.16.20", "10.0.16.30")], &[]),
        spec("10.0.16.0/28", "10.0.16.14", &[], &["10.0.16.8/30", "10.0.16.9/32"]),
        spec("10.0.16.0/31", "", &[], &[]),
        spec("2001:db8::/122", "2001:db8::1", &[], &["2001:db8::10/125"]),
        spec("2001:db8::/123", "", &[("2001:db8::3", "2001:db8::9")], &[]),
    ]
}

struct Both {
    pool: Pool<u16>,
    oracle: Oracle,
    now: u64,
}

impl Both {
    fn new(spec: SubnetSpec) -> Self {
        let pool = Pool::new(spec.clone(), COOL_DOWN).unwrap();
        let oracle = Oracle { spec, held: BTreeMap::new(), cooling: BTreeMap::new() };
        Self { pool, oracle, now: 100 }
    }

    /// The address of a number, also slightly beyond the subnet.
    fn address(&self, number: usize) -> IpAddr {
        match self.oracle.spec.cidr {
            IpNetwork::V4(_) => IpAddr::from([10, 0, 16, u8::try_from(number).unwrap()]),
            IpNetwork::V6(_) => {
                let number = u16::try_from(number).unwrap();
                IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number])
            }
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Allocate(key) => self.allocate(key),
            Operation::Request(key, number) => self.request(key, self.address(number)),
            Operation::Release(key) => self.release(key),
            Operation::Forget(key) => {
                assert_eq!(self.pool.forget(&key), self.oracle.held.remove(&key));
            }
            Operation::Restore(key, number) => self.restore(key, self.address(number)),
            Operation::Rest(number, wait) => self.rest(self.address(number), self.now + wait),
            Operation::EndRest(number) => self.end_cool_down(self.address(number)),
            Operation::Resize(number) => self.resize(specs().swap_remove(number)),
            Operation::Wait(seconds) => self.now += seconds,
        }
    }

    /// No cool-down ends later than one that starts now.
    fn shorten(&mut self) {
        let latest = self.now + COOL_DOWN;
        self.oracle.cooling.values_mut().for_each(|until| *until = latest.min(*until));
    }

    fn allocate(&mut self, key: u16) {
        let candidates = self.oracle.candidates(self.now);
        if !self.oracle.held.contains_key(&key) && self.oracle.free(self.now).is_empty() {
            self.shorten();
        }
        match (self.pool.allocate(key, self.now), self.oracle.held.get(&key)) {
            (given, Some(&held)) => assert_eq!(given, Ok(held)),
            (Ok(address), None) => {
                assert!(candidates.contains(&address), "{address} is not one of {candidates:?}");
                self.oracle.hold(key, address);
            }
            (Err(AllocateError::Exhausted { usage, .. }), None) => {
                assert!(candidates.is_empty(), "{candidates:?} can be given out");
                assert_eq!(usage, self.pool.usage(self.now));
            }
        }
    }

    fn request(&mut self, key: u16, address: IpAddr) {
        self.shorten();
        let Oracle { spec, held, cooling } = &self.oracle;
        let subnet = spec.cidr;
        let expected = if let Some(&held) = held.get(&key) {
            let same = held == address;
            same.then_some(address).ok_or(RequestError::KeyHoldsAnother { held, address })
        } else if !subnet.contains(address) {
            Err(RequestError::OutsideSubnet { address, subnet })
        } else if let Some(why) = Oracle::reservation(spec, address) {
            Err(RequestError::Reserved { address, why })
        } else if let Some(holder) = self.oracle.holder(address) {
            Err(RequestError::InUse { address, holder })
        } else if self.oracle.rests(address, self.now) {
            Err(RequestError::Cooling { address, seconds: cooling[&address] - self.now })
        } else {
            Ok(address)
        };
        assert_eq!(self.pool.request(key, address, self.now), expected);
        if expected.is_ok() {
            self.oracle.hold(key, address);
        }
    }

    fn release(&mut self, key: u16) {
        let held = self.oracle.held.remove(&key);
        assert_eq!(self.pool.release(&key, self.now), held);
        if let Some(address) = held {
            self.oracle.cooling.insert(address, self.now + COOL_DOWN);
        }
    }

    fn restore(&mut self, key: u16, address: IpAddr) {
        let subnet = self.oracle.spec.cidr;
        let holder = self.oracle.holder(address);
        let expected = match self.oracle.held.get(&key) {
            Some(&held) if held == address => Ok(()),
            Some(&held) => Err(RestoreError::KeyHoldsAnother { key, held, claimed: address }),
            None if !subnet.contains(address) => {
                Err(RestoreError::OutsideSubnet { key, address, subnet })
            }
            None => match holder {
                Some(holder) => Err(RestoreError::InUse { address, holder, claimant: key }),
                None => Ok(()),
            },
        };
        assert_eq!(self.pool.restore(key, address), expected);
        if expected.is_ok() {
            self.oracle.hold(key, address);
        }
    }

    fn rest(&mut self, address: IpAddr, until: u64) {
        self.pool.rest(address, until);
        let oracle = &mut self.oracle;
        if oracle.spec.cidr.contains(address) && oracle.holder(address).is_none() {
            let end = oracle.cooling.entry(address).or_default();
            *end = until.max(*end);
        }
    }

    fn end_cool_down(&mut self, address: IpAddr) {
        self.pool.end_cool_down(address);
        self.oracle.cooling.remove(&address);
    }

    fn resize(&mut self, spec: SubnetSpec) {
        let Oracle { spec: old, held, .. } = &self.oracle;
        let in_the_way =
            |address: IpAddr| Oracle::rank(&spec, address) < Oracle::rank(old, address);
        match self.pool.resize(spec.clone()) {
            Ok(()) => {
                assert!(!held.values().any(|&address| in_the_way(address)));
                self.oracle.cooling.retain(|&address, _| spec.cidr.contains(address));
                self.oracle.spec = spec;
            }
            Err(ResizeError::LeaseInTheWay { key, address }) => {
                assert_eq!(held[&key], address);
                assert!(in_the_way(address), "{address} is not in the way");
            }
            Err(ResizeError::Spec(error)) => panic!("{error}"),
        }
    }

    /// Compares everything that can be read.
    fn check(&self) {
        let Self { pool, oracle, now } = self;
        let leases: BTreeMap<u16, IpAddr> =
            pool.leases().map(|(&key, address)| (key, address)).collect();
        assert_eq!(leases, oracle.held);
        for (key, &address) in &oracle.held {
            assert_eq!(pool.get(key), Some(address));
            assert_eq!(pool.holder(address), Some(key));
        }
        let usage = pool.usage(*now);
        assert_eq!(usage.capacity, oracle.open().len() as u128);
        assert_eq!(usage.held, oracle.held.len() as u64);
        assert_eq!(
            usage.cooling,
            oracle.cooling.values().filter(|&&until| until > *now).count() as u64
        );
        assert_eq!(pool.spec(), &oracle.spec);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pool_agrees_with_the_oracle(
        spec in prop::sample::select(specs()),
        operations in prop::collection::vec(operation(), 0..200),
    ) {
        let mut both = Both::new(spec);
        for operation in &operations {
            both.apply(operation);
            both.check();
        }
    }
}
