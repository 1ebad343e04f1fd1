//! Results of a soak.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{caller::Tally, chaos::Toll, guesses::Guesses};
use crate::breach::{Breach, Harm};

/// Result of a soak. Its text is the last line of `hack/soak`.
#[derive(Debug, Default)]
pub struct Outcome {
    pub(super) operations: usize,
    pub(super) toll: Toll,
    pub(super) counts: Counts,
    pub(super) breaches: Vec<Breach>,
    /// What should have happened, but never did.
    missed: Option<&'static str>,
}

/// What pods and callers have done.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) hostile: u64,
    pub(super) dead: u64,
    pub(super) suspensions: u64,
    pub(super) guesses: Guesses,
    /// Grants of the simulated hosts.
    pub(super) calls_of_crowd: usize,
    pub(super) pings: u64,
    /// Changes that pods tried on their interfaces, and whether the kernel allowed them.
    pub(super) tricks: BTreeMap<&'static str, bool>,
}

impl Counts {
    /// Counts of calls and faults so far.
    pub(super) fn of(tally: &Tally, toll: &Toll, guesses: Guesses, calls_of_crowd: usize) -> Self {
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Self {
            hostile: number(&tally.hostile),
            dead: number(&tally.dead),
            suspensions: number(&tally.suspensions) + toll.suspensions,
            guesses,
            calls_of_crowd,
            pings: number(&tally.pings),
            tricks: tally.tricks.lock().expect("callers that go on").clone(),
        }
    }
}

impl Outcome {
    /// Whether nothing is violated and everything expected has happened.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.breaches.is_empty() && self.missed.is_none()
    }

    /// Requires grants for the simulated hosts.
    pub(super) fn miss_idle_crowd(&mut self) {
        let missed = (self.counts.calls_of_crowd == 0).then_some("a crowd was granted nothing");
        self.missed = self.missed.or(missed);
    }

    /// Of this many armed faults, some must strike.
    const FAULTS: u64 = 20;

    /// Requires strikes: a program without fault injection would pass all points unharmed.
    pub(super) fn miss_faults(&mut self) {
        let missed = self.toll.armed >= Self::FAULTS && self.toll.struck == 0;
        self.missed = self.missed.or(missed.then_some("no point killed, and no step failed"));
    }

    /// Requires wrong speculative moves.
    pub(super) fn miss_wrong_guesses(&mut self) {
        let missed = (self.counts.guesses.wrong == 0.0).then_some("no guess was wrong");
        self.missed = self.missed.or(missed);
    }

    /// Changes that the kernel refused to pods.
    pub fn refused_tricks(&self) -> impl Iterator<Item = &'static str> {
        let refused = self.counts.tricks.iter().filter(|(_, passed)| !**passed);
        refused.map(|(trick, _)| *trick)
    }

    /// Violations, one line each.
    #[must_use]
    pub fn breaches(&self) -> String {
        let breaches = self.breaches.iter().map(Breach::to_string);
        breaches.chain(self.missed.map(str::to_owned)).map(|line| line + "\n").collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |harm| self.breaches.iter().filter(|breach| breach.harm == harm).count();
        let Counts { hostile, dead, suspensions, guesses, calls_of_crowd, pings, .. } =
            &self.counts;
        write!(
            out,
            "{} operations, {} kills, {} cuts, {hostile} hostile pods, {dead} dead callers, \
             {suspensions} suspensions, {} of {} guesses wrong, {calls_of_crowd} calls of a crowd, \
             {pings} pings: {} lost, {} leaked, {} doubled, {} unclean, \
             {} without network",
            self.operations,
            self.toll.kills,
            self.toll.cuts,
            guesses.wrong,
            guesses.all(),
            count(Harm::Lost),
            count(Harm::Leaked),
            count(Harm::Doubled),
            count(Harm::Unclean),
            count(Harm::WithoutNetwork)
        )
    }
}
