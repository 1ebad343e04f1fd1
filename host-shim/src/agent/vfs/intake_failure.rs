//! Why a VF did not get into its pod.

use offload_proto::Failure;
use vf_alloc::Device;

use crate::mover::MoveError;

/// Why VFs did not get into their pod, and what is left.
pub(in crate::agent) enum IntakeFailure {
    /// None of the VFs has been touched, and nothing relies on a record.
    Unrecorded {
        failure: Failure,
        /// Those that are known to be in the host's namespace, and nobody else's.
        found: Vec<Device>,
    },
    /// The records are there. The move is undone, unless it failed when the VFs were in the pod.
    Unmoved { failure: Failure },
}

/// None of the VFs was looked at.
pub(super) fn none_found(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found: Vec::new() }
}

/// Why a VF is not to be had. It has not been touched.
pub(super) struct NotTaken {
    pub failure: Failure,
    /// It is in the host's namespace, and nobody else's.
    pub found_vf: bool,
}

/// The VF is not there, or somebody else's.
pub(super) fn not_found(failure: Failure) -> NotTaken {
    NotTaken { failure, found_vf: false }
}

/// The VF is there, and stays there.
pub(super) fn not_taken(failure: Failure) -> NotTaken {
    NotTaken { failure, found_vf: true }
}

/// That the kernel refused something of a move.
pub(super) fn not_moved(error: impl Into<MoveError>) -> Failure {
    let error = error.into();
    Failure::new(error.reason(), error.to_string())
}
