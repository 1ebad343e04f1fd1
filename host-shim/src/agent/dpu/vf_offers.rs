//! The VF offers of a session: VFs that the DPU reserves for this host's next attaches.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use offload_proto::v1::{self, OpenPool};
use vf_alloc::{Device, VfOffer};

/// The offers that no ADD has taken, in the order of the DPU's messages.
#[derive(Debug, Default)]
pub(super) struct VfOffers {
    vfs: Vec<OpenOffer>,
    /// The session is about to end, so that its offers are void.
    is_closed: bool,
}

#[derive(Debug)]
struct OpenOffer {
    offer: VfOffer,
    /// The VF's controller and PF.
    pf: (u32, u32),
    /// The pools from which an ADD without a chosen VF may take it.
    pools: Vec<OpenPool>,
}

impl From<v1::OfferedVf> for OpenOffer {
    fn from(offered: v1::OfferedVf) -> Self {
        let v1::OfferedVf { offer, pools, controller, pf } = offered;
        let v1::VfOffer { device, number } = offer.unwrap_or_default();
        Self { offer: VfOffer { device: device.into(), number }, pf: (controller, pf), pools }
    }
}

impl VfOffers {
    pub(super) fn note(&mut self, offers: v1::VfOffers) {
        if self.is_closed {
            return;
        }
        let offers: Vec<_> = offers.vfs.into_iter().map(OpenOffer::from).collect();
        // A new offer of a VF voids an earlier one.
        let devices: HashSet<_> = offers.iter().map(|vf| &vf.offer.device).collect();
        self.vfs.retain(|vf| !devices.contains(&vf.offer.device));
        self.vfs.extend(offers);
    }

    /// Takes the chosen VF if it is offered and can be claimed.
    pub(super) fn take_chosen<C>(
        &mut self,
        chosen: &Device,
        claim: impl Fn(&Device) -> Option<C>,
    ) -> Option<(VfOffer, C)> {
        let place = self.vfs.iter().position(|vf| vf.offer.device == *chosen)?;
        let claimed = claim(chosen)?;
        Some((self.vfs.remove(place).offer, claimed))
    }

    /// Takes a VF of the pool that can be claimed: the first of the PF that is next by the pool's policy.
    pub(super) fn take_of_pool<C>(
        &mut self,
        pool: &str,
        claim: impl Fn(&Device) -> Option<C>,
    ) -> Option<(VfOffer, C)> {
        let mut claimed = self.places_in_order(pool).into_iter().filter_map(|place| {
            let device = &self.vfs[place].offer.device;
            Some((place, claim(device)?))
        });
        let (place, claimed) = claimed.next()?;
        Some((self.vfs.remove(place).offer, claimed))
    }

    fn places_in_order(&self, pool: &str) -> Vec<usize> {
        let packs =
            |vf: &OpenOffer| vf.pools.iter().find(|open| open.name == pool).map(|open| open.packs);
        let vfs = self.vfs.iter().enumerate();
        let in_pool = vfs.filter_map(|(place, vf)| Some((place, vf.pf, packs(vf)?)));
        let mut in_pool: Vec<_> = in_pool.collect();
        let mut left = HashMap::<_, usize>::new();
        in_pool.iter().for_each(|(_, pf, _)| *left.entry(*pf).or_default() += 1);
        // The sort is stable: equals keep the DPU's order.
        match in_pool.first() {
            Some((.., true)) => in_pool.sort_by_key(|(_, pf, _)| left[pf]),
            _ => in_pool.sort_by_key(|(_, pf, _)| Reverse(left[pf])),
        }
        in_pool.into_iter().map(|(place, ..)| place).collect()
    }

    pub(super) fn devices(&self) -> Vec<Device> {
        self.vfs.iter().map(|vf| vf.offer.device.clone()).collect()
    }

    /// Voids all offers, present and future.
    pub(super) fn close(&mut self) {
        *self = Self { is_closed: true, ..Self::default() };
    }
}

pub(super) fn offer_message(offer: &VfOffer) -> v1::VfOffer {
    v1::VfOffer { device: offer.device.to_string(), number: offer.number }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl VfOffers {
        fn has(&self, device: &Device) -> bool {
            self.vfs.iter().any(|vf| vf.offer.device == *device)
        }
    }

    fn vf(device: &str, number: u64, pf: u32, packs: bool) -> v1::OfferedVf {
        v1::OfferedVf {
            offer: Some(v1::VfOffer { device: device.into(), number }),
            pools: vec![OpenPool { name: "blue".into(), packs }],
            controller: 0,
            pf,
        }
    }

    /// Three VFs of PF 0 and two of PF 1.
    fn offers(packs: bool) -> VfOffers {
        let mut offers = VfOffers::default();
        let vfs = (1..).zip([("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1)]);
        let vfs = vfs.map(|(number, (device, pf))| vf(device, number, pf, packs)).collect();
        offers.note(v1::VfOffers { vfs });
        offers
    }

    /// The VFs that successive ADDs get from the pool, without the one that cannot be claimed.
    fn devices_taken(offers: &mut VfOffers, unclaimable: &str) -> String {
        let claim = |device: &Device| (device.as_str() != unclaimable).then_some(());
        std::iter::from_fn(|| offers.take_of_pool("blue", claim))
            .map(|(offer, ())| offer.device.to_string())
            .collect()
    }

    #[test]
    fn pool_policy_selects_the_offers_pf() {
        assert_eq!(devices_taken(&mut offers(false), ""), "abdce");
        assert_eq!(devices_taken(&mut offers(true), ""), "deabc");
        assert_eq!(devices_taken(&mut offers(true), "d"), "eabc");
        assert!(offers(true).take_of_pool("red", |_| Some(())).is_none());
    }

    #[test]
    fn chosen_offer_is_taken_once() {
        let (mut offers, chosen) = (offers(false), Device::from("d"));
        assert!(offers.has(&chosen));
        assert!(offers.take_chosen(&chosen, |_| None::<()>).is_none());
        let (offer, ()) = offers.take_chosen(&chosen, |_| Some(())).unwrap();
        assert_eq!(offer, VfOffer { device: chosen.clone(), number: 4 });
        assert!(!offers.has(&chosen));
    }

    #[test]
    fn latest_offer_of_a_vf_counts() {
        let mut offers = offers(false);
        offers.note(v1::VfOffers { vfs: vec![vf("b", 6, 0, false)] });
        let (offer, ()) = offers.take_chosen(&Device::from("b"), |_| Some(())).unwrap();
        assert_eq!(offer.number, 6);
        assert!(!offers.has(&offer.device));
    }

    #[test]
    fn closed_session_has_no_offers() {
        let mut offers = offers(false);
        offers.close();
        offers.note(v1::VfOffers { vfs: vec![vf("b", 6, 0, false)] });
        assert_eq!(devices_taken(&mut offers, ""), "");
    }
}
