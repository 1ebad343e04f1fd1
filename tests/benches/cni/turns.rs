//! Comparison of systems in one run: ADDs and DELs, alone and mixed, by one caller and by many. The systems take turns,
//! so that changes of the machine's speed affect all of them.

use std::env;

use crate::{
    callers::{Crew, at_once},
    pictures::{OF, P50, RATIO, WHAT},
    sample::Sample,
    table::Row,
    timing::{Pauses, Timing},
};

/// The kinds of measurements, by their index in [`Figures`]. One caller does not mix.
const KINDS: [&str; 4] =
    ["ADD", "DEL", "ADD while as many callers delete", "DEL while as many callers add"];

/// Environment variable that limits the number of measured operations, for checking that the benchmarks run. There must
/// be at least as many as callers.
const BOUND: &str = "OFFLOAD_BENCH_COUNT";

/// Columns of [`rows`].
pub(crate) const COLUMNS: [&str; 8] =
    [WHAT, OF, "N", P50, "p99 ms", "per s", RATIO, "times the floor, p99"];

/// Attaches and detaches pods by their numbers.
pub(crate) trait Network: Sync {
    fn add(&self, pod: usize);
    fn del(&self, pod: usize);
}

/// One of the compared systems, of which the first is the floor.
pub(crate) struct System<'a> {
    pub(crate) name: &'a str,
    pub(crate) network: &'a dyn Network,
}

/// Samples by kind.
pub(crate) type Figures = [Sample; KINDS.len()];

/// The amount of measurements of each system.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// ADDs alone and DELs alone in a round. Mixed, there are half as many of each.
    count: usize,
    rounds: usize,
}

impl Load {
    pub(crate) fn new(count: usize, rounds: usize) -> Self {
        match env::var(BOUND) {
            Ok(bound) => Self { count: count.min(bound.parse().expect(BOUND)), rounds: 1 },
            Err(_) => Self { count, rounds },
        }
    }

    /// Pods of each system.
    pub(crate) fn pods(self) -> usize {
        self.count + self.count / 2
    }

    /// All rounds of that many callers, by the index of the system.
    pub(crate) fn measure(
        self,
        systems: &[System<'_>],
        callers: usize,
        timing: Timing,
    ) -> Vec<Figures> {
        let mut all: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
        for _ in 0..self.rounds {
            if callers == 1 {
                self.one_after_the_other(systems, timing, &mut all);
            } else {
                self.by_callers(systems, callers, timing, &mut all);
            }
        }
        all
    }

    fn one_after_the_other(self, systems: &[System<'_>], timing: Timing, all: &mut [Figures]) {
        let pauses = Pauses::draw(timing, self.count);
        for pod in 0..self.count {
            for (system, [add, ..]) in systems.iter().zip(&mut *all) {
                pauses.time(pod, add, || system.network.add(pod));
            }
        }
        for pod in 0..self.count {
            for (system, [_, del, ..]) in systems.iter().zip(&mut *all) {
                pauses.time(pod, del, || system.network.del(pod));
            }
        }
    }

    /// Adds the first pods, then deletes half of them while others are added, then deletes the rest.
    fn by_callers(
        self,
        systems: &[System<'_>],
        callers: usize,
        timing: Timing,
        all: &mut [Figures],
    ) {
        let (count, half) = (self.count, self.count / 2);
        let pauses = Pauses::draw(timing, self.pods());
        for (System { network, .. }, [add, ..]) in systems.iter().zip(&mut *all) {
            let work = |pod| network.add(pod);
            let [added] = at_once([Crew::new(callers, 0..count, &work)], &pauses);
            add.append(added);
        }
        for (System { network, .. }, [_, _, add, del]) in systems.iter().zip(&mut *all) {
            let works = (|pod| network.add(pod), |pod| network.del(pod));
            let adding = Crew::new(callers / 2, count..self.pods(), &works.0);
            let deleting = Crew::new(callers / 2, 0..half, &works.1);
            let [added, deleted] = at_once([adding, deleting], &pauses);
            add.append(added);
            del.append(deleted);
        }
        for (System { network, .. }, [_, del, ..]) in systems.iter().zip(&mut *all) {
            let work = |pod| network.del(pod);
            let [deleted] = at_once([Crew::new(callers, half..self.pods(), &work)], &pauses);
            del.append(deleted);
        }
    }
}

/// The rows of that many callers' figures, each with the indices of its kind and its system.
pub(crate) fn rows<'a>(
    first: usize,
    callers: usize,
    systems: &'a [System<'_>],
    figures: &'a [Figures],
) -> impl Iterator<Item = (Row, [usize; 2])> {
    let kinds = if callers == 1 { 2 } else { KINDS.len() };
    let places = (0..kinds).flat_map(|kind| (0..systems.len()).map(move |system| [kind, system]));
    places.map(move |[kind, system]| {
        let (sample, floor) = (&figures[system][kind], &figures[0][kind]);
        let row = Row::of(first)
            .and(KINDS[kind])
            .and(systems[system].name)
            .and(sample.durations().len())
            .and_all(sample.row())
            .and_all(sample.times(floor));
        (row, [kind, system])
    })
}
