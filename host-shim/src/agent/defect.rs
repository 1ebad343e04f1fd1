//! Handling of failures that no input should cause: a panicked task, a thread that cannot be started.

use std::fmt;

use offload_proto::{Failure, Reason};

/// A failure that no input should cause.
pub(super) fn defect(error: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::Internal, format!("the agent failed: {error}"))
}

/// The result, or the default after logging the failure: the next call that needs it tries again.
pub(super) fn done_or_nothing<T: Default>(
    done: Result<Result<T, netlink::Error>, Failure>,
    doing: &str,
) -> T {
    match done {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => {
            tracing::warn!(%error, doing, "an operation failed");
            T::default()
        }
        Err(error) => {
            tracing::error!(%error, doing, "an operation failed");
            T::default()
        }
    }
}
