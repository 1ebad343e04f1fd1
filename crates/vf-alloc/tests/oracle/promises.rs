//! Promises, and requests that name one.

use std::collections::BTreeSet;

use proptest::sample::Index;
use vf_alloc::{FunctionId, HostId, Promised, Request, ReserveError, VfPromise, VfState};

use crate::{
    Both,
    operation::{KEYS, Named, Number, Pins},
    plain::{Oracle, POOLS, Promise, Stage, facts},
};

impl Both {
    /// The host is told of all that it does not know of, of no more VFs than it wants, and of those that have rested
    /// for longest, each by a number that was never told.
    pub(crate) fn promise(&mut self, host: HostId, most: usize) {
        // Who hands out a pool's VFs may name any of them.
        let most_of =
            |oracle: &Oracle, pool: &str| if oracle.is_open(pool) { most } else { usize::MAX };
        let lacking = |pool| {
            let wanted =
                most_of(&self.oracle, pool) - self.oracle.promised(pool, host).len().min(most);
            wanted.min(self.oracle.unpromised(pool, host).len())
        };
        let lacking: usize = POOLS.into_iter().map(lacking).sum();
        let mut untold = self.oracle.untold(host);
        let unpromised: BTreeSet<_> =
            POOLS.into_iter().flat_map(|pool| self.oracle.unpromised(pool, host)).collect();
        let told = self.allocator.promise(host, most);
        let is_new = |vf: &FunctionId| unpromised.contains(vf);
        let new: Vec<_> = told.iter().map(|told| told.vf).filter(is_new).collect();
        assert!(new.len() <= lacking, "{} are promised, and {lacking} are lacking", new.len());
        assert!(new.iter().all(|vf| self.has_rested_longest(*vf, host, &new)));
        for Promised { vf, number } in told {
            assert!(untold.remove(&vf) || is_new(&vf), "{vf} is promised, or not to be had");
            assert!(number > self.oracle.last_number, "{number} was told before");
            self.oracle.last_number = number;
            let known = self.oracle.known(vf);
            (known.promise, known.last_number) = (Promise::Told(number), number);
        }
        assert!(untold.is_empty(), "the host is not told of {untold:?}");
        for pool in POOLS {
            let is_enough = self.oracle.promised(pool, host).len() >= most_of(&self.oracle, pool);
            assert!(is_enough || self.oracle.unpromised(pool, host).is_empty(), "{pool}");
        }
    }

    /// Whether there is a pool in which nothing of the same PF that is not promised with it has rested for longer.
    fn has_rested_longest(&self, vf: FunctionId, host: HostId, new: &[FunctionId]) -> bool {
        let since = |vf: &FunctionId| self.oracle.vfs[vf].free_since;
        POOLS.into_iter().filter(|pool| self.oracle.is_in(pool, vf)).any(|pool| {
            let mut others = self.oracle.unpromised(pool, host).into_iter();
            others.all(|it| it.pf != vf.pf || new.contains(&it) || since(&it) >= since(&vf))
        })
    }

    pub(crate) fn end_promises(&mut self, host: HostId) {
        self.allocator.end_promises(host);
        for known in self.oracle.vfs.values_mut() {
            if known.facts.as_ref().is_some_and(|facts| facts.host == host) {
                known.promise = Promise::None;
            }
        }
    }

    /// Nothing is to change where the number is not the one in force.
    pub(crate) fn note_untaken(&mut self, place: &Index, number: Number) {
        let Some(vf) = self.told(place) else { return };
        let number = self.number(vf, number);
        self.allocator.note_untaken(vf, number);
        let known = self.oracle.known(vf);
        if known.promise == Promise::Told(number) {
            known.promise = Promise::Untold;
        }
    }

    /// One of the VFs that were ever told, if there are any.
    fn told(&self, place: &Index) -> Option<FunctionId> {
        let told: Vec<_> = self.oracle.told().collect();
        (!told.is_empty()).then(|| *place.get(&told))
    }

    fn number(&self, vf: FunctionId, number: Number) -> u64 {
        let last = self.oracle.last_number;
        match number {
            Number::Last => self.oracle.vfs[&vf].last_number,
            Number::LastOfAll => last,
            Number::Before => last - 1,
            Number::Next => last + 1,
        }
    }

    pub(crate) fn name(&mut self, key: u8, pool: &str, named: &Named) {
        let Named { place, moved, abroad, number, pins } = named;
        let Some(vf) = self.told(place) else { return };
        let key = self.idle_key(key);
        let host = HostId(facts(vf, *moved).host.0 ^ u32::from(*abroad));
        let promise =
            VfPromise { device: facts(vf, *moved).device, number: self.number(vf, *number) };
        let pinned = match pins {
            Pins::Nothing => None,
            Pins::TheSame => Some(promise.device.clone()),
            Pins::Another(other) => Some(facts(*other, *moved).device),
        };
        let request = Request { host, pool, pinned: pinned.as_ref(), promised: Some(&promise) };
        let given = self.allocator.reserve(&request, key);
        if let Some(held) = self.oracle.held_by(key) {
            self.check_again(held, &request, &given);
            return;
        }
        assert_eq!(given, self.expected(vf, &promise, &request));
        if given.is_ok() {
            self.oracle.known(vf).holder = Some((key, Stage::Reserved));
        }
    }

    /// The next key that holds nothing, if there is one.
    fn idle_key(&self, first: u8) -> u8 {
        let mut keys = (first..KEYS).chain(0..first);
        keys.find(|key| self.oracle.held_by(*key).is_none()).unwrap_or(first)
    }

    /// What becomes of a request that names the VF by that promise.
    fn expected(
        &self,
        vf: FunctionId,
        VfPromise { device, number }: &VfPromise,
        request: &Request<'_>,
    ) -> Result<FunctionId, ReserveError> {
        let Self { allocator, oracle, .. } = self;
        let named = device.clone();
        let is_meant = match request.pinned {
            Some(pinned) => pinned == device,
            None => !oracle.is_handed_out(vf),
        };
        if !oracle.is_at(vf, request.host, device) {
            return Err(ReserveError::PinnedUnknown { device: named });
        }
        if !oracle.is_in(request.pool, vf) {
            let pool = request.pool.into();
            return Err(ReserveError::PinnedNotInPool { device: named, vf, pool });
        }
        if is_meant && oracle.is_promised_by(vf, *number) {
            return Ok(vf);
        }
        match allocator.state(vf).unwrap() {
            VfState::Free => Err(ReserveError::NotPromised { device: named, vf }),
            state => Err(ReserveError::PinnedNotFree { device: named, vf, state }),
        }
    }
}
