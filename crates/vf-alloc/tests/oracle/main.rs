//! Random operations on an allocator, each compared with a plain one.
#![expect(clippy::unwrap_used, reason = "a test may")]

mod operation;
mod plain;

use std::collections::BTreeSet;

use proptest::prelude::*;
use vf_alloc::{
    Allocator, ClearError, Device, FunctionId, HostId, Request, ReserveError, RestoreError,
    RestoredState, VfFacts, VfState,
};

use operation::{Operation, operation};
use plain::{Oracle, POOLS, SETTINGS, Stage, facts, pools};

struct Both {
    allocator: Allocator<u8>,
    oracle: Oracle,
    step: u64,
}

impl Both {
    fn new() -> Self {
        let allocator = Allocator::new(pools(false), SETTINGS).unwrap();
        Self { allocator, oracle: Oracle::default(), step: 0 }
    }

    fn apply(&mut self, operation: &Operation) {
        let Self { allocator, oracle, .. } = self;
        match *operation {
            Operation::Offer(vf, moved) => {
                allocator.offer(vf, facts(vf, moved));
                let known = oracle.known(vf);
                if known.facts.replace(facts(vf, moved)) != known.facts {
                    known.free_since = 0;
                }
                known.absent = false;
            }
            Operation::Withdraw(vf) => {
                allocator.withdraw(vf, "gone");
                oracle.known(vf).absent = true;
            }
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
                allocator.withhold(vf, "its port is not clean");
                oracle.known(vf).withheld = true;
            }
            Operation::StopWithholding(vf) => {
                allocator.stop_withholding(vf);
                if let Some(known) = oracle.vfs.get_mut(&vf) {
                    known.withheld = false;
                }
            }
            Operation::Restore(vf, key, held) => self.restore(vf, key, held),
            Operation::Reload(second_set) => {
                allocator.replace_pools(pools(second_set)).unwrap();
                oracle.second_set = second_set;
            }
            Operation::Ports(count) => {
                let of_pf = |pf| (0..count).map(move |vf| FunctionId::local(pf, vf));
                allocator.set_ports((0..2).flat_map(of_pf).collect());
                oracle.ports = Some(count);
            }
        }
        self.note_free();
    }

    /// Notes which VFs have just become free.
    fn note_free(&mut self) {
        self.step += 1;
        let is_free: BTreeSet<_> = {
            let Self { oracle, .. } = &*self;
            let free = oracle.vfs.iter().filter(|(vf, known)| oracle.state(**vf, known) == "free");
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

    /// With a pin: the VF, and the device that it may have been at or is at now.
    fn reserve(&mut self, key: u8, pool: &str, host: HostId, pin: Option<(FunctionId, &Device)>) {
        let request = Request { host, pool, pinned: pin.map(|(_, device)| device), promised: None };
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
                assert!(self.oracle.free(pool, host, None).contains(&vf));
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
        let device = || request.pinned.cloned().unwrap_or_default();
        let elsewhere = known.facts.as_ref().is_some_and(|facts| facts.host != request.host);
        let other = |facts: &VfFacts| request.pinned.is_some_and(|device| *device != facts.device);
        let expected = if matches!(known.holder, Some((_, Stage::Releasing))) {
            Err(ReserveError::KeyReleasing { held })
        } else if elsewhere {
            Err(ReserveError::OtherHost { held })
        } else if known.facts.as_ref().is_some_and(other) {
            Err(ReserveError::KeyHoldsAnother { held, device: device() })
        } else {
            Ok(held)
        };
        assert_eq!(*given, expected);
    }

    /// The VF is of the PF that the policy prefers, and is the longest rested of it.
    fn check_choice(&self, vf: FunctionId, pool: &str, host: HostId) {
        let free = |pf| self.oracle.free(pool, host, Some(pf));
        let here = free(vf.pf.pf);
        assert!(here.contains(&vf), "{vf} is not free");
        let there = free(1 - vf.pf.pf).len();
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
        let free = self.oracle.free(pool, host, None);
        match error {
            ReserveError::Exhausted { .. } => assert!(pin.is_none() && free.is_empty()),
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

    /// All that can be read agrees.
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
            let pools: Vec<&str> = allocator.pools_of(vf).collect();
            let expected: Vec<&str> =
                POOLS.into_iter().filter(|pool| oracle.is_in(pool, vf)).collect();
            assert_eq!(pools, expected);
        }
        for view in allocator.vfs() {
            let known = &oracle.vfs[&view.vf];
            assert_eq!((view.facts, view.failures), (known.facts.as_ref(), known.failures));
            assert_eq!(view.quarantine.is_some(), known.quarantined);
        }
        for key in 0..12 {
            assert_eq!(allocator.vf_of(&key), oracle.held_by(key));
        }
        for pool in POOLS {
            assert_eq!(allocator.usage(pool), Some(oracle.usage(pool)), "{pool}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_allocator_does_what_the_oracle_does(
        operations in prop::collection::vec(operation(), 0..300),
    ) {
        let mut both = Both::new();
        for operation in &operations {
            both.apply(operation);
            both.check();
        }
    }
}
