//! Flows that are being put together.

use std::collections::BTreeSet;

use openflow::{Action, Flow, Match};

// Within our tables: what is refused before it is let pass, what is let pass, what of the rest, and the rest.
pub(super) const REFUSED: u16 = 40;
pub(super) const ALLOWED: u16 = 30;
pub(super) const OTHERWISE: u16 = 20;
pub(super) const REST: u16 = 10;

/// Flows with one cookie.
#[derive(Debug)]
pub(super) struct FlowSet {
    cookie: u64,
    /// At which port all of them ask, if at one.
    at: Option<Match>,
    all: BTreeSet<Flow>,
}

impl FlowSet {
    /// Flows that ask at all ports, unless they tell at which.
    pub(super) const fn of_bridge(cookie: u64) -> Self {
        Self { cookie, at: None, all: BTreeSet::new() }
    }

    /// Flows that ask at the port of that number.
    pub(super) const fn of_port(cookie: u64, number: u32) -> Self {
        Self { cookie, at: Some(Match::InPort(number)), all: BTreeSet::new() }
    }

    /// One more. What every frame of its kind is like is not asked: a switch does not.
    pub(super) fn add(
        &mut self,
        table: u8,
        priority: u16,
        matches: impl IntoIterator<Item = Match>,
        action: Action,
    ) {
        let matches = matches.into_iter().filter(|it| !is_about_anything(it));
        let matches = matches.chain(self.at).collect();
        self.all.insert(Flow { table, priority, cookie: self.cookie, matches, action });
    }

    pub(super) fn all(self) -> BTreeSet<Flow> {
        self.all
    }
}

fn is_about_anything(it: &Match) -> bool {
    match it {
        Match::Ipv4Source(network)
        | Match::ArpSenderAddress(network)
        | Match::ArpTargetAddress(network) => network.prefix() == 0,
        Match::Ipv6Source(network) | Match::NdTarget(network) => network.prefix() == 0,
        _ => false,
    }
}
