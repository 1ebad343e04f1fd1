//! Where between its steps the agent can be killed by a test.

use saga::Way;

use crate::mover::{ARRIVAL_STEPS, INWARD_STEPS, OUTWARD_STEPS, SPECULATIVE_STEPS};

saga::milestones! {
    /// A place between the steps of the agent's flows.
    pub(super) enum Milestone {
        /// It is recorded which VF the DPU is expected to give; that has not been touched.
        AttachGuessed = "attach-guessed",
        /// The VF that the DPU is expected to give is in the pod, down and under its own name.
        AttachAhead = "attach-ahead",
        /// The DPU has answered an attach; nothing of that is recorded.
        AttachAnswered = "attach-answered",
        /// It is recorded; its VF has not been touched.
        AttachRecorded = "attach-recorded",
        /// The pod has the VF; neither DPU nor runtime knows.
        AttachDone = "attach-done",
        /// It is recorded that the pod keeps it; nobody was answered.
        AttachKept = "attach-kept",
        /// The runtime's plugin was answered.
        AttachTold = "attach-told",
        /// It is recorded that other plugins are called for an interface; none was.
        DelegateRecorded = "delegate-recorded",
        /// They have made it; that is not recorded.
        DelegateMade = "delegate-made",
        /// They have taken it back; it is still recorded.
        DelegateDeleted = "delegate-deleted",
        /// The record says that the attachment is being given back, perhaps not yet on the disk.
        ReleaseBegun = "release-begun",
        /// The VF is home, or can't be had now.
        ReleaseMoved = "release-moved",
        /// That it is being given back is on the disk.
        ReleaseRecorded = "release-recorded",
        /// The DPU knows; the record is still there.
        ReleaseTold = "release-told",
        /// The record is forgotten.
        ReleaseForgotten = "release-forgotten",
        /// A VF is not as it was: it is about to be made anew.
        RenewalBegun = "renewal-begun",
        /// It was made anew; its link may not be there yet.
        RenewalMade = "renewal-made",
        /// What was made anew is restored and was looked at.
        RenewalProven = "renewal-proven",
        /// A DEL found no record; the DPU is not told yet.
        DetachUnrecorded = "detach-unrecorded",
        /// A VF that had fallen out of its pod is in it again.
        PutBack = "put-back",
        /// At start, all records were compared with the kernel.
        StartReconciled = "start-reconciled",
        /// The DPU has welcomed a new session; nobody uses it yet.
        SessionWelcomed = "session-welcomed",
        /// The DPU has been sent an inventory.
        InventorySent = "inventory-sent",
        /// All records were compared with the kernel, and all that waited for that is done.
        PassEnded = "pass-ended",
    }
}

impl Milestone {
    /// All points at which the agent can be killed, by name.
    pub(super) fn kill_points() -> Vec<String> {
        let ahead = saga::kill_points(SPECULATIVE_STEPS, &[Way::Run]).into_iter();
        let inward = saga::kill_points(INWARD_STEPS, &[Way::Run, Way::Undo]);
        let arrival = saga::kill_points(ARRIVAL_STEPS, &[Way::Run]);
        let outward = saga::kill_points(OUTWARD_STEPS, &[Way::Run]);
        ahead
            .chain(inward)
            .chain(arrival)
            .chain(outward)
            .chain(Self::ALL.iter().map(|name| (*name).to_owned()))
            .collect()
    }
}
