//! What a look at hosts and DPU may find: a stable code, and what to do about it.

use std::fmt;

use crate::v1::{Difference, DifferenceState};

/// What mends most things.
const FIX: &str = "run `dpuctl doctor --fix`";

macro_rules! findings {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $advice:expr $(, unmended: $left:literal)?;)*) => {
        /// What may be found that is not as it should be. The codes' meaning never changes; new ones may
        /// be added. docs/TROUBLESHOOTING.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Finding { $($(#[doc = $doc])* $name,)* }

        impl Finding {
            /// All findings, in the order of docs/TROUBLESHOOTING.md.
            pub const ALL: &'static [Finding] = &[$(Finding::$name,)*];

            /// The stable code, such as `VF_DIFFERS`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Finding::$name => $text,)* }
            }

            /// What it means, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Finding::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// What to do about it, one clause without a final stop. `LINK` stands for a link's name.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Finding::$name => $advice,)* }
            }

            /// What is left to do once `dpuctl doctor --fix` could not mend it, likewise.
            #[must_use]
            pub fn advice_unmended(self) -> &'static str {
                match self {
                    $($(Finding::$name => $left,)?)*
                    other => other.advice(),
                }
            }
        }
    };
}

findings! {
    /// A VF that nobody uses is not as its own: name, MAC address, MTU, or another setting.
    VfDiffers = "VF_DIFFERS", FIX,
        unmended: "remove what is in the way: the agent tries again every 30 s";
    /// A VF is in a network namespace that no record names.
    VfElsewhere = "VF_ELSEWHERE", "stop who has it there, then run `dpuctl doctor --fix`",
        unmended: "stop the pod that runs on it, or release its attachment with `dpuctl release`";
    /// A VF has no driver, and so no netdev.
    VfUnbound = "VF_UNBOUND", FIX,
        unmended: "see the kernel's log on the host for why no driver takes it";
    /// A VF has a driver, and no netdev that can be found.
    VfNowhere = "VF_NOWHERE", "find the namespace or program that holds it, or bind its driver anew";
    /// The DPU has a VF's representor, and its host does not know the VF.
    VfUnknownToHost = "VF_UNKNOWN_TO_HOST", "look for the VF on its host, and at the agent's `vf_source`";
    /// An attachment's VF is not in its pod.
    PodVfMissing = "POD_VF_MISSING", "run `dpuctl doctor --fix`, or recreate the pod",
        unmended: "recreate the pod";
    /// A pod's interface is not as its attachment wants it.
    PodDiffers = "POD_DIFFERS", FIX, unmended: "recreate the pod";
    /// A pod does not use a VF that the kubelet gave it: the container's environment names a VF that the pod does not have.
    KubeletVfUnused = "KUBELET_VF_UNUSED", "attach the pod to a network of that VF's pool, or have it ask for no VF of that pool, and recreate it";
    /// A port of the host itself is not in place.
    HostPortMissing = "HOST_PORT_MISSING", "mend what the message names, or change `[[host_port]]` in the agent's file";
    /// Other plugins have not taken back what they made.
    DelegateLeft = "DELEGATE_LEFT", "mend what the message names: the plugins are called again by themselves",
        unmended: "mend what the message names, or give it up as docs/TROUBLESHOOTING.md says";
    /// An attachment is being given back, and that is not at its end.
    ReleasePending = "RELEASE_PENDING", "run `dpuctl doctor --fix`; see `dpuctl describe attachment`",
        unmended: "see `dpuctl describe attachment`: it ends once its VF is back on the host";
    /// Host and DPU have different VFs, MAC addresses or IP addresses in their records of an
    /// attachment.
    RecordsDiffer = "RECORDS_DIFFER", "recreate the pod: it is not known which of the records is right";
    /// The DPU has an attachment of which its host has no record.
    AttachmentUnknownToHost = "ATTACHMENT_UNKNOWN_TO_HOST", "release it with `dpuctl release` once its pod is gone";
    /// The host has a record of an attachment that the DPU does not have.
    AttachmentUnknownToDpu = "ATTACHMENT_UNKNOWN_TO_DPU", "recreate the pod: the DPU forwards nothing for it";
    /// A VF that is used has no representor on the DPU.
    NoRepresentor = "NO_REPRESENTOR", "look at the card: its eswitch mode, and whether it was reset";
    /// A representor is not programmed as its attachment wants it.
    RepresentorDiffers = "REPRESENTOR_DIFFERS", "wait: the service programs it again within a minute",
        unmended: "repair what the message or the service's log names: the service tries again each minute";
    /// A representor forwards though its VF serves nobody.
    RepresentorServesNobody = "REPRESENTOR_SERVES_NOBODY", "wait: the service takes it out within a minute",
        unmended: "see the service's log for the step that failed";
    /// The representor of a free VF is a port of something else than the fabric.
    RepresentorTaken = "REPRESENTOR_TAKEN",
        "take it out there: `ip link set LINK nomaster`, or `ovs-vsctl del-port LINK`";
    /// A link that the configuration names as an uplink does not exist.
    UplinkMissing = "UPLINK_MISSING", "bring the link back, or correct `uplinks` in the service's configuration";
    /// An uplink is not in the fabric.
    UplinkNotJoined = "UPLINK_NOT_JOINED",
        "take it out of another bridge or bond with `ip link set LINK nomaster`: the service joins it within a minute";
    /// An uplink is switched off.
    UplinkDown = "UPLINK_DOWN", "switch it on: `ip link set LINK up`";
    /// An uplink is switched on and has no carrier.
    UplinkWithoutCarrier = "UPLINK_WITHOUT_CARRIER",
        "check the cable, the transceiver and the port of the switch, and `ethtool LINK`";
    /// A machine beyond the uplinks uses an attachment's address.
    AddressConflict = "ADDRESS_CONFLICT",
        "take the address from that machine; or add it to `exclude` of the network's subnet and recreate the pod";
    /// A pod uses a gateway that its network no longer has.
    FormerGateway = "FORMER_GATEWAY", "recreate the pod: it keeps the gateway of its attach until it ends";
    /// A VF is not handed out.
    VfQuarantined = "VF_QUARANTINED", "repair the cause, then run `dpuctl clear-quarantine`";
    /// A host has no session.
    HostNotConnected = "HOST_NOT_CONNECTED", "run `host-shim-agent status` on the host, and check the management link";
    /// A host's half could not be looked at.
    HostNotExamined = "HOST_NOT_EXAMINED", "upgrade the host's agent, or try again with a longer --timeout";
    /// A certificate that is in use will expire soon, or has.
    CertificateExpires = "CERTIFICATE_EXPIRES", "renew it: the files are read again by themselves";
    /// What `dpuctl status` names.
    ServiceProblem = "SERVICE_PROBLEM", "mend what the message names; the service's log tells since when it is so";
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

    /// It was found on `subject`, which has the link of that name.
    pub fn of_link(
        self,
        link: &str,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) -> Difference {
        Difference { advice: self.advice_for(link), ..self.of(subject, message) }
    }

    /// What to do about it, for the link of that name.
    #[must_use]
    pub fn advice_for(self, link: &str) -> String {
        self.advice().replace("LINK", link)
    }

    fn named(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|finding| finding.as_str() == code)
    }
}

impl Difference {
    /// Notes that it could not be mended and, if that is known, why: what is advised then is no more
    /// to try that. A finding of a later version keeps its advice.
    pub fn set_unmended(&mut self, why: impl Into<String>) {
        self.set_state(DifferenceState::Unmended);
        self.explain(why);
    }

    /// Notes why it is not mended by itself, if that is known. What is advised then is no more to wait for that or
    /// to try it.
    pub fn explain(&mut self, why: impl Into<String>) {
        let why = why.into();
        if !why.is_empty() {
            self.why = why;
        }
        if let Some(finding) = Finding::named(&self.code)
            && self.advice == finding.advice()
        {
            self.advice = finding.advice_unmended().into();
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

    #[test]
    fn nobody_is_advised_to_try_again_what_has_failed() {
        for finding in Finding::ALL {
            let mut found = finding.of("pf0vf3", "it differs");
            found.set_unmended("busy");
            assert!(!found.advice.is_empty() && !found.advice.contains("--fix"), "{found:?}");
            assert_eq!((found.state(), found.why.as_str()), (DifferenceState::Unmended, "busy"));
        }
    }

    #[test]
    fn the_advice_of_a_later_version_stays() {
        let mut found = Difference {
            code: "LATER".into(),
            advice: "wait".into(),
            ..Finding::VfDiffers.of("pf0vf3", "it differs")
        };
        found.set_unmended("");
        assert_eq!(found.advice, "wait");
    }
}
