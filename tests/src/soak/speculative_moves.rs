//! Counts of speculative moves: how often the DPU gave the VF that was moved.

use std::{collections::BTreeMap, iter::Sum, ops::Add};

use crate::{
    Agent, Fleet,
    openmetrics::{self, Exposition},
};

/// Speculative moves that agents have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SpeculativeMoves {
    pub(super) right: f64,
    pub(super) wrong: f64,
}

impl SpeculativeMoves {
    fn of(agent: &Agent) -> Self {
        let page = openmetrics::scrape(&agent.card.host).expect("an agent that tells its metrics");
        Self { right: counted(&page, "right"), wrong: counted(&page, "wrong") }
    }

    pub(super) fn all(self) -> f64 {
        self.right + self.wrong
    }
}

fn counted(page: &Exposition, outcome: &str) -> f64 {
    let counted = openmetrics::value(
        page,
        "dpu_offload_agent_speculative_moves",
        "_total",
        &[("outcome", outcome)],
    );
    counted.expect("a count of speculative moves")
}

impl Add for SpeculativeMoves {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { right: self.right + other.right, wrong: self.wrong + other.wrong }
    }
}

impl Sum for SpeculativeMoves {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Latest counts of each agent process. A killed process takes its newest counts with it.
#[derive(Debug, Default)]
pub(super) struct SpeculativeMovesByAgent(BTreeMap<u32, SpeculativeMoves>);

impl SpeculativeMovesByAgent {
    /// Asks all running agents, and returns the total of all that ever ran.
    pub(super) fn ask(&mut self, fleet: &Fleet) -> SpeculativeMoves {
        let agents = fleet.agents.iter();
        self.0.extend(agents.map(|agent| (agent.program.id(), SpeculativeMoves::of(agent))));
        self.0.values().copied().sum()
    }
}
