//! Builds sets of flows.

use std::collections::BTreeSet;

use openflow::{Action, Flow, Match};

// Priorities in our tables, highest first: exceptions, allowed frames, the fallback among allowed ones, everything
// else.
pub(super) const REFUSED: u16 = 40;
pub(super) const ALLOWED: u16 = 30;
pub(super) const OTHERWISE: u16 = 20;
pub(super) const REST: u16 = 10;

/// Flows with one cookie.
#[derive(Debug)]
pub(super) struct FlowSet {
    cookie: u64,
    /// The port that all flows match, if they are of one port.
    at: Option<Match>,
    all: BTreeSet<Flow>,
}

impl FlowSet {
    /// A set whose flows match all ports unless they name one.
    pub(super) const fn of_bridge(cookie: u64) -> Self {
        Self { cookie, at: None, all: BTreeSet::new() }
    }

    /// A set whose flows match the port of that number.
    pub(super) const fn of_port(cookie: u64, number: u32) -> Self {
        Self { cookie, at: Some(Match::InPort(number)), all: BTreeSet::new() }
    }

    /// Adds a flow. A switch omits matches on prefixes of length 0 from its answers, so they are left out here,
    /// too.
    pub(super) fn add(
        &mut self,
        table: u8,
        priority: u16,
        matches: impl IntoIterator<Item = Match>,
        action: Action,
    ) {
        let matches = matches.into_iter().filter(|it| !matches_everything(it));
        let matches = matches.chain(self.at).collect();
        self.all.insert(Flow { table, priority, cookie: self.cookie, matches, action });
    }

    pub(super) fn all(self) -> BTreeSet<Flow> {
        self.all
    }
}

fn matches_everything(it: &Match) -> bool {
    match it {
        Match::Ipv4Source(network)
        | Match::ArpSenderAddress(network)
        | Match::ArpTargetAddress(network) => network.prefix() == 0,
        Match::Ipv6Source(network) | Match::NdTarget(network) => network.prefix() == 0,
        _ => false,
    }
}
