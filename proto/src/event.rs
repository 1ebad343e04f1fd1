//! The kinds of events.

use serde::{Deserialize, Serialize};

/// How much an event matters to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Part of normal operation.
    Normal,
    /// A person may have to act.
    Warning,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident, $severity:ident;)*) => {
        /// The kinds of events.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum EventKind { $($(#[doc = $doc])* $name,)* }

        impl EventKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, such as `AttachmentReserved`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The kind's meaning, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// How much events of this kind matter to a person.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    /// A VF, a MAC address and addresses were reserved.
    AttachmentReserved, Normal;
    /// The representor is programmed and forwards.
    AttachmentProgrammed, Normal;
    /// The host reported that the pod has the VF.
    AttachmentAttached, Normal;
    /// The attachment is being released.
    AttachmentReleasing, Normal;
    /// All resources of the attachment are free.
    AttachmentReleased, Normal;
    /// An attach failed and was undone. AttachRefused reports a failure of the DPU.
    AttachmentFailed, Normal;
    /// The attachment's host does not know it and has not returned its VF. The attachment is kept until the VF is back.
    AttachmentUnclaimed, Warning;
    /// A machine beyond the uplinks uses an address of the attachment.
    AddressConflict, Warning;
    /// The machine no longer uses the address.
    AddressConflictCleared, Normal;
    /// The pod differs from its attachment. The host's agent reports the difference.
    PodDiffers, Warning;
    /// The pod matches its attachment again.
    PodDiffersCleared, Normal;
    /// The pod of the attachment does not use a VF that the kubelet gave it.
    KubeletVfUnused, Warning;
    /// The pod has no unused VF of the kubelet any more.
    KubeletVfUnusedCleared, Normal;
    /// The kernel differed from the journal, and the service repaired it.
    Repaired, Normal;
    /// The kernel differs from the journal and could not be repaired.
    RepairFailed, Warning;
    /// A VF was quarantined and is not allocated any more.
    VfQuarantined, Warning;
    /// A VF was removed from quarantine and can be allocated again.
    VfCleared, Normal;
    /// The fabric lacks something that all ports share.
    FabricFailed, Warning;
    /// The fabric is complete again.
    FabricRestored, Normal;
    /// A host opened a session.
    HostConnected, Normal;
    /// A host renewed its connection; its session continues.
    HostRenewed, Normal;
    /// A host's session ended.
    HostDisconnected, Warning;
    /// A host is no longer in the configuration.
    HostRemoved, Normal;
    /// A connection or a call with a host's certificate was refused.
    HostRefused, Warning;
    /// The DPU refused a connection or a call of a peer that is none of its hosts.
    PeerRefused, Warning;
    /// A network was created or changed.
    NetworkApplied, Normal;
    /// A network was deleted.
    NetworkDeleted, Normal;
    /// The service stopped accepting new attachments, or accepts them again.
    Draining, Normal;
    /// The service started.
    ServiceStarted, Normal;
    /// The service stopped cleanly.
    ServiceStopped, Normal;
    /// The previous start of the service ended without a clean stop, or its stop could not be written.
    ServiceStopUnclean, Warning;
    /// The first configuration file is in force.
    ConfigurationLoaded, Normal;
    /// A changed configuration file is in force.
    ConfigurationReloaded, Normal;
    /// A changed configuration file is not in force, or only in part.
    ConfigurationRefused, Warning;
    /// The service uses a new certificate.
    CertificateRenewed, Normal;
    /// A new certificate was refused; the earlier one stays in use.
    CertificateRefused, Warning;
    /// The certificate expires soon.
    CertificateExpiring, Warning;
    /// The certificate has expired.
    CertificateExpired, Warning;
    /// The journal was missing although this was not the first start: the DPU has no record of running pods.
    JournalLost, Warning;
    /// The file of events was damaged; its readable events are kept.
    EventsDamaged, Warning;
    /// An ADD was refused or failed for a reason on the DPU.
    AttachRefused, Warning;
    /// A condition has turned false.
    ConditionFalse, Warning;
    /// A condition is true again.
    ConditionTrue, Normal;
    /// The state of a condition's subject can no longer be read.
    ConditionUnknown, Warning;
}

impl EventKind {
    /// The kind with that stable name. `None`: there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_and_meanings() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::named(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert!(kind.meaning().ends_with('.'), "{}", kind.meaning());
        }
    }
}
