//! Waits for tests on threads.

use std::{thread, time::Duration};

use crate::stopwatch::{Reading, Stopwatch};

/// The limit of [`wait_until`] and [`wait_until_async`](crate::wait_until_async).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// The interval between two checks starts with this and grows by a quarter each time, so that a wait takes at most a
/// fifth longer than needed. Checks are costly: many start a program.
const MIN_BACKOFF: Duration = Duration::from_millis(1);
const MAX_BACKOFF: Duration = Duration::from_millis(200);

/// The intervals between checks.
pub(crate) fn backoff() -> impl Iterator<Item = Duration> {
    let longer = |time: &Duration| Some((*time * 5 / 4).min(MAX_BACKOFF));
    std::iter::successors(Some(MIN_BACKOFF), longer)
}

/// Whether the limit has passed. Reads the pressure only after the wall time has passed.
pub(crate) fn is_over(begun: &Reading, limit: Duration) -> bool {
    begun.at.elapsed() >= limit && Reading::take().unstalled_since(begun) >= limit
}

/// Calls `look` until it returns a value, and returns that value.
///
/// # Panics
/// When `limit` is over, with `what` in the message.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    eventually(limit, look).unwrap_or_else(|| gave_up(what, limit))
}

/// Calls `holds` until it returns true.
///
/// # Panics
/// When [`DEFAULT_TIMEOUT`] is over, with `what` in the message.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, DEFAULT_TIMEOUT, || holds().then_some(()));
}

/// Calls `look` until it returns a value or `limit` has passed. The last call is after the end of the limit.
pub fn eventually<T>(limit: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Reading::take();
    look_until(|| is_over(&begun, limit), thread::park_timeout, look)
}

fn look_until<T>(
    mut is_over: impl FnMut() -> bool,
    mut pause: impl FnMut(Duration),
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    for next in backoff() {
        let was_over = is_over();
        if let Some(value) = look() {
            return Some(value);
        }
        if was_over {
            return None;
        }
        pause(next);
    }
    None
}

#[track_caller]
#[expect(clippy::panic, reason = "a test fails by panicking")]
pub(crate) fn gave_up(what: &str, limit: Duration) -> ! {
    panic!(
        "gave up waiting for {what} after {limit:?}, without the time in which tasks waited for a processor"
    )
}

/// Blocks this thread for `time`, for tests that act at a certain time of another thread or program. A test that waits
/// for an event uses [`wait_for`].
///
/// [`thread::park_timeout`] alone returns at once if an ended scoped thread has unparked this one.
pub fn sleep_until_moment(time: Duration) {
    let begun = Stopwatch::start();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Instant};

    use super::*;

    /// Waits four seconds on a machine that stalls for `stalled` of each second. Returns the wait's duration.
    fn wall_of_a_wait(stalled: Option<Duration>) -> Duration {
        const STEP: Duration = Duration::from_millis(100);
        let at = Instant::now();
        let steps = Cell::new(0);
        let read = || Reading {
            at: at + STEP * steps.get(),
            stalled: stalled.map(|share| share / 10 * steps.get()),
        };
        let begun = read();
        let is_over = || read().unstalled_since(&begun) >= Duration::from_secs(4);
        let found = look_until(is_over, |_| steps.set(steps.get() + 1), || None::<()>);
        assert_eq!(found, None);
        read().at - at
    }

    #[test]
    fn a_wait_lasts_longer_on_a_busy_machine() {
        let wall = |stalled_ms| wall_of_a_wait(Some(Duration::from_millis(stalled_ms))).as_secs();
        assert_eq!([wall(0), wall(500), wall(750), wall(1000)], [4, 8, 16, 16]);
        assert_eq!(wall_of_a_wait(None).as_secs(), 12);
    }

    #[test]
    fn the_last_look_is_after_the_end() {
        let over = Cell::new(false);
        let found = look_until(|| over.get(), |_| over.set(true), || over.get().then_some(7));
        assert_eq!(found, Some(7));
    }

    #[test]
    fn a_value_ends_the_wait() {
        let mut looks = 0;
        let value = wait_for("the third look", DEFAULT_TIMEOUT, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "gave up waiting for a sign")]
    fn a_limit_ends_the_wait() {
        wait_for("a sign", Duration::from_millis(20), || None::<()>);
    }

    #[test]
    fn backoff_is_at_most_a_quarter() {
        let mut elapsed = Duration::ZERO;
        for pause in backoff().take(40) {
            assert!(pause <= MAX_BACKOFF.min(elapsed / 4 + MIN_BACKOFF), "{pause:?}");
            elapsed += pause;
        }
        assert_eq!(backoff().nth(40), Some(MAX_BACKOFF));
    }
}
