//! Addresses at rest, in the order in which they wake.

use std::collections::BTreeMap;

use crate::index::Place;

/// How many addresses lie together. It bounds what one call moves when a batch grows.
const PLACES_PER_BATCH: usize = 4096;

/// Addresses at rest, by the second in which their rest ends. The addresses of one second are
/// numbered batches.
#[derive(Debug, Default)]
pub(crate) struct Cooling {
    batches: BTreeMap<(u64, u32), Vec<Place>>,
}

impl Cooling {
    pub(crate) fn add(&mut self, place: Place, until: u64) {
        let last = self.batches.range_mut((until, 0)..=(until, u32::MAX)).next_back();
        let number = match last {
            Some((_, batch)) if batch.len() < PLACES_PER_BATCH => return batch.push(place),
            Some(((_, number), _)) => number + 1,
            None => 0,
        };
        self.batches.insert((until, number), vec![place]);
    }

    /// Takes out an address whose rest is over at `now`.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<Place> {
        let mut first = self.batches.first_entry().filter(|batch| batch.key().0 <= now)?;
        let place = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        place
    }

    /// When the rest of `place` ends. Looks at every address at rest.
    pub(crate) fn until(&self, place: Place) -> Option<u64> {
        let with_it = self.batches.iter().find(|(_, batch)| batch.contains(&place))?;
        Some(with_it.0.0)
    }

    /// Takes `place` out before its rest is over. Looks at every address at rest.
    pub(crate) fn remove(&mut self, place: Place) {
        self.retain(|other| other != place);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Place) -> bool) {
        self.batches.retain(|_, batch| {
            batch.retain(|&place| keep(place));
            !batch.is_empty()
        });
    }

    /// How many addresses are still to rest at `now`.
    pub(crate) fn count(&self, now: u64) -> usize {
        let Some(next) = now.checked_add(1) else { return 0 };
        self.batches.range((next, 0)..).map(|(_, batch)| batch.len()).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        self.batches.values().flatten().copied()
    }
}
