//! What the service's tasks have in common: ticks, and work on blocking threads.

use std::{panic::resume_unwind, time::Duration};

use tokio::{
    task::{JoinError, spawn_blocking},
    time::{Interval, MissedTickBehavior, interval},
};

/// Ticks once at the beginning and then every `period`. A late tick delays those after it.
pub(crate) fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Runs work that waits for the kernel on the blocking pool, apart from tasks that serve calls.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    finished(spawn_blocking(work).await)
}

/// The result of a task. No code aborts it, so an error is a panic, which is raised again.
pub(crate) fn finished<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
