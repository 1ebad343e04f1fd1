//! Conversion of failed moves to failures.

use bootstrap::Chain;
use offload_proto::{Failure, Reason};

use super::records::Record;
use crate::mover::{Failed, MoveError};

/// Tells what, on what, why.
pub(super) fn failure_of_move(record: &Record, failed: &Failed) -> Failure {
    failure_among(&[record], failed)
}

/// The failure of VFs that were moved together.
pub(super) fn failure_among(records: &[&Record], failed: &Failed) -> Failure {
    let reason = failed.source.as_ref().map_or(Reason::MoveFailed, MoveError::reason);
    for left in &failed.left {
        let (attachment, step, error) = (records[left.context].id(), left.step, &left.source);
        tracing::warn!(attachment, step, %error, "undoing a step of the move failed");
    }
    let record = records[failed.context];
    let message =
        format!("moving VF {} for {} failed: {}", record.device(), record.key(), Chain(failed));
    Failure::new(reason, message)
}
