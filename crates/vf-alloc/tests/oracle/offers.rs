//! Offers, and requests that name one.

use std::collections::BTreeSet;

use proptest::sample::Index;
use vf_alloc::{FunctionId, HostId, Offered, Request, ReserveError, VfOffer, VfState};

use crate::{
    Both,
    operation::{KEYS, Named, Number, Pins},
    plain::{Offer, Oracle, POOLS, Stage, facts},
};

impl Both {
    /// The result has all unsent offers, no more new VFs than wanted, and the VFs that have been free for longest,
    /// each with a new number.
    pub(crate) fn offer(&mut self, host: HostId, most: usize) {
        // A program that hands out a pool's VFs may name any of them.
        let most_of =
            |oracle: &Oracle, pool: &str| if oracle.is_open(pool) { most } else { usize::MAX };
        let lacking = |pool| {
            let wanted =
                most_of(&self.oracle, pool) - self.oracle.offered(pool, host).len().min(most);
            wanted.min(self.oracle.unoffered(pool, host).len())
        };
        let lacking: usize = POOLS.into_iter().map(lacking).sum();
        let mut unsent = self.oracle.unsent(host);
        let unoffered: BTreeSet<_> =
            POOLS.into_iter().flat_map(|pool| self.oracle.unoffered(pool, host)).collect();
        let offers = self.allocator.offer(host, most);
        let is_new = |vf: &FunctionId| unoffered.contains(vf);
        let new: Vec<_> = offers.iter().map(|offer| offer.vf).filter(is_new).collect();
        assert!(new.len() <= lacking, "{} are offered, and {lacking} are lacking", new.len());
        assert!(new.iter().all(|vf| self.has_rested_longest(*vf, host, &new)));
        for Offered { vf, number } in offers {
            assert!(unsent.remove(&vf) || is_new(&vf), "{vf} is already offered or unavailable");
            assert!(number > self.oracle.last_number, "{number} was used before");
            self.oracle.last_number = number;
            let known = self.oracle.known(vf);
            (known.offer, known.last_number) = (Offer::Sent(number), number);
        }
        assert!(unsent.is_empty(), "missing offers of {unsent:?}");
        for pool in POOLS {
            let is_enough = self.oracle.offered(pool, host).len() >= most_of(&self.oracle, pool);
            assert!(is_enough || self.oracle.unoffered(pool, host).is_empty(), "{pool}");
        }
    }

    /// Whether in some pool no VF of the same PF outside `new` has been free for longer.
    fn has_rested_longest(&self, vf: FunctionId, host: HostId, new: &[FunctionId]) -> bool {
        let since = |vf: &FunctionId| self.oracle.vfs[vf].free_since;
        POOLS.into_iter().filter(|pool| self.oracle.is_in(pool, vf)).any(|pool| {
            let mut others = self.oracle.unoffered(pool, host).into_iter();
            others.all(|it| it.pf != vf.pf || new.contains(&it) || since(&it) >= since(&vf))
        })
    }

    pub(crate) fn end_offers(&mut self, host: HostId) {
        self.allocator.end_offers(host);
        for known in self.oracle.vfs.values_mut() {
            if known.facts.as_ref().is_some_and(|facts| facts.host == host) {
                known.offer = Offer::None;
            }
        }
    }

    /// Another number than the valid one must change nothing.
    pub(crate) fn note_declined(&mut self, place: &Index, number: Number) {
        let Some(vf) = self.pick_offered(place) else { return };
        let number = self.number(vf, number);
        self.allocator.note_declined(vf, number);
        let known = self.oracle.known(vf);
        if known.offer == Offer::Sent(number) {
            known.offer = Offer::Unsent;
        }
    }

    /// One of the VFs that were ever offered.
    fn pick_offered(&self, place: &Index) -> Option<FunctionId> {
        let offered: Vec<_> = self.oracle.ever_offered().collect();
        (!offered.is_empty()).then(|| *place.get(&offered))
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
        let Some(vf) = self.pick_offered(place) else { return };
        let key = self.idle_key(key);
        let host = HostId(facts(vf, *moved).host.0 ^ u32::from(*abroad));
        let offer = VfOffer { device: facts(vf, *moved).device, number: self.number(vf, *number) };
        let pinned = match pins {
            Pins::Nothing => None,
            Pins::TheSame => Some(offer.device.clone()),
            Pins::Another(other) => Some(facts(*other, *moved).device),
        };
        let request = Request { host, pool, pinned: pinned.as_ref(), offered: Some(&offer) };
        let given = self.allocator.reserve(&request, key);
        if let Some(held) = self.oracle.held_by(key) {
            self.check_again(held, &request, &given);
            return;
        }
        assert_eq!(given, self.expected(vf, &offer, &request));
        if given.is_ok() {
            self.oracle.known(vf).holder = Some((key, Stage::Reserved));
        }
    }

    /// The next key that holds nothing.
    fn idle_key(&self, first: u8) -> u8 {
        let mut keys = (first..KEYS).chain(0..first);
        keys.find(|key| self.oracle.held_by(*key).is_none()).unwrap_or(first)
    }

    /// The outcome of a request that names the VF with that number.
    fn expected(
        &self,
        vf: FunctionId,
        VfOffer { device, number }: &VfOffer,
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
        if is_meant && oracle.is_offered_by(vf, *number) {
            return Ok(vf);
        }
        match allocator.state(vf).unwrap() {
            VfState::Free => Err(ReserveError::NotOffered { device: named, vf }),
            state => Err(ReserveError::PinnedNotFree { device: named, vf, state }),
        }
    }
}
