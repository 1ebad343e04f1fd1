//! Features of cards that only an attempt on one of their representors reveals.

use std::collections::BTreeMap;

use netlink::DevlinkDevice;

use crate::{driver::Ability, eswitch::Representor};

pub(super) const UNKNOWN_YET: &str = "not known until a VF has a representor";

/// A feature to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Ingress filters in hardware.
    Filters,
    /// A guaranteed share of what a VF sends.
    EgressShare,
    /// A limit of what several VFs send together.
    EgressTotal,
}

/// The result for each feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) filters: Ability,
    pub(super) egress_share: Ability,
    pub(super) egress_total: Ability,
}

/// The results of one card.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// The link that the card was tried on. After a reset of the card all links are new.
    link: u32,
    pub(super) tried: Tried,
}

/// The results of all cards.
pub(super) type Trials = BTreeMap<DevlinkDevice, Trial>;

impl Feature {
    const ALL: [Self; 3] = [Self::Filters, Self::EgressShare, Self::EgressTotal];

    /// The name of the capability.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Filters => "filters",
            Self::EgressShare => "egress-share",
            Self::EgressTotal => "egress-total",
        }
    }
}

impl Tried {
    /// The result for a card without a VF.
    pub(super) fn nothing_yet() -> Self {
        Self::each(|_| Err(UNKNOWN_YET.to_owned()))
    }

    fn each(mut ability: impl FnMut(Feature) -> Ability) -> Self {
        Self {
            filters: ability(Feature::Filters),
            egress_share: ability(Feature::EgressShare),
            egress_total: ability(Feature::EgressTotal),
        }
    }

    const fn of(&self, feature: Feature) -> &Ability {
        match feature {
            Feature::Filters => &self.filters,
            Feature::EgressShare => &self.egress_share,
            Feature::EgressTotal => &self.egress_total,
        }
    }
}

impl Trial {
    /// Tries the features that are not `known` to work since the card created these representors. Prefers an idle
    /// representor. A feature that failed before is tried again. `None`: there is no representor.
    pub(super) fn of_card(
        known: Option<&Self>,
        representors: &[&Representor],
        mut attempt: impl FnMut(&Representor, Feature) -> Ability,
    ) -> Option<Self> {
        let is_idle = |port: &&&Representor| port.master.is_none() && !port.up;
        let port = representors.iter().find(is_idle).or(representors.first())?;
        let is_there = |trial: &&Self| representors.iter().any(|port| port.index == trial.link);
        let known = known.filter(is_there);
        let works = |feature| known.is_some_and(|known| known.tried.of(feature).is_ok());
        let tried = Tried::each(|feature| match works(feature) {
            true => Ok(()),
            false => attempt(port, feature),
        });
        Some(Self { link: port.index, tried })
    }
}

/// Logs features that have started or stopped working since `known`.
pub(super) fn log_changes(known: &Trials, found: &Trials) {
    for (card, trial) in found {
        for feature in Feature::ALL {
            let before = known.get(card).map(|known| known.tried.of(feature));
            log_change(card, feature.name(), before, trial.tried.of(feature));
        }
    }
}

fn log_change(card: &DevlinkDevice, feature: &str, before: Option<&Ability>, now: &Ability) {
    match (before, now) {
        (Some(Ok(())), Ok(())) | (Some(Err(_)), Err(_)) => {}
        (_, Ok(())) => tracing::info!(%card, feature, "a feature of the card works"),
        (None, Err(why)) => tracing::info!(%card, feature, why, "a feature of the card is missing"),
        (Some(Ok(())), Err(why)) => {
            tracing::warn!(%card, feature, why, "a feature of the card stopped working");
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink::Link;
    use vf_alloc::FunctionId;

    use super::*;

    fn port(index: u32, up: bool) -> Representor {
        let mut link = Link::default();
        (link.index, link.is_up) = (index, up);
        Representor::of_link(FunctionId::local(0, 0), link)
    }

    /// Tries a card with these ports that supports all features but `refused`. Also returns the attempts.
    fn look(
        known: Option<&Trial>,
        ports: &[(u32, bool)],
        refused: Option<Feature>,
    ) -> (Option<Trial>, Vec<(u32, Feature)>) {
        let ports: Vec<_> = ports.iter().map(|(index, up)| port(*index, *up)).collect();
        let mut attempts = Vec::new();
        let trial = Trial::of_card(known, &Vec::from_iter(&ports), |port, feature| {
            attempts.push((port.index, feature));
            if Some(feature) == refused { Err("not now".to_owned()) } else { Ok(()) }
        });
        (trial, attempts)
    }

    #[test]
    fn card_is_tried_on_an_idle_port() {
        let (found, attempts) = look(None, &[], None);
        assert!(found.is_none() && attempts.is_empty(), "there is nothing to try it on");
        let (found, attempts) = look(None, &[(7, true), (8, false)], None);
        assert_eq!(attempts, Feature::ALL.map(|feature| (8, feature)));
        let (found, attempts) = look(found.as_ref(), &[(7, true), (8, true), (9, false)], None);
        assert_eq!(attempts, [], "it is known what it can do");
        let (_, attempts) = look(found.as_ref(), &[(17, true), (18, true)], None);
        assert_eq!(attempts, Feature::ALL.map(|feature| (17, feature)));
    }

    #[test]
    fn failed_features_are_tried_again() {
        let ports = [(7, false)];
        let refused = Some(Feature::EgressShare);
        let (mut found, _) = look(None, &ports, refused);
        for _ in 0..2 {
            let attempts;
            (found, attempts) = look(found.as_ref(), &ports, refused);
            assert_eq!(attempts, [(7, Feature::EgressShare)]);
            let tried = &found.as_ref().unwrap().tried;
            assert_eq!((&tried.filters, &tried.egress_total), (&Ok(()), &Ok(())));
            assert!(tried.egress_share.is_err());
        }
        let (found, _) = look(found.as_ref(), &ports, None);
        assert_eq!(found.as_ref().unwrap().tried, Tried::each(|_| Ok(())));
        assert_eq!(look(found.as_ref(), &ports, refused).1, []);
    }
}
