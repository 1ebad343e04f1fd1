//! The VFs that the DPU has promised in a session: it gives them to nobody but who names one of them.

use std::{cmp::Reverse, collections::HashMap};

use offload_proto::v1::{self, OpenPool};
use vf_alloc::{Device, VfPromise};

use crate::agent::vfs::Claimed;

/// Those that no ADD has taken, in the order in which the DPU has told of them.
#[derive(Debug, Default)]
pub(super) struct Promises {
    vfs: Vec<PromisedVf>,
    /// The session is about to be over: what was promised in it counts no more.
    is_closed: bool,
}

/// A VF that may be taken.
#[derive(Debug)]
struct PromisedVf {
    promise: VfPromise,
    /// Its controller and PF.
    pf: (u32, u32),
    /// The pools out of which an ADD may take it whose VF nobody has chosen.
    pools: Vec<OpenPool>,
}

impl Promises {
    /// The DPU has promised these, besides those of before.
    pub(super) fn note(&mut self, told: v1::Promises) {
        if self.is_closed {
            return;
        }
        for v1::PromisedVf { promise, pools, controller, pf } in told.vfs {
            let v1::VfPromise { device, number } = promise.unwrap_or_default();
            let promise = VfPromise { device: device.into(), number };
            // What was told of it before is good no more.
            self.vfs.retain(|vf| vf.promise.device != promise.device);
            self.vfs.push(PromisedVf { promise, pf: (controller, pf), pools });
        }
    }

    /// Takes the VF that somebody has chosen, if it is promised and can be claimed.
    pub(super) fn take_chosen(
        &mut self,
        chosen: &Device,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfPromise, Claimed)> {
        let place = self.vfs.iter().position(|vf| vf.promise.device == *chosen)?;
        let claimed = claim(chosen)?;
        Some((self.vfs.remove(place).promise, claimed))
    }

    /// Takes one of a pool: of those that can be claimed the first of the PF that is to serve next.
    pub(super) fn take_of_pool(
        &mut self,
        pool: &str,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfPromise, Claimed)> {
        let mut claimed = self.places_in_order(pool).into_iter().filter_map(|place| {
            let device = &self.vfs[place].promise.device;
            Some((place, claim(device)?))
        });
        let (place, claimed) = claimed.next()?;
        Some((self.vfs.remove(place).promise, claimed))
    }

    fn places_in_order(&self, pool: &str) -> Vec<usize> {
        let open = |vf: &PromisedVf| vf.pools.iter().find(|open| open.name == pool).cloned();
        let vfs = self.vfs.iter().enumerate();
        let in_pool = vfs.filter_map(|(place, vf)| Some((place, vf.pf, open(vf)?.packs)));
        let mut in_pool: Vec<_> = in_pool.collect();
        let mut left = HashMap::<_, usize>::new();
        in_pool.iter().for_each(|(_, pf, _)| *left.entry(*pf).or_default() += 1);
        // Of equals the first one stays the first.
        match in_pool.first() {
            Some((.., true)) => in_pool.sort_by_key(|(_, pf, _)| left[pf]),
            _ => in_pool.sort_by_key(|(_, pf, _)| Reverse(left[pf])),
        }
        in_pool.into_iter().map(|(place, ..)| place).collect()
    }

    pub(super) fn has(&self, device: &Device) -> bool {
        self.vfs.iter().any(|vf| vf.promise.device == *device)
    }

    /// Nothing is taken any more.
    pub(super) fn close(&mut self) {
        *self = Self { is_closed: true, ..Self::default() };
    }
}
