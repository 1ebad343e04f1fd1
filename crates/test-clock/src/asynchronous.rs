//! Waits for asynchronous tests. They need a tokio runtime whose time is not paused.

use std::{pin::pin, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{
    stopwatch::Reading,
    wait::{DEFAULT_TIMEOUT, backoff, gave_up, is_over},
};

/// How often [`within`] checks the clock.
const LOOK: Duration = Duration::from_millis(100);

/// Calls `holds` until it returns true, as [`wait_until`](crate::wait_until) does.
///
/// # Panics
/// When [`DEFAULT_TIMEOUT`] is over, with `what` in the message.
pub async fn wait_until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looking = async {
        for time in backoff() {
            if holds().await {
                return;
            }
            sleep(time).await;
        }
    };
    within(DEFAULT_TIMEOUT, looking).await.unwrap_or_else(|| gave_up(what, DEFAULT_TIMEOUT));
}

/// Runs `work` with a time limit, like `tokio::time::timeout`. `None`: `limit` has passed.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let begun = Reading::take();
    let mut work = pin!(work);
    let mut next = limit;
    loop {
        if let Ok(done) = timeout(next, &mut work).await {
            return Some(done);
        }
        if is_over(&begun, limit) {
            return None;
        }
        next = LOOK.min(limit);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn work_that_ends_is_returned() {
        let mut looks = 0;
        wait_until_async("the third look", async || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(within(DEFAULT_TIMEOUT, async { looks }).await, Some(3));
    }

    #[tokio::test]
    async fn work_that_does_not_end_is_given_up() {
        assert_eq!(within(Duration::from_millis(20), pending::<()>()).await, None);
    }
}
