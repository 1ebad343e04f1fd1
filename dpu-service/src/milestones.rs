//! Where between its steps the service can be killed by a test.

use saga::Way;

use crate::programmer::STEPS;

saga::milestones! {
    /// A place between the steps of the service's flows.
    pub enum Milestone {
        /// The record of a new attachment is in the journal; its representor may be half programmed.
        AttachRecorded = "attach-recorded",
        /// Record and programming are in place; the host has no answer yet.
        AttachProgrammed = "attach-programmed",
        /// A host waits for the port of an attachment whose VF is up; it has no answer yet.
        AttachAwaited = "attach-awaited",
        /// An attachment is marked in memory as being given back.
        ReleaseBegun = "release-begun",
        /// Its representor is unprogrammed; the journal may still have it.
        ReleaseUnprogrammed = "release-unprogrammed",
        /// The journal knows that it waits for its VF; its representor may still be programmed.
        ReleaseParked = "release-parked",
        /// It is gone from the journal; its representor may still be programmed.
        ReleaseFreed = "release-freed",
        /// What the runtime's garbage collection took is released; the host has no answer yet.
        Collected = "collected",
        /// A host has a new session; nothing of its hello is acted on.
        HelloOpened = "hello-opened",
        /// The pools know what the hello listed.
        HelloHeard = "hello-heard",
        /// All that the hello settles is settled; the host has no welcome yet.
        HelloSettled = "hello-settled",
        /// What an inventory frees is freed.
        InventorySettled = "inventory-settled",
        /// The reconciler has prepared the fabric and looked at the kernel.
        ReconcileSurveyed = "reconcile-surveyed",
        /// It has mended what serves attachments.
        ReconcileMended = "reconcile-mended",
        /// It has unprogrammed a representor that served nobody.
        PortCleared = "port-cleared",
        /// It has compared all.
        ReconcileEnded = "reconcile-ended",
    }
}

impl Milestone {
    /// All points at which the service can be killed, by name.
    #[must_use]
    pub fn kill_points() -> Vec<String> {
        let ways = [Way::Run, Way::Repair, Way::Undo];
        let steps = saga::kill_points(STEPS, &ways).into_iter();
        steps.chain(Self::ALL.iter().map(|name| (*name).to_owned())).collect()
    }
}
