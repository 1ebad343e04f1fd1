//! Why a VF did not get into its pod.

use offload_proto::Failure;

use crate::mover::MoveError;

/// Why a VF did not get into its pod, and what is left.
pub(in crate::agent) enum IntakeFailure {
    /// The VF has not been touched, and nothing relies on a record.
    Unrecorded {
        failure: Failure,
        /// The VF is in the host's namespace, and nobody else's.
        found_vf: bool,
    },
    /// The record is there. The move is undone, unless it failed when the VF was in the pod.
    Unmoved { failure: Failure },
}

/// The VF is not there, or somebody else's.
pub(super) fn not_found(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found_vf: false }
}

/// The VF is there, and stays there.
pub(super) fn not_taken(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found_vf: true }
}

/// That the kernel refused something of a move.
pub(super) fn not_moved(error: impl Into<MoveError>) -> Failure {
    let error = error.into();
    Failure::new(error.reason(), error.to_string())
}
