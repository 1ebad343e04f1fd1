//! What a look at hosts and DPU may find: a stable code, and what to do about it.

use std::fmt;

use crate::v1::{Difference, DifferenceState};

macro_rules! findings {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $advice:literal;)*) => {
        /// What may be found that is not as it should be. The codes' meaning never changes; new ones may
        /// be added. docs/TROUBLESHOOTING.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Finding { $($(#[$doc])* $name,)* }

        impl Finding {
            /// All findings, in the order of docs/TROUBLESHOOTING.md.
            pub const ALL: &'static [Finding] = &[$(Finding::$name,)*];

            /// The stable code, such as `VF_DIFFERS`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Finding::$name => $text,)* }
            }

            /// What to do about it, one clause without a final stop.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Finding::$name => $advice,)* }
            }
        }
    };
}

findings! {
    /// A VF that nobody uses is not as its own: name, MAC address, MTU, or another setting.
    VfDiffers = "VF_DIFFERS", "run `dpuctl doctor --fix`";
    /// A VF is in a network namespace that no record names.
    VfElsewhere = "VF_ELSEWHERE", "stop who has it there, then run `dpuctl doctor --fix`";
    /// A VF has no driver, and so no netdev.
    VfUnbound = "VF_UNBOUND", "write its PCI address to /sys/bus/pci/drivers_probe";
    /// A VF has a driver, and no netdev that can be found.
    VfNowhere = "VF_NOWHERE", "find the namespace or program that holds it, or bind its driver anew";
    /// The DPU has a VF's representor, and its host does not know the VF.
    VfUnknownToHost = "VF_UNKNOWN_TO_HOST", "look for the VF on its host, and at the agent's `vf_source`";
    /// An attachment's VF is not in its pod.
    PodVfMissing = "POD_VF_MISSING", "run `dpuctl doctor --fix`, or recreate the pod";
    /// A pod's interface is not as its attachment wants it.
    PodDiffers = "POD_DIFFERS", "run `dpuctl doctor --fix`";
    /// An attachment is being given back, and that is not at its end.
    ReleasePending = "RELEASE_PENDING", "run `dpuctl doctor --fix`; see `dpuctl describe attachment`";
    /// The DPU has an attachment of which its host has no record.
    AttachmentUnknownToHost = "ATTACHMENT_UNKNOWN_TO_HOST", "release it with `dpuctl release` once its pod is gone";
    /// The host has a record of an attachment that the DPU does not have.
    AttachmentUnknownToDpu = "ATTACHMENT_UNKNOWN_TO_DPU", "recreate the pod: the DPU forwards nothing for it";
    /// A VF that is used has no representor on the DPU.
    NoRepresentor = "NO_REPRESENTOR", "look at the card: its eswitch mode, and whether it was reset";
    /// A representor is not programmed as its attachment wants it.
    RepresentorDiffers = "REPRESENTOR_DIFFERS", "run `dpuctl doctor --fix`; the service's log has the kernel's words";
    /// A representor forwards though its VF serves nobody.
    RepresentorServesNobody = "REPRESENTOR_SERVES_NOBODY", "run `dpuctl doctor --fix`";
    /// A VF is not handed out.
    VfQuarantined = "VF_QUARANTINED", "mend the cause, then run `dpuctl clear-quarantine`";
    /// A host has no session.
    HostNotConnected = "HOST_NOT_CONNECTED", "see `systemctl status dpu-offload-agent` on the host, and the management link";
    /// A host's half could not be looked at.
    HostNotExamined = "HOST_NOT_EXAMINED", "upgrade the host's agent, or try again with a longer --timeout";
    /// A certificate that is in use will expire soon, or has.
    CertificateExpires = "CERTIFICATE_EXPIRES", "renew it: the files are read again by themselves";
    /// What `dpuctl status` names.
    ServiceProblem = "SERVICE_PROBLEM", "see the service's log";
}

impl Finding {
    /// It was found on `subject`, as the sentence `message` tells.
    pub fn of(self, subject: impl fmt::Display, message: impl Into<String>) -> Difference {
        Difference {
            code: self.as_str().into(),
            subject: subject.to_string(),
            message: message.into(),
            state: DifferenceState::Found.into(),
            advice: self.advice().into(),
            ..Difference::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique() {
        let codes: HashSet<_> = Finding::ALL.iter().map(|finding| finding.as_str()).collect();
        assert_eq!(codes.len(), Finding::ALL.len());
    }
}
