//! Kill points: places in the agent's flows at which a test can kill it.

use saga::Way;

use crate::mover::{ARRIVAL_STEPS, INWARD_STEPS, OUTWARD_STEPS, SPECULATIVE_STEPS};

saga::kill_points! {
    /// A kill point between the steps of the agent's flows.
    pub(super) enum KillPoint {
        /// The speculative attach is recorded; the VF has not been touched.
        AttachSpeculationRecorded = "attach-speculation-recorded",
        /// The VF of the speculative attach is in the pod, down and under its own name.
        AttachSpeculationMoved = "attach-speculation-moved",
        /// The DPU has answered an attach; the answer is not recorded.
        AttachAnswered = "attach-answered",
        /// The attach is recorded; its VF has not been touched.
        AttachRecorded = "attach-recorded",
        /// The pod has the VF; neither DPU nor runtime knows.
        AttachDone = "attach-done",
        /// The attachment is recorded as live; the caller was not answered.
        AttachCommitted = "attach-committed",
        /// The caller was answered.
        AttachReported = "attach-reported",
        /// An interface of other plugins is recorded; no plugin was called.
        DelegateRecorded = "delegate-recorded",
        /// Other plugins have created the interface; the result is not recorded.
        DelegateMade = "delegate-made",
        /// Other plugins have deleted the interface; the record is still there.
        DelegateDeleted = "delegate-deleted",
        /// The record is in phase *releasing*, perhaps not on the disk yet.
        ReleaseBegun = "release-begun",
        /// The VF is back in the host's namespace, or is not available now.
        ReleaseMoved = "release-moved",
        /// Phase *releasing* is on the disk.
        ReleaseRecorded = "release-recorded",
        /// The DPU has confirmed the release; the record is still there.
        ReleaseReported = "release-reported",
        /// The record is removed.
        ReleaseRemoved = "release-removed",
        /// A VF differs from its baseline; its reset is about to begin.
        ResetBegun = "reset-begun",
        /// The VF was reset; its link may not be there yet.
        ResetMade = "reset-made",
        /// The VF was reset, restored and verified.
        ResetVerified = "reset-verified",
        /// A DEL found no record; the DPU is not informed yet.
        DetachUnrecorded = "detach-unrecorded",
        /// A VF that fell out of its pod is in it again.
        PutBack = "put-back",
        /// At start, all records were compared with the kernel.
        StartReconciled = "start-reconciled",
        /// The DPU has accepted a new session, which is not used yet.
        SessionAccepted = "session-accepted",
        /// An inventory was sent to the DPU.
        InventorySent = "inventory-sent",
        /// A comparison of all records with the kernel ended, with the work that waited for it.
        PassEnded = "pass-ended",
    }
}

impl KillPoint {
    pub(super) fn kill_points() -> Vec<String> {
        [
            saga::kill_points(SPECULATIVE_STEPS, &[Way::Run]),
            saga::kill_points(INWARD_STEPS, &[Way::Run, Way::Undo]),
            saga::kill_points(ARRIVAL_STEPS, &[Way::Run]),
            saga::kill_points(OUTWARD_STEPS, &[Way::Run]),
            Self::ALL.iter().map(|name| (*name).to_owned()).collect(),
        ]
        .concat()
    }
}
