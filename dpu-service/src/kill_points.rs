//! Kill points between the steps of flows, for tests.

use saga::Way;

use drivers::programmer::STEPS;

saga::kill_points! {
    /// A kill point between the steps of the service's flows.
    pub enum KillPoint {
        /// The record of a new attachment is in the journal; its representor may be half programmed.
        AttachRecorded = "attach-recorded",
        /// Record and programming are in place; the host has no answer yet.
        AttachProgrammed = "attach-programmed",
        /// A host waits for the port of an attachment whose VF is up; it has no answer yet.
        AttachAwaited = "attach-awaited",
        /// An attachment is marked in memory as releasing.
        ReleaseBegun = "release-begun",
        /// Its representor is unprogrammed; the journal may still have it.
        ReleaseUnprogrammed = "release-unprogrammed",
        /// The journal has the attachment as releasing until its VF returns; its representor may still be programmed.
        ReleaseParked = "release-parked",
        /// The journal has deleted the attachment; its representor may still be programmed.
        ReleaseFreed = "release-freed",
        /// Garbage collection has released its attachments; the host has no answer yet.
        Collected = "collected",
        /// A host has a new session; its hello is not processed yet.
        HelloOpened = "hello-opened",
        /// The pools have the hello's inventory.
        HelloProcessed = "hello-processed",
        /// All consequences of the hello were carried out; the host has no reply yet.
        HelloSettled = "hello-settled",
        /// The attachments that an inventory returned are freed.
        InventorySettled = "inventory-settled",
        /// The reconciler has prepared the fabric and surveyed the kernel.
        ReconcileSurveyed = "reconcile-surveyed",
        /// It has repaired the representors of attachments.
        ReconcileRepaired = "reconcile-repaired",
        /// It has unprogrammed a representor without an attachment.
        PortCleared = "port-cleared",
        /// It has compared everything.
        ReconcileEnded = "reconcile-ended",
    }
}

impl KillPoint {
    /// Names of all points at which the service can be killed.
    pub fn kill_points() -> Vec<String> {
        let ways = [Way::Run, Way::Repair, Way::Undo];
        let steps = saga::kill_points(STEPS, &ways).into_iter();
        steps.chain(Self::ALL.iter().map(|name| (*name).to_owned())).collect()
    }
}
