//! Why a VF did not get into its pod.

use offload_proto::Failure;
use vf_alloc::Device;

use crate::mover::MoveError;

/// Why VFs did not get into their pod, and what is left.
pub(in crate::agent) enum IntakeFailure {
    /// None of the VFs has been touched, and nothing relies on a record of those that had none.
    Unrecorded {
        failure: Failure,
        /// Those that are in the host's namespace, and ready to be given out again.
        found: Vec<Device>,
    },
    /// The records are there. The move is undone, unless it failed when the VFs were in the pod.
    Unmoved { failure: Failure },
}

/// None of the VFs was looked at.
pub(super) fn none_found(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found: Vec::new() }
}

/// That the kernel refused something of a move, or of the look before it.
pub(super) fn not_moved(error: impl Into<MoveError>) -> Failure {
    let error = error.into();
    Failure::new(error.reason(), error.to_string())
}
