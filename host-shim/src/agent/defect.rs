//! What is done about what no input should be able to cause: a task that panicked, a thread that could not
//! be had.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use offload_proto::{Failure, Reason};

/// What a mutex guards, also after somebody panicked who held it: all that the agent keeps so is whole
/// between any two statements.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A failure that no input should be able to cause.
pub(super) fn defect(error: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::Internal, format!("the agent failed: {error}"))
}

/// What was done, or nothing: what could not be done now is tried again by the next who wants it.
pub(super) fn done_or_nothing<T: Default>(
    done: Result<Result<T, netlink::Error>, Failure>,
    doing: &str,
) -> T {
    match done {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => {
            tracing::warn!(%error, "can't {doing}");
            T::default()
        }
        Err(error) => {
            tracing::error!(%error, "can't {doing}");
            T::default()
        }
    }
}
