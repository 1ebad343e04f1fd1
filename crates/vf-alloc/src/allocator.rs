//! The allocator: it knows all VFs and their holders.

use std::{collections::BTreeSet, hash::Hash};

use crate::{
    ClearError, Device, FunctionId, HostId, PoolSpec, ReserveError, RestoreError, RestoredState,
    Settings, SpecError, Usage, VfFacts, VfState, VfView,
    pool::Pool,
    pools::Pools,
    slot::{Offer, Slot, SlotNumber, Stage},
    vfs::Vfs,
};

/// A request for a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The host of the VF.
    pub host: HostId,
    /// The pool to take the VF from.
    pub pool: &'a str,
    /// The device of a VF that another program has already chosen.
    pub pinned: Option<&'a Device>,
    /// The VF that was [offered](Allocator::offer) to the host, if the host has taken one. It must equal
    /// `pinned`.
    pub offered: Option<&'a VfOffer>,
}

/// The host's reference to an offered VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfOffer {
    /// The VF's device on the host.
    pub device: Device,
    /// The number of the offer.
    pub number: u64,
}

/// An offer to send to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The VF.
    pub vf: FunctionId,
    /// The offer's number: higher than all earlier ones. Only the latest offer of a VF is valid.
    pub number: u64,
}

/// All VFs and their holders. `K` is the key of a holder: an attachment.
#[derive(Debug)]
pub struct Allocator<K> {
    settings: Settings,
    vfs: Vfs<K>,
    pools: Pools,
    /// The VFs that are offered to their hosts.
    offered: BTreeSet<SlotNumber>,
    /// The number of the latest offer.
    last_number: u64,
}

impl<K: Clone + Eq + Hash> Allocator<K> {
    /// Returns an allocator without VFs.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name.
    pub fn new(pools: Vec<PoolSpec>, settings: Settings) -> Result<Self, SpecError> {
        Ok(Self {
            settings,
            vfs: Vfs::new(),
            pools: Pools::new(pools)?,
            offered: BTreeSet::new(),
            last_number: settings.offered_before,
        })
    }

    /// Replaces the pools. Holders keep their VFs. Offers have to be sent again, because their VFs are in other
    /// pools.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name. Nothing has changed.
    pub fn replace_pools(&mut self, pools: Vec<PoolSpec>) -> Result<(), SpecError> {
        let mut pools = Pools::new(pools)?;
        // In the order in which VFs became free: the new lists keep it.
        let mut in_order: Vec<_> = self.vfs.all().collect();
        in_order.sort_by_key(|slot| self.pools.listed(slot.number));
        for slot in in_order {
            pools.place(slot);
        }
        self.pools = pools;
        self.offered.iter().for_each(|slot| self.vfs.at_mut(*slot).reset_offer());
        Ok(())
    }

    /// Records that the host reports `vf` back and clean, and marks it as free. A held VF stays held.
    pub fn mark_free(&mut self, vf: FunctionId, facts: VfFacts) {
        self.learn(vf, facts);
        self.change(vf, |slot| slot.withdrawn = None);
    }

    /// Records the host's facts about `vf` without marking it as free. The VF becomes available when its holder
    /// [releases](Self::release) it.
    pub fn learn(&mut self, vf: FunctionId, facts: VfFacts) {
        if self.facts(vf) == Some(&facts) {
            return;
        }
        let number = self.vfs.learn(vf, facts).number;
        // The offer was made to another host, or under another device.
        self.end_offer_at(number);
        self.pools.place(self.vfs.at(number));
    }

    /// Records that the host does not report `vf` as free. A held VF stays held.
    pub fn withdraw(&mut self, vf: FunctionId, why: &str) {
        self.change(vf, |slot| slot.withdrawn = Some(why.into()));
    }

    /// Sets the VFs that have ports on this DPU. Other VFs are not allocated, even if a host reports them as free.
    /// A held VF stays held.
    pub fn set_ports(&mut self, ports: BTreeSet<FunctionId>) {
        self.vfs.set_ports(ports);
        self.vfs.all().for_each(|slot| self.pools.sync(slot));
    }

    /// Makes `vf` unavailable for the reason `why`, until [`Self::make_available`]. A held VF stays held.
    pub fn make_unavailable(&mut self, vf: FunctionId, why: &str) {
        self.change(vf, |slot| slot.unavailable = Some(why.into()));
    }

    /// Ends [`Self::make_unavailable`] of `vf`. Does nothing if it is not unavailable.
    pub fn make_available(&mut self, vf: FunctionId) {
        if let Some(slot) = self.vfs.get_mut(vf) {
            slot.unavailable = None;
            self.pools.sync(slot);
        }
    }

    /// Offers free VFs to `host`, until it has `most` of each pool, and all VFs of pools that another program hands
    /// out. An offered VF goes only to a request that names it as [offered](Request::offered). Offers last until
    /// [`Self::end_offers`], also while a VF is held. Returns the offers to send: new ones, and earlier ones
    /// whose VF is available again.
    pub fn offer(&mut self, host: HostId, most: usize) -> Vec<Offered> {
        let is_unsent = |slot: &&SlotNumber| {
            let slot = self.vfs.at(**slot);
            slot.is_of(host) && slot.needs_new_number()
        };
        let unsent: Vec<_> = self.offered.iter().filter(is_unsent).copied().collect();
        let mut offers: Vec<_> = unsent.into_iter().map(|slot| self.send_offer(slot)).collect();
        for pool in 0..self.pools.len() {
            self.offer_of_pool(pool, host, most, &mut offers);
        }
        offers
    }

    fn offer_of_pool(&mut self, pool: usize, host: HostId, most: usize, offers: &mut Vec<Offered>) {
        let spec = &self.pools.at(pool).spec;
        let most = if spec.pinned_only { usize::MAX } else { most };
        let is_counted = |slot: &&Slot<K>| {
            let is_in_pool = slot.is_of(host) && slot.is_requestable() && slot.is_in(spec);
            is_in_pool && spec.pinned_only == self.pools.is_handed_out(slot)
        };
        let offered = self.offered.iter().map(|slot| self.vfs.at(*slot)).filter(is_counted);
        for _ in offered.count()..most {
            let Some(chosen) = self.pools.at(pool).choose(host) else { return };
            self.offered.insert(chosen);
            offers.push(self.send_offer(chosen));
            self.pools.sync(self.vfs.at(chosen));
        }
    }

    fn send_offer(&mut self, slot: SlotNumber) -> Offered {
        self.last_number += 1;
        let slot = self.vfs.at_mut(slot);
        slot.offer = Some(Offer { number: Some(self.last_number) });
        Offered { vf: slot.vf, number: self.last_number }
    }

    /// Records that the host declined the offer of that number. The VF has to be offered again. Ignores other
    /// numbers.
    pub fn note_declined(&mut self, vf: FunctionId, number: u64) {
        if let Some(slot) = self.vfs.get_mut(vf) {
            slot.note_declined(number);
        }
    }

    /// Ends all offers to `host`: its session is over.
    pub fn end_offers(&mut self, host: HostId) {
        let of_host = |slot: &&SlotNumber| self.vfs.at(**slot).is_of(host);
        let ended: Vec<_> = self.offered.iter().filter(of_host).copied().collect();
        ended.into_iter().for_each(|slot| self.end_offer_at(slot));
    }

    /// Ends the offer of `vf`: its host does not have the VF any more.
    pub fn end_offer(&mut self, vf: FunctionId) {
        if let Some(slot) = self.vfs.get(vf).map(|slot| slot.number) {
            self.end_offer_at(slot);
        }
    }

    fn end_offer_at(&mut self, slot: SlotNumber) {
        self.offered.remove(&slot);
        let slot = self.vfs.at_mut(slot);
        slot.offer = None;
        self.pools.sync(slot);
    }

    /// Gives `key` a VF: the one that it holds, the offered or pinned one, or a free one of the pool. Among those
    /// of a PF, the VF that has been free for longest comes first.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub fn reserve(&mut self, request: &Request<'_>, key: K) -> Result<FunctionId, ReserveError> {
        if let Some(slot) = self.vfs.of_key(&key) {
            return reserve_again(request, slot);
        }
        let pool = self.pools.named(request.pool);
        let pool = pool.ok_or_else(|| ReserveError::PoolUnknown { pool: request.pool.into() })?;
        let chosen = match (request.offered, request.pinned) {
            (Some(offer), _) => self.choose_offered(request, pool, offer)?,
            (None, Some(device)) => self.choose_named(request, pool, device, Slot::is_free)?,
            (None, None) => self.choose(request, pool)?,
        };
        Ok(self.hold(chosen, key, Stage::Reserved))
    }

    /// Records that `key`'s VF is in the pod. Resets its count of failures.
    pub fn attached(&mut self, key: &K) {
        if let Some(slot) = self.vfs.of_key_mut(key) {
            slot.note_attached();
        }
    }

    /// Records that `key`'s VF is being released. The key holds it until [`Self::release`].
    pub fn releasing(&mut self, key: &K) {
        if let Some(slot) = self.vfs.of_key_mut(key) {
            slot.note_releasing();
        }
    }

    /// Ends `key`'s hold. The host has reported the VF back and clean. `None`: the key held none.
    pub fn release(&mut self, key: &K) -> Option<FunctionId> {
        self.end_hold(key, Slot::note_returned)
    }

    /// Ends `key`'s hold of a VF that could not be programmed or moved, for `reason`. Too many failures in a row
    /// quarantine the VF. A VF withdrawn in between becomes available once its host reports it as free. `None`: the
    /// key held none.
    pub fn fail(&mut self, key: &K, reason: &str) -> Option<FunctionId> {
        let limit = self.settings.quarantine_after;
        self.end_hold(key, |slot| slot.note_failure(reason, limit))
    }

    /// Ends `key`'s hold of a VF that was never used. A VF withdrawn in between becomes available once its host
    /// reports it as free. `None`: the key held none.
    pub fn forget(&mut self, key: &K) -> Option<FunctionId> {
        self.end_hold(key, |_| {})
    }

    /// Quarantines `vf` until [`Self::clear`]. A held VF stays held.
    pub fn quarantine(&mut self, vf: FunctionId, reason: &str) {
        self.change(vf, |slot| slot.quarantine = Some(reason.into()));
    }

    /// Ends the quarantine of `vf` and resets its count of failures.
    ///
    /// # Errors
    /// It is unknown or not in quarantine.
    pub fn clear(&mut self, vf: FunctionId) -> Result<(), ClearError> {
        let slot = self.vfs.get_mut(vf).ok_or(ClearError::Unknown { vf })?;
        slot.clear()?;
        self.pools.sync(slot);
        Ok(())
    }

    /// Restores a hold from a journal.
    ///
    /// # Errors
    /// The VF has another holder, or the key another VF. Nothing has changed.
    pub fn restore(
        &mut self,
        vf: FunctionId,
        key: K,
        state: RestoredState,
    ) -> Result<(), RestoreError<K>> {
        if let Some(held) = self.vf_of(&key)
            && held != vf
        {
            return Err(RestoreError::KeyHoldsAnother { key, held, claimed: vf });
        }
        if let Some(holder) = self.holder(vf)
            && *holder != key
        {
            return Err(RestoreError::VfHeld { vf, holder: holder.clone(), claimant: key });
        }
        let stage = match state {
            RestoredState::Held => Stage::Reserved,
            RestoredState::Releasing => Stage::Releasing,
        };
        let slot = self.vfs.slot(vf).number;
        self.hold(slot, key, stage);
        Ok(())
    }

    /// The holder of `vf`.
    #[must_use]
    pub fn holder(&self, vf: FunctionId) -> Option<&K> {
        self.vfs.get(vf)?.holder()
    }

    /// Whether `vf` is offered to its host, held or not.
    #[must_use]
    pub fn is_offered(&self, vf: FunctionId) -> bool {
        self.vfs.get(vf).is_some_and(|slot| slot.offer.is_some())
    }

    /// The host's facts about `vf`. `None`: the host has not reported any.
    #[must_use]
    pub fn facts(&self, vf: FunctionId) -> Option<&VfFacts> {
        self.vfs.get(vf)?.facts.as_ref()
    }

    /// The VF at `device` of `host`.
    #[must_use]
    pub fn at_device(&self, host: HostId, device: &Device) -> Option<FunctionId> {
        self.vfs.of_device(host, device).map(|slot| slot.vf)
    }

    /// The VF that `key` holds.
    #[must_use]
    pub fn vf_of(&self, key: &K) -> Option<FunctionId> {
        self.vfs.of_key(key).map(|slot| slot.vf)
    }

    /// The state of `vf`. `None`: it was never reported or held.
    #[must_use]
    pub fn state(&self, vf: FunctionId) -> Option<VfState> {
        self.vfs.get(vf).map(Slot::state)
    }

    /// All VFs that were ever reported or held, in numeric order.
    pub fn vfs(&self) -> impl Iterator<Item = VfView<'_, K>> {
        self.vfs.all().map(Slot::view)
    }

    /// The usage of `pool`. `None`: there is no such pool.
    #[must_use]
    pub fn usage(&self, pool: &str) -> Option<Usage> {
        let pool = &self.pools.named(pool)?.spec;
        let mut usage = self.count(pool, |_| true);
        // VFs that the pool selects by number and no host has reported: the card may have fewer.
        usage.absent += pool.numbered().iter().filter(|vf| self.vfs.get(**vf).is_none()).count();
        Some(usage)
    }

    /// Whether only the missing port keeps `vf` from being allocated.
    #[must_use]
    pub fn lacks_only_port(&self, vf: FunctionId) -> bool {
        self.vfs.get(vf).is_some_and(Slot::lacks_only_port)
    }

    /// The pools that can give out `vf` unnamed. Empty if another program hands it out.
    pub fn open_pools_of(&self, vf: FunctionId) -> impl Iterator<Item = &PoolSpec> {
        let slot = self.vfs.get(vf).filter(|slot| !self.pools.is_handed_out(slot));
        self.pools().filter(move |pool| slot.is_some_and(|slot| slot.is_in(pool)))
    }

    /// The pools that `vf` is in.
    pub fn pools_of(&self, vf: FunctionId) -> impl Iterator<Item = &str> {
        let slot = self.vfs.get(vf);
        let holds = move |pool: &&PoolSpec| slot.is_some_and(|slot| slot.is_in(pool));
        self.pools().filter(holds).map(|pool| pool.name.as_str())
    }

    /// The pools.
    pub fn pools(&self) -> impl Iterator<Item = &PoolSpec> {
        self.pools.specs()
    }

    fn choose(&self, request: &Request<'_>, pool: &Pool) -> Result<SlotNumber, ReserveError> {
        if pool.spec.pinned_only {
            return Err(ReserveError::PinnedOnly { pool: request.pool.into() });
        }
        pool.choose(request.host).ok_or_else(|| self.exhausted(request, &pool.spec))
    }

    fn exhausted(&self, request: &Request<'_>, pool: &PoolSpec) -> ReserveError {
        let is_given = |slot: &Slot<K>| !self.pools.is_handed_out(slot);
        let of_host = |slot: &&Slot<K>| slot.is_in(pool) && slot.is_of(request.host);
        ReserveError::Exhausted {
            pool: request.pool.into(),
            usage: self.count(pool, |slot| slot.is_of(request.host) && is_given(slot)),
            named_only: self.vfs.all().filter(of_host).filter(|slot| !is_given(slot)).count(),
        }
    }

    fn choose_offered(
        &self,
        request: &Request<'_>,
        pool: &Pool,
        offer: &VfOffer,
    ) -> Result<SlotNumber, ReserveError> {
        let is_meant = |slot: &Slot<K>| match request.pinned {
            Some(pinned) => *pinned == offer.device,
            // Another program may hand it out since the offer.
            None => !self.pools.is_handed_out(slot),
        };
        let is_eligible = |slot: &Slot<K>| slot.is_offered_by(offer.number) && is_meant(slot);
        self.choose_named(request, pool, &offer.device, is_eligible)
    }

    fn choose_named(
        &self,
        request: &Request<'_>,
        pool: &Pool,
        device: &Device,
        is_eligible: impl Fn(&Slot<K>) -> bool,
    ) -> Result<SlotNumber, ReserveError> {
        let found = self.vfs.of_device(request.host, device);
        let device = || device.clone();
        let slot = found.ok_or_else(|| ReserveError::PinnedUnknown { device: device() })?;
        let vf = slot.vf;
        if !slot.is_in(&pool.spec) {
            let pool = request.pool.into();
            return Err(ReserveError::PinnedNotInPool { device: device(), vf, pool });
        }
        match slot.state() {
            _ if is_eligible(slot) => Ok(slot.number),
            VfState::Free => Err(ReserveError::NotOffered { device: device(), vf }),
            state => Err(ReserveError::PinnedNotFree { device: device(), vf, state }),
        }
    }

    fn count(&self, pool: &PoolSpec, counts: impl Fn(&Slot<K>) -> bool) -> Usage {
        let mut usage = Usage::default();
        for slot in self.vfs.all().filter(|slot| slot.is_in(pool) && counts(slot)) {
            usage.count(&slot.state());
        }
        usage
    }

    fn hold(&mut self, slot: SlotNumber, key: K, stage: Stage) -> FunctionId {
        let slot = self.vfs.hold(slot, key, stage);
        self.pools.sync(slot);
        slot.vf
    }

    /// Ends `key`'s hold, then applies `change` to its VF.
    fn end_hold(&mut self, key: &K, change: impl FnOnce(&mut Slot<K>)) -> Option<FunctionId> {
        let slot = self.vfs.clear_hold(key)?;
        change(slot);
        self.pools.sync(slot);
        Some(slot.vf)
    }

    /// Applies `change` to `vf`, known or not.
    fn change(&mut self, vf: FunctionId, change: impl FnOnce(&mut Slot<K>)) {
        let slot = self.vfs.slot(vf);
        change(slot);
        self.pools.sync(slot);
    }
}

/// The VF that the key already holds, if it matches the request.
fn reserve_again<K>(request: &Request<'_>, slot: &Slot<K>) -> Result<FunctionId, ReserveError> {
    let held = slot.vf;
    if slot.is_releasing() {
        return Err(ReserveError::KeyReleasing { held });
    }
    let Some(facts) = &slot.facts else { return Ok(held) };
    if facts.host != request.host {
        return Err(ReserveError::OtherHost { held });
    }
    let offered = request.offered.map(|offer| &offer.device);
    let mut wanted = request.pinned.into_iter().chain(offered);
    match wanted.find(|device| **device != facts.device) {
        Some(device) => Err(ReserveError::KeyHoldsAnother { held, device: device.clone() }),
        None => Ok(held),
    }
}
