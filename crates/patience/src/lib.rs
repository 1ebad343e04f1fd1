//! How long an answer is waited for, without the time that this process was suspended.
//!
//! A program that somebody stops for longer than it waits, or whose machine is, would otherwise take the other side
//! for silent as soon as it goes on, although the answer is there.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::time::{Duration, Instant};

/// Waits take no longer than that at once, and count for no more.
const STRETCH: Duration = Duration::from_millis(100);

/// How much longer an answer is waited for.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
}

impl Patience {
    /// For so long.
    #[must_use]
    pub const fn new(deadline: Duration) -> Self {
        Self { left: deadline }
    }

    /// Has `wait` wait for as long as it is told at most. `None`: patience has come to its end, and nothing was waited
    /// for.
    pub fn wait<T>(&mut self, wait: impl FnOnce(Duration) -> T) -> Option<T> {
        if self.left.is_zero() {
            return None;
        }
        let begun = Instant::now();
        let outcome = wait(self.left.min(STRETCH));
        self.spend(begun.elapsed());
        Some(outcome)
    }

    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited.min(STRETCH));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_after_as_much_waiting_as_it_was_for() {
        let mut patience = Patience::new(Duration::from_millis(150));
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        let mut wait = |most: Duration| {
            longest = longest.max(most);
            std::thread::park_timeout(most);
        };
        while patience.wait(&mut wait).is_some() {}
        assert!(begun.elapsed() >= Duration::from_millis(150));
        assert_eq!(longest, STRETCH);
    }

    #[test]
    fn of_the_time_that_a_process_was_suspended_one_stretch_counts() {
        let mut patience = Patience::new(Duration::from_secs(3));
        patience.spend(Duration::from_secs(3600));
        assert_eq!(patience.left, Duration::from_millis(2900));
        for _ in 0..29 {
            patience.spend(STRETCH);
        }
        assert_eq!(patience.wait(|_| ()), None);
    }
}
