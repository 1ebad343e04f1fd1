//! Who holds which VF.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use ahash::RandomState;

use crate::{
    ClearError, Device, FunctionId, HostId, PoolSpec, ReserveError, RestoreError, RestoredState,
    Selector, Settings, SpecError, Usage, VfFacts, VfState, VfView,
    pool::{Pool, Stamp},
    spec,
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
}

/// All VFs, and who holds them. `K` names a holder: an attachment.
#[derive(Debug)]
pub struct Allocator<K> {
    settings: Settings,
    pools: Vec<Pool>,
    pool_numbers: HashMap<String, usize, RandomState>,
    slots: Vec<Slot<K>>,
    by_vf: BTreeMap<FunctionId, usize>,
    by_key: HashMap<K, usize, RandomState>,
    by_device: HashMap<HostId, HashMap<Device, usize>>,
    /// The VFs that have ports on this DPU. `None`: nobody has told, and all are taken to have one.
    ports: Option<BTreeSet<FunctionId>>,
    last_stamp: Stamp,
}

/// One VF.
#[derive(Debug)]
struct Slot<K> {
    vf: FunctionId,
    facts: Option<VfFacts>,
    hold: Option<Hold<K>>,
    /// Why its host does not offer it.
    withdrawn: Option<String>,
    /// Whether this DPU has its port.
    has_port: bool,
    quarantine: Option<String>,
    failures: u32,
    /// Set while it is listed as free.
    listed: Option<Stamp>,
    /// The pools that it is in, and its lane in each.
    lanes: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Hold<K> {
    key: K,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reserved,
    Attached,
    Releasing,
}

impl<K> Slot<K> {
    fn new(vf: FunctionId, has_port: bool) -> Self {
        Self {
            vf,
            facts: None,
            hold: None,
            withdrawn: Some("its host has not offered it".into()),
            has_port,
            quarantine: None,
            failures: 0,
            listed: None,
            lanes: Vec::new(),
        }
    }

    fn is_free(&self) -> bool {
        self.hold.is_none()
            && self.quarantine.is_none()
            && self.withdrawn.is_none()
            && self.has_port
    }

    fn state(&self) -> VfState {
        if let Some(hold) = &self.hold {
            return match hold.stage {
                Stage::Reserved => VfState::Reserved,
                Stage::Attached => VfState::Attached,
                Stage::Releasing => VfState::Releasing,
            };
        }
        if let Some(reason) = &self.quarantine {
            return VfState::Quarantined { reason: reason.clone() };
        }
        if let Some(reason) = &self.withdrawn {
            return VfState::Absent { reason: reason.clone() };
        }
        if !self.has_port {
            return VfState::Absent { reason: "it has no representor on this DPU".into() };
        }
        VfState::Free
    }

    fn is_in(&self, pool: &PoolSpec) -> bool {
        let ids = self.facts.as_ref().map(|facts| (facts.vendor_id, facts.device_id));
        pool.select.iter().any(|selector| selector.selects(self.vf, ids))
    }

    fn is_of(&self, host: HostId) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.host == host)
    }

    fn view(&self) -> VfView<'_, K> {
        VfView {
            vf: self.vf,
            facts: self.facts.as_ref(),
            state: self.state(),
            holder: self.hold.as_ref().map(|hold| &hold.key),
            failures: self.failures,
            quarantine: self.quarantine.as_deref(),
            has_port: self.has_port,
        }
    }
}

impl<K: Clone + Eq + Hash> Allocator<K> {
    /// An allocator that knows of no VF yet.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name.
    pub fn new(pools: Vec<PoolSpec>, settings: Settings) -> Result<Self, SpecError> {
        let mut allocator = Self {
            settings,
            pools: Vec::new(),
            pool_numbers: HashMap::default(),
            slots: Vec::new(),
            by_vf: BTreeMap::new(),
            by_key: HashMap::default(),
            by_device: HashMap::new(),
            ports: None,
            last_stamp: 0,
        };
        allocator.replace_pools(pools)?;
        Ok(allocator)
    }

    /// Puts `pools` in the place of the pools so far. Whoever holds a VF keeps it.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name. Nothing has changed.
    pub fn replace_pools(&mut self, pools: Vec<PoolSpec>) -> Result<(), SpecError> {
        spec::check(&pools)?;
        let name = |(number, pool): (usize, &PoolSpec)| (pool.name.clone(), number);
        self.pool_numbers = pools.iter().enumerate().map(name).collect();
        self.pools = pools.into_iter().map(Pool::new).collect();
        let mut in_order: Vec<usize> = (0..self.slots.len()).collect();
        // In the order in which they became free, so that the new lists have them in that order, too.
        in_order.sort_by_key(|&slot| self.slots[slot].listed);
        for slot in in_order {
            self.slots[slot].listed = None;
            self.join_lanes(slot);
            self.settle(slot);
        }
        Ok(())
    }

    /// Notes that its host has `vf`, back and clean, and offers it. A VF that is held stays held.
    pub fn offer(&mut self, vf: FunctionId, facts: VfFacts) {
        let slot = self.slot(vf);
        self.take_note(slot, facts);
        self.slots[slot].withdrawn = None;
        self.settle(slot);
    }

    /// Notes what its host says of `vf`, without offering it: it can be had as soon as whoever holds it
    /// [releases](Self::release) it.
    pub fn learn(&mut self, vf: FunctionId, facts: VfFacts) {
        let slot = self.slot(vf);
        self.take_note(slot, facts);
        self.settle(slot);
    }

    /// Notes that its host does not offer `vf` now. A VF that is held stays held.
    pub fn withdraw(&mut self, vf: FunctionId, why: &str) {
        let slot = self.slot(vf);
        self.slots[slot].withdrawn = Some(why.into());
        self.settle(slot);
    }

    /// Notes which VFs have ports on this DPU now; others are not given out, whoever offers them. A VF
    /// that is held stays held.
    pub fn set_ports(&mut self, ports: BTreeSet<FunctionId>) {
        for number in 0..self.slots.len() {
            self.slots[number].has_port = ports.contains(&self.slots[number].vf);
            self.settle(number);
        }
        self.ports = Some(ports);
    }

    /// Gives `key` a VF: the one that it holds already, the pinned one, or one of the pool's free
    /// ones. Within a PF the one that has been free for longest comes first.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub fn reserve(&mut self, request: &Request<'_>, key: K) -> Result<FunctionId, ReserveError> {
        if let Some(&slot) = self.by_key.get(&key) {
            return self.reserve_again(request, slot);
        }
        let pool = self.pool_numbers.get(request.pool).copied();
        let pool = pool.ok_or_else(|| ReserveError::PoolUnknown { pool: request.pool.into() })?;
        let slot = match request.pinned {
            Some(device) => self.choose_pinned(request, pool, device)?,
            None => self.choose(request, pool)?,
        };
        self.hold(slot, key, Stage::Reserved);
        Ok(self.slots[slot].vf)
    }

    /// Notes that the pod has `key`'s VF: it works, and its count of failures starts again.
    pub fn attached(&mut self, key: &K) {
        let Some(&slot) = self.by_key.get(key) else { return };
        let slot = &mut self.slots[slot];
        if let Some(hold) = &mut slot.hold
            && hold.stage != Stage::Releasing
        {
            hold.stage = Stage::Attached;
            slot.failures = 0;
        }
    }

    /// Notes that `key`'s VF is being taken back. The key holds it until [`Self::release`].
    pub fn releasing(&mut self, key: &K) {
        let Some(&slot) = self.by_key.get(key) else { return };
        if let Some(hold) = &mut self.slots[slot].hold {
            hold.stage = Stage::Releasing;
        }
    }

    /// Takes back `key`'s VF, which its host has, back and clean. `None`: the key held none.
    pub fn release(&mut self, key: &K) -> Option<FunctionId> {
        let slot = self.let_go(key)?;
        if self.slots[slot].facts.is_some() {
            self.slots[slot].withdrawn = None;
        }
        self.settle(slot);
        Some(self.slots[slot].vf)
    }

    /// Takes back `key`'s VF, which could not be programmed or moved, for `reason`.
    /// After too many failures in a row it is quarantined. One that was withdrawn meanwhile is given
    /// out again only once it is offered. `None`: the key held none.
    pub fn fail(&mut self, key: &K, reason: &str) -> Option<FunctionId> {
        let number = self.let_go(key)?;
        let slot = &mut self.slots[number];
        slot.failures = slot.failures.saturating_add(1);
        let limit = self.settings.quarantine_after;
        if limit > 0 && slot.failures >= limit && slot.quarantine.is_none() {
            let failures = slot.failures;
            slot.quarantine =
                Some(format!("{failures} attaches in a row failed, lastly: {reason}"));
        }
        self.settle(number);
        Some(self.slots[number].vf)
    }

    /// Keeps `vf` from being given out until it is [cleared](Self::clear). A VF that is held stays
    /// held.
    pub fn quarantine(&mut self, vf: FunctionId, reason: &str) {
        let slot = self.slot(vf);
        self.slots[slot].quarantine = Some(reason.into());
        self.settle(slot);
    }

    /// Ends the quarantine of `vf` and forgets its failures.
    ///
    /// # Errors
    /// It is unknown or not in quarantine.
    pub fn clear(&mut self, vf: FunctionId) -> Result<(), ClearError> {
        let &number = self.by_vf.get(&vf).ok_or(ClearError::Unknown { vf })?;
        let slot = &mut self.slots[number];
        if slot.quarantine.take().is_none() {
            return Err(ClearError::NotQuarantined { vf, state: slot.state() });
        }
        slot.failures = 0;
        self.settle(number);
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
        let slot = self.slot(vf);
        self.hold(slot, key, stage);
        Ok(())
    }

    /// Who holds `vf`.
    #[must_use]
    pub fn holder(&self, vf: FunctionId) -> Option<&K> {
        self.known(vf)?.hold.as_ref().map(|hold| &hold.key)
    }

    /// What its host said of `vf`. `None` until the host has told of it.
    #[must_use]
    pub fn facts(&self, vf: FunctionId) -> Option<&VfFacts> {
        self.known(vf)?.facts.as_ref()
    }

    /// The VF that `key` holds.
    #[must_use]
    pub fn vf_of(&self, key: &K) -> Option<FunctionId> {
        self.by_key.get(key).map(|&slot| self.slots[slot].vf)
    }

    /// Where `vf` is in its life, or `None`: nobody has ever told of it or held it.
    #[must_use]
    pub fn state(&self, vf: FunctionId) -> Option<VfState> {
        self.known(vf).map(Slot::state)
    }

    /// All VFs that have ever been told of or held, in the order of their names' numbers.
    pub fn vfs(&self) -> impl Iterator<Item = VfView<'_, K>> {
        self.by_vf.values().map(|&slot| self.slots[slot].view())
    }

    /// How the VFs of `pool` are used, or `None`: no such pool.
    #[must_use]
    pub fn usage(&self, pool: &str) -> Option<Usage> {
        let &pool = self.pool_numbers.get(pool)?;
        let mut usage = self.count(pool, |_| true);
        usage.absent += self.never_offered(&self.pools[pool].spec);
        Some(usage)
    }

    /// VFs that a pool has by number and that are not known: the card may have fewer.
    fn never_offered(&self, spec: &PoolSpec) -> usize {
        let numbered = spec.select.iter().flat_map(Selector::numbered);
        numbered.filter(|vf| !self.by_vf.contains_key(vf)).count()
    }

    /// The pools that `vf` is in.
    pub fn pools_of(&self, vf: FunctionId) -> impl Iterator<Item = &str> {
        let slot = self.known(vf);
        let holds = move |pool: &&Pool| slot.is_some_and(|slot| slot.is_in(&pool.spec));
        self.pools.iter().filter(holds).map(|pool| pool.spec.name.as_str())
    }

    /// The pools.
    pub fn pools(&self) -> impl Iterator<Item = &PoolSpec> {
        self.pools.iter().map(|pool| &pool.spec)
    }

    fn known(&self, vf: FunctionId) -> Option<&Slot<K>> {
        self.by_vf.get(&vf).map(|&slot| &self.slots[slot])
    }

    /// The slot of `vf`, made if need be.
    fn slot(&mut self, vf: FunctionId) -> usize {
        if let Some(&slot) = self.by_vf.get(&vf) {
            return slot;
        }
        let slot = self.slots.len();
        let has_port = self.ports.as_ref().is_none_or(|ports| ports.contains(&vf));
        self.slots.push(Slot::new(vf, has_port));
        self.by_vf.insert(vf, slot);
        slot
    }

    fn reserve_again(
        &self,
        request: &Request<'_>,
        slot: usize,
    ) -> Result<FunctionId, ReserveError> {
        let slot = &self.slots[slot];
        let held = slot.vf;
        if slot.hold.as_ref().is_some_and(|hold| hold.stage == Stage::Releasing) {
            return Err(ReserveError::KeyReleasing { held });
        }
        let Some(facts) = &slot.facts else { return Ok(held) };
        if facts.host != request.host {
            return Err(ReserveError::OtherHost { held });
        }
        match request.pinned {
            Some(device) if *device != facts.device => {
                Err(ReserveError::KeyHoldsAnother { held, device: device.clone() })
            }
            _ => Ok(held),
        }
    }

    fn choose(&self, request: &Request<'_>, pool: usize) -> Result<usize, ReserveError> {
        self.pools[pool].choose(request.host).ok_or_else(|| ReserveError::Exhausted {
            pool: request.pool.into(),
            usage: self.count(pool, |slot| slot.is_of(request.host)),
        })
    }

    fn choose_pinned(
        &self,
        request: &Request<'_>,
        pool: usize,
        device: &Device,
    ) -> Result<usize, ReserveError> {
        let of_host = self.by_device.get(&request.host);
        let number = of_host.and_then(|slots| slots.get(device)).copied();
        let refuse = || ReserveError::PinnedUnknown { device: device.clone() };
        let number = number.ok_or_else(refuse)?;
        let slot = &self.slots[number];
        if !slot.is_in(&self.pools[pool].spec) {
            let pool = request.pool.into();
            return Err(ReserveError::PinnedNotInPool {
                device: device.clone(),
                vf: slot.vf,
                pool,
            });
        }
        if !slot.is_free() {
            let state = slot.state();
            return Err(ReserveError::PinnedNotFree { device: device.clone(), vf: slot.vf, state });
        }
        Ok(number)
    }

    fn count(&self, pool: usize, counts: impl Fn(&Slot<K>) -> bool) -> Usage {
        let mut usage = Usage::default();
        let spec = &self.pools[pool].spec;
        for slot in self.slots.iter().filter(|slot| slot.is_in(spec) && counts(slot)) {
            usage.count(&slot.state());
        }
        usage
    }

    fn hold(&mut self, slot: usize, key: K, stage: Stage) {
        self.by_key.insert(key.clone(), slot);
        self.slots[slot].hold = Some(Hold { key, stage });
        self.settle(slot);
    }

    /// Ends `key`'s hold.
    fn let_go(&mut self, key: &K) -> Option<usize> {
        let slot = self.by_key.remove(key)?;
        self.slots[slot].hold = None;
        Some(slot)
    }

    /// Takes note of what a host says of a VF, which may have become another one's, or moved.
    fn take_note(&mut self, slot: usize, facts: VfFacts) {
        if self.slots[slot].facts.as_ref() == Some(&facts) {
            return;
        }
        self.forget_device(slot);
        self.by_device.entry(facts.host).or_default().insert(facts.device.clone(), slot);
        self.slots[slot].facts = Some(facts);
        self.unlist(slot);
        self.join_lanes(slot);
    }

    fn forget_device(&mut self, slot: usize) {
        let Some(facts) = &self.slots[slot].facts else { return };
        let Some(of_host) = self.by_device.get_mut(&facts.host) else { return };
        if of_host.get(&facts.device) == Some(&slot) {
            of_host.remove(&facts.device);
        }
    }

    /// Finds the pools that a VF is in.
    fn join_lanes(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        slot.lanes.clear();
        let Some(host) = slot.facts.as_ref().map(|facts| facts.host) else { return };
        for (pool_number, pool) in self.pools.iter_mut().enumerate() {
            if slot.is_in(&pool.spec) {
                slot.lanes.push((pool_number, pool.lane(host, slot.vf.pf)));
            }
        }
    }

    /// Makes the lists of free VFs agree with the state of a VF. To be called after each change.
    fn settle(&mut self, slot: usize) {
        match (self.slots[slot].is_free(), self.slots[slot].listed.is_some()) {
            (true, false) => self.list(slot),
            (false, true) => self.unlist(slot),
            _ => {}
        }
    }

    fn list(&mut self, number: usize) {
        self.last_stamp += 1;
        let slot = &mut self.slots[number];
        slot.listed = Some(self.last_stamp);
        for &(pool, lane) in &slot.lanes {
            self.pools[pool].list(lane, number, self.last_stamp);
        }
    }

    fn unlist(&mut self, number: usize) {
        if self.slots[number].listed.take().is_none() {
            return;
        }
        let slots = &self.slots;
        let is_current = |slot: usize, stamp: Stamp| slots[slot].listed == Some(stamp);
        for &(pool, lane) in &slots[number].lanes {
            self.pools[pool].unlist(lane, is_current);
        }
    }
}
