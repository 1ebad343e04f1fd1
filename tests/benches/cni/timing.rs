//! When an operation begins.

use std::{thread, time::Duration};

use crate::sample::Sample;

/// Of a kernel's clock of 250 Hz.
const TWO_TICKS: Duration = Duration::from_millis(8);

/// When operations begin after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// At a random phase of the kernel's clock, as users come.
    Apart,
    /// At once: who begins when the last one has ended is locked to the tick with which that did.
    Locked,
}

/// How long after the end of the one before each operation begins: the same for all that are compared.
pub(crate) struct Pauses(Vec<Duration>);

impl Pauses {
    /// Draws those of so many operations.
    pub(crate) fn draw(timing: Timing, count: usize) -> Self {
        let pause = |_| match timing {
            Timing::Apart => rand::random_range(Duration::ZERO..TWO_TICKS),
            Timing::Locked => Duration::ZERO,
        };
        Self((0..count).map(pause).collect())
    }

    /// Those of operations at random phases.
    pub(crate) fn apart(count: usize) -> Self {
        Self::draw(Timing::Apart, count)
    }

    /// Does the operation of that number when it begins, and adds how long it took.
    pub(crate) fn time<T>(
        &self,
        number: usize,
        sample: &mut Sample,
        work: impl FnOnce() -> T,
    ) -> T {
        self.wait(number);
        sample.time(work)
    }

    /// Waits until the operation of that number begins.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is waited for but a moment of the clock"
    )]
    pub(crate) fn wait(&self, number: usize) {
        thread::sleep(self.0[number]);
    }
}
