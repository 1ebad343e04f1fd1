//! Waiting, always on a condition and with a bound.

use std::{
    thread,
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` gives a value, which it returns.
///
/// # Panics
/// When `limit` is over, naming `what` was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    eventually(limit, look).unwrap_or_else(|| panic!("gave up waiting for {what} after {limit:?}"))
}

/// Looks until `look` gives a value or `limit` is over; looks once more at its end.
pub fn eventually<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = look() {
            return Some(value);
        }
        if Instant::now() > end {
            return None;
        }
        thread::park_timeout(PAUSE);
    }
}
