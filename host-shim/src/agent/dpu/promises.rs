//! The VFs that the DPU has promised in a session: it gives them to nobody but who names one of them.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use offload_proto::v1::{self, OpenPool};
use vf_alloc::{Device, VfPromise};

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

impl From<v1::PromisedVf> for PromisedVf {
    fn from(told: v1::PromisedVf) -> Self {
        let v1::PromisedVf { promise, pools, controller, pf } = told;
        let v1::VfPromise { device, number } = promise.unwrap_or_default();
        Self { promise: VfPromise { device: device.into(), number }, pf: (controller, pf), pools }
    }
}

impl Promises {
    /// The DPU has promised these, besides those of before.
    pub(super) fn note(&mut self, told: v1::Promises) {
        if self.is_closed {
            return;
        }
        let told: Vec<_> = told.vfs.into_iter().map(PromisedVf::from).collect();
        // What was told of them before is good no more.
        let devices: HashSet<_> = told.iter().map(|vf| &vf.promise.device).collect();
        self.vfs.retain(|vf| !devices.contains(&vf.promise.device));
        self.vfs.extend(told);
    }

    /// Takes the VF that somebody has chosen, if it is promised and can be claimed.
    pub(super) fn take_chosen<C>(
        &mut self,
        chosen: &Device,
        claim: impl Fn(&Device) -> Option<C>,
    ) -> Option<(VfPromise, C)> {
        let place = self.vfs.iter().position(|vf| vf.promise.device == *chosen)?;
        let claimed = claim(chosen)?;
        Some((self.vfs.remove(place).promise, claimed))
    }

    /// Takes one of a pool: of those that can be claimed the first of the PF that is to serve next.
    pub(super) fn take_of_pool<C>(
        &mut self,
        pool: &str,
        claim: impl Fn(&Device) -> Option<C>,
    ) -> Option<(VfPromise, C)> {
        let mut claimed = self.places_in_order(pool).into_iter().filter_map(|place| {
            let device = &self.vfs[place].promise.device;
            Some((place, claim(device)?))
        });
        let (place, claimed) = claimed.next()?;
        Some((self.vfs.remove(place).promise, claimed))
    }

    fn places_in_order(&self, pool: &str) -> Vec<usize> {
        let packs =
            |vf: &PromisedVf| vf.pools.iter().find(|open| open.name == pool).map(|open| open.packs);
        let vfs = self.vfs.iter().enumerate();
        let in_pool = vfs.filter_map(|(place, vf)| Some((place, vf.pf, packs(vf)?)));
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

    /// The VFs that may be taken.
    pub(super) fn devices(&self) -> Vec<Device> {
        self.vfs.iter().map(|vf| vf.promise.device.clone()).collect()
    }

    /// Nothing is taken any more.
    pub(super) fn close(&mut self) {
        *self = Self { is_closed: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Promises {
        fn has(&self, device: &Device) -> bool {
            self.vfs.iter().any(|vf| vf.promise.device == *device)
        }
    }

    fn vf(device: &str, number: u64, pf: u32, packs: bool) -> v1::PromisedVf {
        v1::PromisedVf {
            promise: Some(v1::VfPromise { device: device.into(), number }),
            pools: vec![OpenPool { name: "blue".into(), packs }],
            controller: 0,
            pf,
        }
    }

    /// Three VFs of PF 0 and two of PF 1.
    fn promises(packs: bool) -> Promises {
        let mut promises = Promises::default();
        let vfs = (1..).zip([("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1)]);
        let vfs = vfs.map(|(number, (device, pf))| vf(device, number, pf, packs)).collect();
        promises.note(v1::Promises { vfs });
        promises
    }

    /// What is taken of the pool, one after the other, but for what can't be claimed.
    fn taken(promises: &mut Promises, unclaimable: &str) -> String {
        let claim = |device: &Device| (device.as_str() != unclaimable).then_some(());
        std::iter::from_fn(|| promises.take_of_pool("blue", claim))
            .map(|(promise, ())| promise.device.to_string())
            .collect()
    }

    #[test]
    fn the_pools_policy_says_of_which_pf_one_is_taken() {
        assert_eq!(taken(&mut promises(false), ""), "abdce");
        assert_eq!(taken(&mut promises(true), ""), "deabc");
        assert_eq!(taken(&mut promises(true), "d"), "eabc");
        assert!(promises(true).take_of_pool("red", |_| Some(())).is_none());
    }

    #[test]
    fn a_chosen_vf_is_taken_once() {
        let (mut promises, chosen) = (promises(false), Device::from("d"));
        assert!(promises.has(&chosen));
        assert!(promises.take_chosen(&chosen, |_| None::<()>).is_none());
        let (promise, ()) = promises.take_chosen(&chosen, |_| Some(())).unwrap();
        assert_eq!(promise, VfPromise { device: chosen.clone(), number: 4 });
        assert!(!promises.has(&chosen));
    }

    #[test]
    fn what_is_told_again_is_good_by_its_latest_number() {
        let mut promises = promises(false);
        promises.note(v1::Promises { vfs: vec![vf("b", 6, 0, false)] });
        let (promise, ()) = promises.take_chosen(&Device::from("b"), |_| Some(())).unwrap();
        assert_eq!(promise.number, 6);
        assert!(!promises.has(&promise.device));
    }

    #[test]
    fn nothing_is_taken_of_a_session_that_is_about_to_be_over() {
        let mut promises = promises(false);
        promises.close();
        promises.note(v1::Promises { vfs: vec![vf("b", 6, 0, false)] });
        assert_eq!(taken(&mut promises, ""), "");
    }
}
