//! Random operations on an allocator, each compared with a plain one. After each operation:
//!
//! - no VF has two holders, and no key holds two VFs;
//! - an offered VF goes only to a request with the latest number of its offer, to one at a time, while the offer
//!   lasts;
//! - a newly offered VF is free, and no number is used twice;
//! - an offer lasts until it is ended, whatever holder the VF has and whatever its host reports;
//! - after its host's offers have ended, a VF is available to all requests;
//! - no VF is lost: when all are back and clean, all are available, first by the numbers of their offers, and after
//!   the sessions to all requests.
#![expect(clippy::unwrap_used, reason = "a test may")]

mod offers;
mod operation;
mod plain;

use std::collections::BTreeSet;

use proptest::prelude::*;
use vf_alloc::{
    Allocator, ClearError, Device, FunctionId, HostId, Request, ReserveError, RestoreError,
    RestoredState, VfFacts, VfOffer, VfState,
};

use operation::{KEYS, Operation, operation};
use plain::{Known, Offer, Oracle, POOLS, SETTINGS, Stage, facts, pools};

struct Both {
    allocator: Allocator<u8>,
    oracle: Oracle,
    step: u64,
}

impl Both {
    fn new() -> Self {
        let allocator = Allocator::new(pools(false, false), SETTINGS).unwrap();
        let oracle = Oracle { last_number: SETTINGS.offered_before, ..Oracle::default() };
        Self { allocator, oracle, step: 0 }
    }

    fn apply(&mut self, operation: &Operation) {
        let Self { allocator, oracle, .. } = self;
        match *operation {
            Operation::MarkFree(vf, moved) => {
                allocator.mark_free(vf, facts(vf, moved));
                let known = oracle.known(vf);
                known.learn(facts(vf, moved));
                known.absent = false;
            }
            Operation::Learn(vf, moved) => {
                allocator.learn(vf, facts(vf, moved));
                oracle.known(vf).learn(facts(vf, moved));
            }
            Operation::Withdraw(vf) => {
                allocator.withdraw(vf, "gone");
                oracle.known(vf).absent = true;
            }
            Operation::Offer(host, most) => self.offer(HostId(host), most),
            Operation::NoteUntaken(ref place, number) => self.note_declined(place, number),
            Operation::EndPromise(vf) => {
                allocator.end_offer(vf);
                if let Some(known) = oracle.vfs.get_mut(&vf) {
                    known.offer = Offer::None;
                }
            }
            Operation::EndPromises(host) => self.end_offers(HostId(host)),
            Operation::Name(key, pool, ref named) => self.name(key, POOLS[pool], named),
            Operation::Reserve(key, pool, host) => {
                self.reserve(key, POOLS[pool], HostId(host), None);
            }
            Operation::Pin(key, pool, host, vf, moved) => {
                let device = facts(vf, moved).device;
                self.reserve(key, POOLS[pool], HostId(host), Some((vf, &device)));
            }
            Operation::Attached(key) => {
                allocator.attached(&key);
                if let Some(vf) = oracle.held_by(key) {
                    let known = oracle.known(vf);
                    if known.holder != Some((key, Stage::Releasing)) {
                        known.holder = Some((key, Stage::Attached));
                        known.failures = 0;
                    }
                }
            }
            Operation::Releasing(key) => {
                allocator.releasing(&key);
                if let Some(vf) = oracle.held_by(key) {
                    oracle.known(vf).holder = Some((key, Stage::Releasing));
                }
            }
            Operation::Release(key) => {
                let vf = oracle.held_by(key);
                assert_eq!(allocator.release(&key), vf);
                if let Some(vf) = vf {
                    let known = oracle.known(vf);
                    known.holder = None;
                    known.absent = known.facts.is_none();
                    known.renew_offer();
                }
            }
            Operation::Forget(key) => {
                let vf = oracle.held_by(key);
                assert_eq!(allocator.forget(&key), vf);
                if let Some(vf) = vf {
                    oracle.known(vf).holder = None;
                }
            }
            Operation::Fail(key) => {
                let vf = oracle.held_by(key);
                assert_eq!(allocator.fail(&key, "no carrier"), vf);
                if let Some(vf) = vf {
                    let known = oracle.known(vf);
                    known.holder = None;
                    known.failures += 1;
                    known.quarantined |= known.failures >= SETTINGS.quarantine_after;
                }
            }
            Operation::Quarantine(vf) => {
                allocator.quarantine(vf, "odd");
                oracle.known(vf).quarantined = true;
            }
            Operation::Clear(vf) => {
                let expected = match oracle.vfs.get_mut(&vf) {
                    None => Err("unknown"),
                    Some(known) if !known.quarantined => Err("not quarantined"),
                    Some(known) => {
                        known.quarantined = false;
                        known.failures = 0;
                        Ok(())
                    }
                };
                let cleared = allocator.clear(vf).map_err(|error| match error {
                    ClearError::Unknown { .. } => "unknown",
                    ClearError::NotQuarantined { .. } => "not quarantined",
                });
                assert_eq!(cleared, expected);
            }
            Operation::Withhold(vf) => {
                allocator.make_unavailable(vf, "its port is not clean");
                oracle.known(vf).unavailable = true;
            }
            Operation::StopWithholding(vf) => {
                allocator.make_available(vf);
                if let Some(known) = oracle.vfs.get_mut(&vf) {
                    known.unavailable = false;
                }
            }
            Operation::Restore(vf, key, held) => self.restore(vf, key, held),
            Operation::Reload(second_set, handed_out) => {
                allocator.replace_pools(pools(second_set, handed_out)).unwrap();
                (oracle.second_set, oracle.handed_out) = (second_set, handed_out);
                oracle.vfs.values_mut().for_each(Known::renew_offer);
            }
            Operation::Ports(count) => {
                let of_pf = |pf| (0..count).map(move |vf| FunctionId::local(pf, vf));
                allocator.set_ports((0..2).flat_map(of_pf).collect());
                oracle.ports = Some(count);
            }
        }
        self.note_free();
    }

    /// Records the VFs that have just become free.
    fn note_free(&mut self) {
        self.step += 1;
        let is_free: BTreeSet<_> = {
            let Self { oracle, .. } = &*self;
            let free = oracle.vfs.iter().filter(|(vf, known)| {
                oracle.state(**vf, known) == "free" && known.offer == Offer::None
            });
            free.map(|(vf, _)| *vf).collect()
        };
        for (vf, known) in &mut self.oracle.vfs {
            if !is_free.contains(vf) {
                known.free_since = 0;
            } else if known.free_since == 0 {
                known.free_since = self.step;
            }
        }
    }

    /// With a pin: the VF, and its present or former device.
    fn reserve(&mut self, key: u8, pool: &str, host: HostId, pin: Option<(FunctionId, &Device)>) {
        let request = Request { host, pool, pinned: pin.map(|(_, device)| device), offered: None };
        let given = self.allocator.reserve(&request, key);
        if let Some(held) = self.oracle.held_by(key) {
            self.check_again(held, &request, &given);
            return;
        }
        match (given, pin) {
            (Ok(vf), None) => self.check_choice(vf, pool, host),
            (Ok(vf), Some((pinned, device))) => {
                assert_eq!(vf, pinned);
                assert!(self.oracle.is_at(vf, host, device), "{vf} is no longer at {device}");
                assert!(self.oracle.free(pool, host).contains(&vf));
                assert!(self.oracle.vfs[&vf].offer == Offer::None, "{vf} is offered");
            }
            (Err(error), _) => self.check_refusal(&error, pool, host, pin),
        }
        if let Some(vf) = self.allocator.vf_of(&key) {
            self.oracle.known(vf).holder = Some((key, Stage::Reserved));
        }
    }

    fn check_again(
        &self,
        held: FunctionId,
        request: &Request<'_>,
        given: &Result<FunctionId, ReserveError>,
    ) {
        let known = &self.oracle.vfs[&held];
        let offered = request.offered.map(|offer| &offer.device);
        let mut wanted = request.pinned.into_iter().chain(offered);
        let elsewhere = known.facts.as_ref().is_some_and(|facts| facts.host != request.host);
        let other =
            known.facts.as_ref().and_then(|facts| wanted.find(|device| **device != facts.device));
        let expected = if matches!(known.holder, Some((_, Stage::Releasing))) {
            Err(ReserveError::KeyReleasing { held })
        } else if elsewhere {
            Err(ReserveError::OtherHost { held })
        } else if let Some(device) = other {
            Err(ReserveError::KeyHoldsAnother { held, device: device.clone() })
        } else {
            Ok(held)
        };
        assert_eq!(*given, expected);
    }

    /// The VF is of the PF that the policy prefers, and has been free for longest there.
    fn check_choice(&self, vf: FunctionId, pool: &str, host: HostId) {
        assert!(self.oracle.is_open(pool));
        let mut free = self.oracle.unoffered(pool, host);
        let there = free.extract_if(.., |other| other.pf != vf.pf).count();
        let here = free;
        assert!(here.contains(&vf), "{vf} is not free");
        if pool == "low" {
            assert!(there == 0 || here.len() <= there);
        } else {
            assert!(here.len() >= there);
        }
        let since = |vf: &FunctionId| self.oracle.vfs[vf].free_since;
        assert!(here.iter().all(|other| since(other) >= since(&vf)), "{vf} has rested less");
    }

    fn check_refusal(
        &self,
        error: &ReserveError,
        pool: &str,
        host: HostId,
        pin: Option<(FunctionId, &Device)>,
    ) {
        let free = self.oracle.free(pool, host);
        match error {
            ReserveError::Exhausted { usage, named_only, .. } => {
                assert!(pin.is_none() && self.oracle.unoffered(pool, host).is_empty());
                assert_eq!(usage.free, self.oracle.offered(pool, host).len());
                assert_eq!(*named_only > 0, self.oracle.has_handed_out(pool, host));
            }
            ReserveError::PinnedOnly { .. } => {
                assert!(pin.is_none() && !self.oracle.is_open(pool));
            }
            ReserveError::NotOffered { vf, .. } => {
                let (pinned, device) = pin.unwrap();
                assert_eq!(*vf, pinned);
                assert!(self.oracle.is_at(*vf, host, device), "{vf} is no longer at {device}");
                assert!(free.contains(vf) && self.oracle.vfs[vf].offer != Offer::None);
            }
            ReserveError::PinnedUnknown { .. } => {
                let (vf, device) = pin.unwrap();
                assert!(!self.oracle.is_at(vf, host, device));
            }
            ReserveError::PinnedNotFree { vf, state, .. } => {
                let (pinned, device) = pin.unwrap();
                assert_eq!(*vf, pinned);
                assert!(self.oracle.is_at(*vf, host, device), "{vf} is no longer at {device}");
                assert_ne!(*state, VfState::Free);
                assert!(!free.contains(vf));
            }
            ReserveError::PinnedNotInPool { vf, .. } => assert!(!self.oracle.is_in(pool, *vf)),
            other => unreachable!("{other}"),
        }
    }

    fn restore(&mut self, vf: FunctionId, key: u8, held: bool) {
        let state = if held { RestoredState::Held } else { RestoredState::Releasing };
        let restored = self.allocator.restore(vf, key, state);
        let holder = self.oracle.vfs.get(&vf).and_then(|known| known.holder);
        match (self.oracle.held_by(key), holder) {
            (Some(other), _) if other != vf => {
                let error = RestoreError::KeyHoldsAnother { key, held: other, claimed: vf };
                assert_eq!(restored, Err(error));
            }
            (_, Some((holder, _))) if holder != key => {
                assert_eq!(restored, Err(RestoreError::VfHeld { vf, holder, claimant: key }));
            }
            _ => {
                assert_eq!(restored, Ok(()));
                let stage = if held { Stage::Reserved } else { Stage::Releasing };
                self.oracle.known(vf).holder = Some((key, stage));
            }
        }
    }

    /// Compares everything that can be read.
    fn check(&self) {
        let Self { allocator, oracle, .. } = self;
        assert!(allocator.vfs().map(|view| view.vf).eq(oracle.vfs.keys().copied()));
        for (&vf, known) in &oracle.vfs {
            let state = match allocator.state(vf).unwrap() {
                VfState::Free => "free",
                VfState::Reserved => "reserved",
                VfState::Attached => "attached",
                VfState::Releasing => "releasing",
                VfState::Quarantined { .. } => "quarantined",
                VfState::Absent { .. } => "absent",
            };
            assert_eq!(state, oracle.state(vf, known), "{vf}");
            let holder = known.holder.map(|(key, _)| key);
            assert_eq!(allocator.holder(vf).copied(), holder);
            assert_eq!(allocator.is_offered(vf), known.offer != Offer::None, "{vf}");
            if let Some(VfFacts { host, device, .. }) = &known.facts {
                assert_eq!(allocator.at_device(*host, device), Some(vf));
            }
            let pools: Vec<&str> = allocator.pools_of(vf).collect();
            let expected: Vec<&str> =
                POOLS.into_iter().filter(|pool| oracle.is_in(pool, vf)).collect();
            assert_eq!(pools, expected);
            let open = allocator.open_pools_of(vf).map(|pool| &pool.name);
            let is_open = !oracle.is_handed_out(vf);
            assert!(open.eq(expected.iter().filter(|_| is_open)), "{vf}");
        }
        for view in allocator.vfs() {
            let known = &oracle.vfs[&view.vf];
            assert_eq!((view.facts, view.failures), (known.facts.as_ref(), known.failures));
            assert_eq!(view.quarantine.is_some(), known.quarantined);
        }
        for key in 0..KEYS {
            assert_eq!(allocator.vf_of(&key), oracle.held_by(key));
        }
        for pool in POOLS {
            assert_eq!(allocator.usage(pool), Some(oracle.usage(pool)), "{pool}");
        }
    }

    /// All VFs come back clean.
    fn give_all_back(&mut self) {
        let vfs: Vec<_> = self.oracle.vfs.keys().copied().collect();
        let keys = (0..KEYS).map(Operation::Release);
        let recoveries = vfs.into_iter().flat_map(|vf| {
            [Operation::Clear(vf), Operation::StopWithholding(vf), Operation::MarkFree(vf, false)]
        });
        // Only if necessary: replacing the pools renews all offers.
        let reload =
            self.oracle.second_set.then_some(Operation::Reload(false, self.oracle.handed_out));
        for operation in keys.chain(recoveries).chain(reload).chain([Operation::Ports(8)]) {
            self.apply(&operation);
            self.check();
        }
    }

    fn check_none_is_lost(mut self) {
        self.give_all_back();
        self.check_all_by_name();
        let sessions = [0, 1].map(Operation::EndPromises);
        sessions
            .into_iter()
            .chain([Operation::Reload(false, false)])
            .for_each(|it| self.apply(&it));
        self.check();
        self.check_all_without_names();
    }

    /// Each VF goes to its host, which names the latest number of the offer.
    fn check_all_by_name(&mut self) {
        for host in [0, 1] {
            self.offer(HostId(host), usize::MAX);
        }
        for (vf, known) in &self.oracle.vfs {
            let VfFacts { host, device, .. } = facts(*vf, false);
            let offer = VfOffer { device, number: known.last_number };
            let (pinned, offered) = (Some(&offer.device), Some(&offer));
            let request = Request { host, pool: "all", pinned, offered };
            assert_eq!(self.allocator.reserve(&request, KEYS), Ok(*vf));
            self.allocator.release(&KEYS);
        }
    }

    /// Each VF goes to a request that names none.
    fn check_all_without_names(mut self) {
        let mut key = KEYS;
        let mut given = BTreeSet::new();
        for host in [0, 1] {
            let request = Request { host: HostId(host), pool: "all", pinned: None, offered: None };
            while let Ok(vf) = self.allocator.reserve(&request, key) {
                assert!(given.insert(vf), "{vf} is given twice");
                key += 1;
            }
        }
        assert!(given.iter().eq(self.oracle.vfs.keys()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn allocator_agrees_with_the_oracle(
        operations in prop::collection::vec(operation(), 0..300),
    ) {
        let mut both = Both::new();
        for operation in &operations {
            both.apply(operation);
            both.check();
        }
        both.check_none_is_lost();
    }
}
