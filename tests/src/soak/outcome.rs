//! Results of a soak.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{caller::Tally, chaos::FaultCounts, speculative_moves::SpeculativeMoves};
use crate::violation::{Violation, ViolationKind};

/// Result of a soak. Its text is the last line of `hack/soak`.
#[derive(Debug, Default)]
pub struct Outcome {
    pub(super) operations: usize,
    pub(super) fault_counts: FaultCounts,
    pub(super) counts: Counts,
    pub(super) violations: Vec<Violation>,
    /// What should have happened, but never did.
    missed: Option<&'static str>,
}

/// What pods and callers have done.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) hostile: u64,
    pub(super) dead: u64,
    pub(super) suspensions: u64,
    pub(super) speculative_moves: SpeculativeMoves,
    /// Grants of the simulated hosts.
    pub(super) calls_of_crowd: usize,
    pub(super) pings: u64,
    /// Changes that pods tried on their interfaces, and whether the kernel allowed them.
    pub(super) hostile_changes: BTreeMap<&'static str, bool>,
}

impl Counts {
    /// Counts of calls and faults so far.
    pub(super) fn of(
        tally: &Tally,
        fault_counts: &FaultCounts,
        speculative_moves: SpeculativeMoves,
        calls_of_crowd: usize,
    ) -> Self {
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Self {
            hostile: number(&tally.hostile),
            dead: number(&tally.dead),
            suspensions: number(&tally.suspensions) + fault_counts.suspensions,
            speculative_moves,
            calls_of_crowd,
            pings: number(&tally.pings),
            hostile_changes: tally.hostile_changes.lock().clone(),
        }
    }
}

impl Outcome {
    /// Whether nothing is violated and everything expected has happened.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.missed.is_none()
    }

    /// Requires grants for the simulated hosts.
    pub(super) fn require_crowd_grants(&mut self) {
        let missed = (self.counts.calls_of_crowd == 0).then_some("a crowd was granted nothing");
        self.missed = self.missed.or(missed);
    }

    /// Of this many armed faults, some must strike.
    const FAULTS: u64 = 20;

    /// Requires strikes: a program without fault injection would pass all points unharmed.
    pub(super) fn require_strikes(&mut self) {
        let missed = self.fault_counts.armed >= Self::FAULTS && self.fault_counts.struck == 0;
        self.missed = self.missed.or(missed.then_some("no point killed, and no step failed"));
    }

    /// Requires wrong speculative moves.
    pub(super) fn require_wrong_moves(&mut self) {
        let missed =
            (self.counts.speculative_moves.wrong == 0.0).then_some("no speculative move was wrong");
        self.missed = self.missed.or(missed);
    }

    /// Changes that the kernel refused to pods.
    pub fn refused_changes(&self) -> impl Iterator<Item = &'static str> {
        let refused = self.counts.hostile_changes.iter().filter(|(_, passed)| !**passed);
        refused.map(|(change, _)| *change)
    }

    /// Violations, one line each.
    #[must_use]
    pub fn violations(&self) -> String {
        let violations = self.violations.iter().map(Violation::to_string);
        violations.chain(self.missed.map(str::to_owned)).map(|line| line + "\n").collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count =
            |kind| self.violations.iter().filter(|violation| violation.kind == kind).count();
        let Counts { hostile, dead, suspensions, speculative_moves, calls_of_crowd, pings, .. } =
            &self.counts;
        write!(
            out,
            "{} operations, {} kills, {} cuts, {hostile} hostile pods, {dead} dead callers, \
             {suspensions} suspensions, {} of {} speculative moves wrong, {calls_of_crowd} calls of a crowd, \
             {pings} pings: {} lost, {} leaked, {} doubled, {} unclean, \
             {} without network",
            self.operations,
            self.fault_counts.kills,
            self.fault_counts.cuts,
            speculative_moves.wrong,
            speculative_moves.all(),
            count(ViolationKind::Lost),
            count(ViolationKind::Leaked),
            count(ViolationKind::Doubled),
            count(ViolationKind::Unclean),
            count(ViolationKind::WithoutNetwork)
        )
    }
}
