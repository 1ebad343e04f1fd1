//! Pauses after failures. An attempt changes the link that it is about, which is what causes the
//! next attempt; without a pause, one that fails would be repeated as fast as the kernel can.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The pause after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// How often in a row the VF of an attachment could not be brought where it belongs, by id, or a VF
/// could not be made as it was, by device.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<HashMap<String, Failures>>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Pauses {
    /// How long to wait before the next attempt that an event asks for.
    pub(super) fn of(&self, id: &str) -> Duration {
        match self.0.lock().get(id) {
            None => Duration::ZERO,
            Some(Failures { count, .. }) => {
                FIRST.saturating_mul(1 << (count - 1).min(6)).min(LONGEST)
            }
        }
    }

    /// Whether the pause after the last failure is over, or there was none.
    pub(super) fn is_over(&self, id: &str) -> bool {
        let last = self.0.lock().get(id).map(|failures| failures.last);
        last.is_none_or(|last| last.elapsed() >= self.of(id))
    }

    /// An attempt failed.
    pub(super) fn failed(&self, id: &str) {
        let last = Instant::now();
        let mut failures = self.0.lock();
        let failures = failures.entry(id.to_owned()).or_insert(Failures { count: 0, last });
        *failures = Failures { count: failures.count.saturating_add(1), last };
    }

    /// The VF is where it belongs.
    pub(super) fn succeeded(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_until_success() {
        let pauses = Pauses::default();
        let mut seconds = Vec::new();
        for _ in 0..9 {
            seconds.push(pauses.of("a").as_secs());
            pauses.failed("a");
        }
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.of("b"), Duration::ZERO);
        assert!(!pauses.is_over("a") && pauses.is_over("b"));
        pauses.succeeded("a");
        assert_eq!(pauses.of("a"), Duration::ZERO);
    }
}
