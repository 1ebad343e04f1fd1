//! All pools and their free VFs.

use std::collections::HashMap;

use ahash::RandomState;

use crate::{
    PoolSpec, SpecError,
    pool::{Pool, Stamp},
    slot::{Slot, SlotNumber},
    spec,
};

#[derive(Debug)]
pub(crate) struct Pools {
    pools: Vec<Pool>,
    numbers: HashMap<String, usize, RandomState>,
    /// By slot number.
    places: Vec<Place>,
    last_stamp: Stamp,
}

/// The lists of a VF.
#[derive(Debug, Default)]
struct Place {
    /// The stamp while the VF is listed as free.
    listed: Option<Stamp>,
    /// The VF's pools, and its lane in each.
    lanes: Vec<(usize, usize)>,
}

impl Pools {
    /// Returns pools without VFs.
    ///
    /// # Errors
    /// A pool is not well-formed, or two have one name.
    pub(crate) fn new(specs: Vec<PoolSpec>) -> Result<Self, SpecError> {
        spec::check(&specs)?;
        let name = |(number, spec): (usize, &PoolSpec)| (spec.name.clone(), number);
        Ok(Self {
            numbers: specs.iter().enumerate().map(name).collect(),
            pools: specs.into_iter().map(Pool::new).collect(),
            places: Vec::new(),
            last_stamp: 0,
        })
    }

    pub(crate) fn specs(&self) -> impl Iterator<Item = &PoolSpec> {
        self.pools.iter().map(|pool| &pool.spec)
    }

    pub(crate) const fn len(&self) -> usize {
        self.pools.len()
    }

    pub(crate) fn at(&self, number: usize) -> &Pool {
        &self.pools[number]
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Pool> {
        self.numbers.get(name).map(|&number| &self.pools[number])
    }

    /// The stamp of a free VF. `None`: it is not free.
    pub(crate) fn listed(&self, slot: SlotNumber) -> Option<Stamp> {
        self.places.get(slot.0)?.listed
    }

    /// Whether another program hands the VF out. Such a VF is not allocated unnamed from any pool.
    pub(crate) fn is_handed_out<K>(&self, slot: &Slot<K>) -> bool {
        self.specs().any(|spec| spec.pinned_only && slot.is_in(spec))
    }

    /// Puts a VF into its pools by its host's facts. A free one becomes the last of its lists.
    pub(crate) fn place<K>(&mut self, slot: &Slot<K>) {
        let Some(host) = slot.facts.as_ref().map(|facts| facts.host) else { return };
        let number = slot.number;
        self.unlist(number);
        let is_handed_out = self.is_handed_out(slot);
        let has_it = self.pools.iter_mut().enumerate().filter(|(_, pool)| slot.is_in(&pool.spec));
        let has_it = has_it.filter(|(_, pool)| pool.spec.pinned_only == is_handed_out);
        let pf = slot.vf.pf;
        let lanes = has_it.map(|(number, pool)| (number, pool.lane(host, pf))).collect();
        self.places.resize_with(self.places.len().max(number.0 + 1), Place::default);
        self.places[number.0] = Place { listed: None, lanes };
        self.sync(slot);
    }

    /// Updates the lists after a change of a VF.
    pub(crate) fn sync<K>(&mut self, slot: &Slot<K>) {
        match (slot.is_free(), self.listed(slot.number).is_some()) {
            (true, false) => self.list(slot.number),
            (false, true) => self.unlist(slot.number),
            _ => {}
        }
    }

    fn list(&mut self, slot: SlotNumber) {
        let Some(place) = self.places.get_mut(slot.0) else { return };
        self.last_stamp += 1;
        place.listed = Some(self.last_stamp);
        for &(pool, lane) in &place.lanes {
            self.pools[pool].list(lane, slot, self.last_stamp);
        }
    }

    fn unlist(&mut self, slot: SlotNumber) {
        let was_listed = self.places.get_mut(slot.0).and_then(|place| place.listed.take());
        if was_listed.is_none() {
            return;
        }
        for &(pool, lane) in &self.places[slot.0].lanes {
            let is_current = |slot: SlotNumber, stamp| self.places[slot.0].listed == Some(stamp);
            self.pools[pool].unlist(lane, is_current);
        }
    }
}
