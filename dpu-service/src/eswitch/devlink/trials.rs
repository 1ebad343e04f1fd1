//! What cards can do that nothing tells but trying it on one of their representors.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::DevlinkDevice;

use super::{super::Representor, UNKNOWN_YET};
use crate::driver::Ability;

/// What each card was found to do.
#[derive(Debug, Default)]
pub(super) struct Trials(Mutex<BTreeMap<DevlinkDevice, Trial>>);

/// What one card was found to do.
#[derive(Debug)]
struct Trial {
    /// The link that it was tried on: a card that was reset has made others.
    link: u32,
    tried: Tried,
}

/// Whether a card can do each thing that it is tried for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    /// Carry out filters.
    pub(super) filters: Ability,
    /// Let a VF be sure of what it sends.
    pub(super) egress_share: Ability,
    /// Limit what several VFs send together.
    pub(super) egress_total: Ability,
}

impl Tried {
    /// Of a card that had no VF to try it on.
    pub(super) fn nothing_yet() -> Self {
        let unknown = || Err(UNKNOWN_YET.to_owned());
        Self { filters: unknown(), egress_share: unknown(), egress_total: unknown() }
    }
}

impl Trials {
    /// What a card was found to do. `None`: it was not tried yet.
    pub(super) fn of(&self, card: &DevlinkDevice) -> Option<Tried> {
        self.lock().get(card).map(|trial| trial.tried.clone())
    }

    /// Tries a card, unless it was tried since it made these representors: on one that serves nobody if there
    /// is any.
    pub(super) fn of_card(
        &self,
        card: &DevlinkDevice,
        representors: &[&Representor],
        try_on: impl FnOnce(&Representor) -> Tried,
    ) {
        let mut trials = self.lock();
        let is_known = trials
            .get(card)
            .is_some_and(|trial| representors.iter().any(|port| port.index == trial.link));
        let serves_nobody = |port: &&&Representor| port.master.is_none() && !port.up;
        let free = representors.iter().find(serves_nobody).or(representors.first());
        let Some(port) = free.filter(|_| !is_known) else { return };
        let tried = try_on(port);
        match &tried.filters {
            Ok(()) => tracing::info!(%card, port = port.name, "the card carries out filters"),
            Err(why) => tracing::info!(%card, port = port.name, why, "the card takes no filters"),
        }
        trials.insert(card.clone(), Trial { link: port.index, tried });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DevlinkDevice, Trial>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use netlink::Link;
    use vf_alloc::FunctionId;

    use super::*;

    fn port(index: u32, up: bool) -> Representor {
        let mut link = Link::default();
        (link.index, link.is_up) = (index, up);
        Representor::of_link(FunctionId::local(0, 0), link)
    }

    #[test]
    fn a_card_is_tried_on_a_port_that_serves_nobody_and_again_once_it_has_others() {
        let (trials, tried_on) = (Trials::default(), Cell::new(0));
        let card: DevlinkDevice = "pci/0000:03:00.0".parse().unwrap();
        assert_eq!(trials.of(&card), None);
        let look = |ports: &[(u32, bool)], ability: Ability| {
            let ports: Vec<_> = ports.iter().map(|(index, up)| port(*index, *up)).collect();
            tried_on.set(0);
            trials.of_card(&card, &Vec::from_iter(&ports), |port| {
                tried_on.set(port.index);
                Tried { filters: ability, ..Tried::nothing_yet() }
            });
            (tried_on.get(), trials.of(&card).map(|tried| tried.filters))
        };
        assert_eq!(look(&[], Ok(())), (0, None), "there is nothing to try it on");
        assert_eq!(look(&[(7, true), (8, false)], Ok(())), (8, Some(Ok(()))));
        let refused = || Err("not now".to_owned());
        assert_eq!(look(&[(7, true), (8, true), (9, false)], refused()), (0, Some(Ok(()))));
        assert_eq!(look(&[(17, true), (18, true)], refused()), (17, Some(refused())));
    }
}
