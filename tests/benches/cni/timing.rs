//! The times at which operations begin.

use std::{thread, time::Duration};

use crate::sample::Sample;

/// Two ticks of a kernel's clock of 250 Hz.
const TWO_TICKS: Duration = Duration::from_millis(8);

/// When an operation begins after the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// At a random phase of the kernel's clock, as real calls do.
    Apart,
    /// At once, and so at the phase of the tick with which the previous one ended.
    Locked,
}

/// The pauses before operations, the same for all compared systems.
pub(crate) struct Pauses(Vec<Duration>);

impl Pauses {
    /// Draws the pauses of that many operations.
    pub(crate) fn draw(timing: Timing, count: usize) -> Self {
        let pause = |_| match timing {
            Timing::Apart => rand::random_range(Duration::ZERO..TWO_TICKS),
            Timing::Locked => Duration::ZERO,
        };
        Self((0..count).map(pause).collect())
    }

    /// Pauses of operations at random phases.
    pub(crate) fn apart(count: usize) -> Self {
        Self::draw(Timing::Apart, count)
    }

    /// Waits for the beginning of the operation, runs it, and adds its duration.
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
