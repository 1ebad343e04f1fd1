//! Who holds which VF.

use std::{collections::BTreeSet, hash::Hash};

use crate::{
    ClearError, Device, FunctionId, HostId, PoolSpec, ReserveError, RestoreError, RestoredState,
    Settings, SpecError, Usage, VfFacts, VfState, VfView,
    pool::Pool,
    pools::Pools,
    slot::{Slot, SlotNumber, Stage},
    vfs::Vfs,
};

/// What an attachment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The host that the VF must belong to.
    pub host: HostId,
    /// The pool to draw from.
    pub pool: &'a str,
    /// The very VF, by its device on the host, that somebody else has chosen already.
    pub pinned: Option<&'a Device>,
    /// The very VF that was [promised](Allocator::promise) to the host. One that is pinned, too, has to be the same.
    pub promised: Option<&'a VfPromise>,
}

/// What a host names a promised VF by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfPromise {
    /// The VF, by its device on the host.
    pub device: Device,
    /// The number of its promise.
    pub number: u64,
}

/// That a VF is promised, as its host is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promised {
    /// The VF.
    pub vf: FunctionId,
    /// Higher than all that were told before. Only the VF's latest one is good.
    pub number: u64,
}

/// All VFs, and who holds them. `K` names a holder: an attachment.
#[derive(Debug)]
pub struct Allocator<K> {
    settings: Settings,
    vfs: Vfs<K>,
    pools: Pools,
    /// Those that are promised to their hosts.
    promised: BTreeSet<SlotNumber>,
    /// The number that was told last.
    last_told: u64,
}

impl<K: Clone + Eq + Hash> Allocator<K> {
    /// An allocator that knows of no VF yet.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name.
    pub fn new(pools: Vec<PoolSpec>, settings: Settings) -> Result<Self, SpecError> {
        Ok(Self {
            settings,
            vfs: Vfs::new(),
            pools: Pools::new(pools)?,
            promised: BTreeSet::new(),
            last_told: settings.promised_before,
        })
    }

    /// Puts `pools` in the place of the pools so far. Whoever holds a VF keeps it; of promised ones their hosts are to
    /// be told again, for they are in other pools.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name. Nothing has changed.
    pub fn replace_pools(&mut self, pools: Vec<PoolSpec>) -> Result<(), SpecError> {
        let mut pools = Pools::new(pools)?;
        // In the order in which they became free, so that the new lists have them in that order, too.
        let mut in_order: Vec<_> = self.vfs.all().collect();
        in_order.sort_by_key(|slot| self.pools.listed(slot.number()));
        for slot in in_order {
            pools.place(slot);
        }
        self.pools = pools;
        self.promised.iter().for_each(|slot| self.vfs.at_mut(*slot).renew_promise());
        Ok(())
    }

    /// Notes that its host has `vf`, back and clean, and offers it. A VF that is held stays held.
    pub fn offer(&mut self, vf: FunctionId, facts: VfFacts) {
        self.learn(vf, facts);
        self.change(vf, Slot::offer);
    }

    /// Notes what its host says of `vf`, without offering it: it can be had as soon as whoever holds it
    /// [releases](Self::release) it.
    pub fn learn(&mut self, vf: FunctionId, facts: VfFacts) {
        if self.facts(vf) == Some(&facts) {
            return;
        }
        let number = self.vfs.learn(vf, facts).number();
        // It was another host that it was promised to, or that host knows it by another device.
        self.end_promise_at(number);
        self.pools.place(self.vfs.at(number));
    }

    /// Notes that its host does not offer `vf` now. A VF that is held stays held.
    pub fn withdraw(&mut self, vf: FunctionId, why: &str) {
        self.change(vf, |slot| slot.withdraw(why));
    }

    /// Notes which VFs have ports on this DPU now; others are not given out, whoever offers them. A VF
    /// that is held stays held.
    pub fn set_ports(&mut self, ports: BTreeSet<FunctionId>) {
        self.vfs.set_ports(ports);
        self.vfs.all().for_each(|slot| self.pools.settle(slot));
    }

    /// Keeps `vf` from being given out, for `why`, until this is [ended](Self::stop_withholding). A VF that is held
    /// stays held.
    pub fn withhold(&mut self, vf: FunctionId, why: &str) {
        self.change(vf, |slot| slot.withhold(why));
    }

    /// Nothing withholds `vf` any more. One that was never withheld stays as it is.
    pub fn stop_withholding(&mut self, vf: FunctionId) {
        if let Some(slot) = self.vfs.get_mut(vf) {
            slot.stop_withholding();
            self.pools.settle(slot);
        }
    }

    /// Promises `host` free VFs, until it has `most` of each pool that can be had, and all of one that somebody else
    /// hands out: they are given to nobody but who names them as [promised](Request::promised). A promise lasts until
    /// the host's promises [end](Self::end_promises), whoever holds the VF meanwhile. Returns what the host is to be
    /// told besides what it was told before: which VFs are new, and which it has had, and are to be had again.
    pub fn promise(&mut self, host: HostId, most: usize) -> Vec<Promised> {
        let is_untold = |slot: &&SlotNumber| {
            let slot = self.vfs.at(**slot);
            slot.is_of(host) && slot.is_promise_untold()
        };
        let untold: Vec<_> = self.promised.iter().filter(is_untold).copied().collect();
        let mut told: Vec<_> = untold.into_iter().map(|slot| self.tell(slot)).collect();
        for pool in 0..self.pools.len() {
            self.promise_of_pool(pool, host, most, &mut told);
        }
        told
    }

    fn promise_of_pool(
        &mut self,
        pool: usize,
        host: HostId,
        most: usize,
        told: &mut Vec<Promised>,
    ) {
        let spec = &self.pools.at(pool).spec;
        let most = if spec.pinned_only { usize::MAX } else { most };
        let is_counted = |slot: &&Slot<K>| {
            let is_in_pool = slot.is_of(host) && slot.can_be_named() && slot.is_in(spec);
            is_in_pool && spec.pinned_only == self.pools.is_handed_out(slot)
        };
        let promised = self.promised.iter().map(|slot| self.vfs.at(*slot)).filter(is_counted);
        for _ in promised.count()..most {
            let Some(chosen) = self.pools.at(pool).choose(host) else { return };
            self.promised.insert(chosen);
            told.push(self.tell(chosen));
            self.pools.settle(self.vfs.at(chosen));
        }
    }

    fn tell(&mut self, slot: SlotNumber) -> Promised {
        self.last_told += 1;
        let slot = self.vfs.at_mut(slot);
        slot.promise(self.last_told);
        Promised { vf: slot.vf(), number: self.last_told }
    }

    /// Notes that its host has taken `vf` by the promise of that number, and does not use it: the host is to be told
    /// again. A promise of another number stays as it is.
    pub fn note_untaken(&mut self, vf: FunctionId, number: u64) {
        if let Some(slot) = self.vfs.get_mut(vf) {
            slot.note_untaken(number);
        }
    }

    /// Ends all promises to `host`: its session is over, and what it was told in that counts no more.
    pub fn end_promises(&mut self, host: HostId) {
        let of_host = |slot: &&SlotNumber| self.vfs.at(**slot).is_of(host);
        let ended: Vec<_> = self.promised.iter().filter(of_host).copied().collect();
        ended.into_iter().for_each(|slot| self.end_promise_at(slot));
    }

    /// Ends the promise of `vf`, as its host has it no more.
    pub fn end_promise(&mut self, vf: FunctionId) {
        if let Some(slot) = self.vfs.get(vf).map(Slot::number) {
            self.end_promise_at(slot);
        }
    }

    fn end_promise_at(&mut self, slot: SlotNumber) {
        self.promised.remove(&slot);
        let slot = self.vfs.at_mut(slot);
        slot.end_promise();
        self.pools.settle(slot);
    }

    /// Gives `key` a VF: the one that it holds already, the promised or pinned one, or one of the pool's free
    /// ones. Within a PF the one that has been free for longest comes first.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub fn reserve(&mut self, request: &Request<'_>, key: K) -> Result<FunctionId, ReserveError> {
        if let Some(slot) = self.vfs.of_key(&key) {
            return reserve_again(request, slot);
        }
        let pool = self.pools.named(request.pool);
        let pool = pool.ok_or_else(|| ReserveError::PoolUnknown { pool: request.pool.into() })?;
        let chosen = match (request.promised, request.pinned) {
            (Some(promise), _) => self.choose_promised(request, pool, promise)?,
            (None, Some(device)) => self.choose_named(request, pool, device, Slot::is_free)?,
            (None, None) => self.choose(request, pool)?,
        };
        Ok(self.hold(chosen, key, Stage::Reserved))
    }

    /// Notes that the pod has `key`'s VF: it works, and its count of failures starts again.
    pub fn attached(&mut self, key: &K) {
        if let Some(slot) = self.vfs.of_key_mut(key) {
            slot.note_attached();
        }
    }

    /// Notes that `key`'s VF is being taken back. The key holds it until [`Self::release`].
    pub fn releasing(&mut self, key: &K) {
        if let Some(slot) = self.vfs.of_key_mut(key) {
            slot.note_releasing();
        }
    }

    /// Takes back `key`'s VF, which its host has, back and clean. `None`: the key held none.
    pub fn release(&mut self, key: &K) -> Option<FunctionId> {
        self.take_back(key, Slot::note_returned)
    }

    /// Takes back `key`'s VF, which could not be programmed or moved, for `reason`.
    /// After too many failures in a row it is quarantined. One that was withdrawn meanwhile is given
    /// out again only once it is offered. `None`: the key held none.
    pub fn fail(&mut self, key: &K, reason: &str) -> Option<FunctionId> {
        let limit = self.settings.quarantine_after;
        self.take_back(key, |slot| slot.note_failure(reason, limit))
    }

    /// Takes back `key`'s VF, which nobody has used. One that was withdrawn meanwhile is given out again only once it
    /// is offered. `None`: the key held none.
    pub fn forget(&mut self, key: &K) -> Option<FunctionId> {
        self.take_back(key, |_| {})
    }

    /// Keeps `vf` from being given out until it is [cleared](Self::clear). A VF that is held stays
    /// held.
    pub fn quarantine(&mut self, vf: FunctionId, reason: &str) {
        self.change(vf, |slot| slot.quarantine(reason));
    }

    /// Ends the quarantine of `vf` and forgets its failures.
    ///
    /// # Errors
    /// It is unknown or not in quarantine.
    pub fn clear(&mut self, vf: FunctionId) -> Result<(), ClearError> {
        let slot = self.vfs.get_mut(vf).ok_or(ClearError::Unknown { vf })?;
        slot.clear()?;
        self.pools.settle(slot);
        Ok(())
    }

    /// Lets `key` hold `vf`, as a journal says that it does.
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
        let slot = self.vfs.slot(vf).number();
        self.hold(slot, key, stage);
        Ok(())
    }

    /// Who holds `vf`.
    #[must_use]
    pub fn holder(&self, vf: FunctionId) -> Option<&K> {
        self.vfs.get(vf)?.holder()
    }

    /// Whether `vf` is promised to its host, whoever holds it meanwhile.
    #[must_use]
    pub fn is_promised(&self, vf: FunctionId) -> bool {
        self.vfs.get(vf).is_some_and(Slot::is_promised)
    }

    /// What its host said of `vf`. `None` until the host has told of it.
    #[must_use]
    pub fn facts(&self, vf: FunctionId) -> Option<&VfFacts> {
        self.vfs.get(vf)?.facts()
    }

    /// The VF that is at `device` of `host`.
    #[must_use]
    pub fn at_device(&self, host: HostId, device: &Device) -> Option<FunctionId> {
        self.vfs.of_device(host, device).map(Slot::vf)
    }

    /// The VF that `key` holds.
    #[must_use]
    pub fn vf_of(&self, key: &K) -> Option<FunctionId> {
        self.vfs.of_key(key).map(Slot::vf)
    }

    /// Where `vf` is in its life, or `None`: nobody has ever told of it or held it.
    #[must_use]
    pub fn state(&self, vf: FunctionId) -> Option<VfState> {
        self.vfs.get(vf).map(Slot::state)
    }

    /// All VFs that have ever been told of or held, in the order of their names' numbers.
    pub fn vfs(&self) -> impl Iterator<Item = VfView<'_, K>> {
        self.vfs.all().map(Slot::view)
    }

    /// How the VFs of `pool` are used, or `None`: no such pool.
    #[must_use]
    pub fn usage(&self, pool: &str) -> Option<Usage> {
        let pool = &self.pools.named(pool)?.spec;
        let mut usage = self.count(pool, |_| true);
        // Those that it has by number and that are not known: the card may have fewer.
        usage.absent += pool.numbered().iter().filter(|vf| self.vfs.get(**vf).is_none()).count();
        Some(usage)
    }

    /// Whether `vf` could be given out if this DPU had its port.
    #[must_use]
    pub fn lacks_only_port(&self, vf: FunctionId) -> bool {
        self.vfs.get(vf).is_some_and(Slot::lacks_only_port)
    }

    /// The pools out of which `vf` may be had by who does not name it: none if somebody else hands it out.
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

    fn choose_promised(
        &self,
        request: &Request<'_>,
        pool: &Pool,
        promise: &VfPromise,
    ) -> Result<SlotNumber, ReserveError> {
        let is_meant = |slot: &Slot<K>| match request.pinned {
            Some(pinned) => *pinned == promise.device,
            // Somebody else may hand it out by now.
            None => !self.pools.is_handed_out(slot),
        };
        let can_be_had = |slot: &Slot<K>| slot.is_promised_by(promise.number) && is_meant(slot);
        self.choose_named(request, pool, &promise.device, can_be_had)
    }

    fn choose_named(
        &self,
        request: &Request<'_>,
        pool: &Pool,
        device: &Device,
        can_be_had: impl Fn(&Slot<K>) -> bool,
    ) -> Result<SlotNumber, ReserveError> {
        let found = self.vfs.of_device(request.host, device);
        let device = || device.clone();
        let slot = found.ok_or_else(|| ReserveError::PinnedUnknown { device: device() })?;
        let vf = slot.vf();
        if !slot.is_in(&pool.spec) {
            let pool = request.pool.into();
            return Err(ReserveError::PinnedNotInPool { device: device(), vf, pool });
        }
        match slot.state() {
            _ if can_be_had(slot) => Ok(slot.number()),
            VfState::Free => Err(ReserveError::NotPromised { device: device(), vf }),
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
        self.pools.settle(slot);
        slot.vf()
    }

    /// Ends `key`'s hold, and changes what is known of its VF.
    fn take_back(&mut self, key: &K, change: impl FnOnce(&mut Slot<K>)) -> Option<FunctionId> {
        let slot = self.vfs.let_go(key)?;
        change(slot);
        self.pools.settle(slot);
        Some(slot.vf())
    }

    /// Changes what is known of `vf`, which need not be known yet.
    fn change(&mut self, vf: FunctionId, change: impl FnOnce(&mut Slot<K>)) {
        let slot = self.vfs.slot(vf);
        change(slot);
        self.pools.settle(slot);
    }
}

/// The VF that a key holds already, if it is one that the request may mean.
fn reserve_again<K>(request: &Request<'_>, slot: &Slot<K>) -> Result<FunctionId, ReserveError> {
    let held = slot.vf();
    if slot.is_releasing() {
        return Err(ReserveError::KeyReleasing { held });
    }
    let Some(facts) = slot.facts() else { return Ok(held) };
    if facts.host != request.host {
        return Err(ReserveError::OtherHost { held });
    }
    let promised = request.promised.map(|promise| &promise.device);
    let mut wanted = request.pinned.into_iter().chain(promised);
    match wanted.find(|device| **device != facts.device) {
        Some(device) => Err(ReserveError::KeyHoldsAnother { held, device: device.clone() }),
        None => Ok(held),
    }
}
