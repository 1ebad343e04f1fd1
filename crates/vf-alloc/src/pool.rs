//! A pool's free VFs, by PF, in the order in which they came back.

use std::collections::VecDeque;

use crate::{HostId, PfId, Policy, PoolSpec, slot::SlotNumber};

/// A pool: its specification and its free VFs.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spec: PoolSpec,
    lanes: Vec<Lane>,
}

/// When a VF became free: the number of that event. It tells a live place in a queue from a stale one.
pub(crate) type Stamp = u64;

/// The free VFs of one PF, longest rested first.
///
/// A VF that is taken by way of another pool leaves its place here behind; `is_current` tells such
/// places, which are skipped, and swept once they outnumber the live ones.
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

    /// The number of the lane of PF `pf`, which serves `host`.
    pub(crate) fn lane(&mut self, host: HostId, pf: PfId) -> usize {
        let known = self.lanes.iter().position(|lane| lane.host == host && lane.pf == pf);
        known.unwrap_or_else(|| {
            self.lanes.push(Lane { host, pf, free: 0, queue: VecDeque::new() });
            self.lanes.len() - 1
        })
    }

    /// Lists a VF as free in `lane`.
    pub(crate) fn list(&mut self, lane: usize, slot: SlotNumber, stamp: Stamp) {
        let lane = &mut self.lanes[lane];
        lane.free += 1;
        lane.queue.push_back((slot, stamp));
    }

    /// Notes that one of the VFs listed in `lane` is no longer free. `is_current` must say so already.
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
            // `min_by_key` finds the first of several equals, `max_by_key` the last.
            Policy::Spread => lanes.min_by_key(|lane| std::cmp::Reverse(lane.free)),
            Policy::Pack => lanes.min_by_key(|lane| lane.free),
        }?;
        lane.queue.front().map(|&(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// VFs that are taken by way of another pool leave their places behind a front that stays.
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
