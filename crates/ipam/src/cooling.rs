//! Addresses at rest, in the order in which they wake.

use std::collections::VecDeque;

use crate::segment::Place;

/// How many addresses lie together. It bounds what one call moves when a batch grows.
const PLACES_PER_BATCH: usize = 4096;

/// Addresses whose rest ends at the same second; of those of one second, some. Never empty.
#[derive(Debug)]
struct Batch {
    until: u64,
    places: Vec<Place>,
}

/// Addresses at rest: the batch that wakes first is the first.
#[derive(Debug, Default)]
pub(crate) struct Cooling {
    batches: VecDeque<Batch>,
}

impl Cooling {
    /// Lets `place` rest. Quick if no other rests for longer.
    pub(crate) fn add(&mut self, place: Place, until: u64) {
        let is_last = self.batches.back().is_none_or(|last| last.until <= until);
        let end = if is_last { self.batches.len() } else { self.end_of(until) };
        let last = end.checked_sub(1).and_then(|last| self.batches.get_mut(last));
        match last.filter(|last| last.until == until && last.places.len() < PLACES_PER_BATCH) {
            Some(last) => last.places.push(place),
            None => self.batches.insert(end, Batch { until, places: vec![place] }),
        }
    }

    /// Where the batches end that wake at `now` at the latest.
    fn end_of(&self, now: u64) -> usize {
        self.batches.partition_point(|batch| batch.until <= now)
    }

    /// Takes out an address whose rest is over at `now`.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<Place> {
        let first = self.batches.front_mut().filter(|batch| batch.until <= now)?;
        let place = first.places.pop();
        if first.places.is_empty() {
            self.batches.pop_front();
        }
        place
    }

    /// When the rest of `place` ends. Looks at every address at rest.
    pub(crate) fn until(&self, place: Place) -> Option<u64> {
        let with_it = self.batches.iter().find(|batch| batch.places.contains(&place))?;
        Some(with_it.until)
    }

    /// Takes `place` out before its rest is over. Looks at every address at rest.
    pub(crate) fn remove(&mut self, place: Place) {
        self.retain(|other| other != place);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Place) -> bool) {
        self.batches.retain_mut(|batch| {
            batch.places.retain(|&place| keep(place));
            !batch.places.is_empty()
        });
    }

    /// How many addresses are still to rest at `now`.
    pub(crate) fn count(&self, now: u64) -> usize {
        self.batches.range(self.end_of(now)..).map(|batch| batch.places.len()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        self.batches.iter().flat_map(|batch| &batch.places).copied()
    }
}
