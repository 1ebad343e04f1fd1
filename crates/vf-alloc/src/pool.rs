//! The free VFs of a pool by PF, in the order in which they became free.

use std::collections::VecDeque;

use crate::{HostId, PfId, Policy, PoolSpec, slot::SlotNumber};

/// A pool: its specification and its free VFs.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spec: PoolSpec,
    lanes: Vec<Lane>,
}

/// The number of the event by which a VF became free. It tells a current queue entry from a stale one.
pub(crate) type Stamp = u64;

/// The free VFs of one PF, the one that has been free for longest first.
///
/// A VF that was allocated from another pool leaves a stale entry here. `is_current` recognises stale entries; they
/// are skipped, and removed once they outnumber the current ones.
#[derive(Debug)]
struct Lane {
    host: HostId,
    pf: PfId,
    free: usize,
    queue: VecDeque<(SlotNumber, Stamp)>,
}

impl Pool {
    pub(crate) const fn new(spec: PoolSpec) -> Self {
        Self { spec, lanes: Vec::new() }
    }

    /// The index of the lane of PF `pf` for `host`. Adds a lane if there is none.
    pub(crate) fn lane(&mut self, host: HostId, pf: PfId) -> usize {
        let known = self.lanes.iter().position(|lane| lane.host == host && lane.pf == pf);
        known.unwrap_or_else(|| {
            self.lanes.push(Lane { host, pf, free: 0, queue: VecDeque::new() });
            self.lanes.len() - 1
        })
    }

    /// Adds a free VF to `lane`.
    pub(crate) fn list(&mut self, lane: usize, slot: SlotNumber, stamp: Stamp) {
        let lane = &mut self.lanes[lane];
        lane.free += 1;
        lane.queue.push_back((slot, stamp));
    }

    /// Removes one VF of `lane` that is no longer free. `is_current` must already be false for it.
    pub(crate) fn unlist(&mut self, lane: usize, is_current: impl Fn(SlotNumber, Stamp) -> bool) {
        let lane = &mut self.lanes[lane];
        lane.free -= 1;
        while lane.queue.front().is_some_and(|&(slot, stamp)| !is_current(slot, stamp)) {
            lane.queue.pop_front();
        }
        if lane.queue.len() > 2 * lane.free + 16 {
            lane.queue.retain(|&(slot, stamp)| is_current(slot, stamp));
        }
    }

    /// The free VF that the policy prefers for `host`. The front of a queue is always current.
    pub(crate) fn choose(&self, host: HostId) -> Option<SlotNumber> {
        let lanes = self.lanes.iter().filter(|lane| lane.host == host && lane.free > 0);
        let lane = match self.spec.policy {
            // `min_by_key` returns the first of several equals, `max_by_key` the last.
            Policy::Spread => lanes.min_by_key(|lane| std::cmp::Reverse(lane.free)),
            Policy::Pack => lanes.min_by_key(|lane| lane.free),
        }?;
        lane.queue.front().map(|&(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// VFs that were allocated from another pool leave stale entries behind a current front.
    #[test]
    fn stale_places_are_swept() {
        let spec = PoolSpec {
            name: "default".into(),
            select: Vec::new(),
            policy: Policy::Spread,
            pinned_only: false,
        };
        let mut pool = Pool::new(spec);
        let lane = pool.lane(HostId(1), PfId::local(0));
        for number in 0..31 {
            pool.list(lane, SlotNumber(number), 0);
        }
        for taken in 1..31 {
            pool.unlist(lane, |slot, _| slot.0 == 0 || slot.0 > taken);
            let lane = &pool.lanes[lane];
            assert!(lane.queue.len() <= 2 * lane.free + 16, "{lane:?}");
        }
        assert_eq!(pool.choose(HostId(1)), Some(SlotNumber(0)));
    }
}
