//! Problems that an examination of hosts and DPU can find: a stable code, and what to do.

use std::fmt;

use crate::v1::{Finding, FindingState};

/// The advice for most findings.
const FIX: &str = "run `dpuctl doctor --fix`";

macro_rules! findings {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $advice:expr $(, after_fix: $left:literal)?;)*) => {
        /// Problems that an examination can find. The meaning of a code never changes; new codes may be added.
        /// docs/TROUBLESHOOTING.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FindingCode { $($(#[doc = $doc])* $name,)* }

        impl FindingCode {
            /// All findings, in the order of docs/TROUBLESHOOTING.md.
            pub const ALL: &'static [FindingCode] = &[$(FindingCode::$name,)*];

            /// The stable code, such as `VF_DIFFERS`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(FindingCode::$name => $text,)* }
            }

            /// The code's meaning, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(FindingCode::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// What to do about it, one clause without a final stop. `LINK` stands for a link's name.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(FindingCode::$name => $advice,)* }
            }

            /// What to do if `dpuctl doctor --fix` could not repair it: one clause without a final stop.
            #[must_use]
            pub fn advice_after_fix(self) -> &'static str {
                match self {
                    $($(FindingCode::$name => $left,)?)*
                    other => other.advice(),
                }
            }
        }
    };
}

findings! {
    /// An unused VF differs from its baseline: name, MAC address, MTU, or another setting.
    VfDiffers = "VF_DIFFERS", FIX,
        after_fix: "remove what is in the way: the agent tries again every 30 s";
    /// A VF is in a network namespace that no record names.
    VfElsewhere = "VF_ELSEWHERE", "stop the process that has it there, then run `dpuctl doctor --fix`",
        after_fix: "stop the pod that runs on it, or release its attachment with `dpuctl release`";
    /// A VF has no driver and so no netdev.
    VfUnbound = "VF_UNBOUND", FIX,
        after_fix: "see the kernel's log on the host for why no driver takes it";
    /// A VF has a driver, but its netdev cannot be found.
    VfNowhere = "VF_NOWHERE", "find the namespace or program that holds it, or bind its driver again";
    /// The DPU has a VF's representor, but its host does not know the VF.
    VfUnknownToHost = "VF_UNKNOWN_TO_HOST", "look for the VF on its host, and at the agent's `vf_source`";
    /// An attachment's VF is not in its pod.
    PodVfMissing = "POD_VF_MISSING", "run `dpuctl doctor --fix`, or recreate the pod",
        after_fix: "recreate the pod";
    /// A pod's interface differs from its attachment.
    PodDiffers = "POD_DIFFERS", FIX, after_fix: "recreate the pod";
    /// A pod does not use a VF that the kubelet gave it: the container's environment names a VF that the pod does not have.
    KubeletVfUnused = "KUBELET_VF_UNUSED", "attach the pod to a network of that VF's pool, or have it ask for no VF of that pool, and recreate it";
    /// A host port is missing or differs.
    HostPortMissing = "HOST_PORT_MISSING", "repair what the message names, or change `[[host_port]]` in the agent's file";
    /// Another plugin has not removed what it created.
    DelegateLeft = "DELEGATE_LEFT", "repair what the message names: the plugins are called again by themselves",
        after_fix: "repair what the message names, or give it up as docs/TROUBLESHOOTING.md says";
    /// An attachment is in release and not freed yet.
    ReleasePending = "RELEASE_PENDING", "run `dpuctl doctor --fix`; see `dpuctl describe attachment`",
        after_fix: "see `dpuctl describe attachment`: it ends once its VF is back on the host";
    /// Host and DPU have different VFs, MAC addresses or IP addresses in their records of an
    /// attachment.
    RecordsDiffer = "RECORDS_DIFFER", "recreate the pod: it is not known which of the records is right";
    /// The DPU has an attachment of which its host has no record.
    AttachmentUnclaimed = "ATTACHMENT_UNCLAIMED", "release it with `dpuctl release` once its pod is gone";
    /// The host has a record of an attachment that the DPU does not have.
    AttachmentUnrecorded = "ATTACHMENT_UNRECORDED", "recreate the pod: the DPU forwards nothing for it";
    /// A VF in use has no representor on the DPU.
    RepresentorMissing = "REPRESENTOR_MISSING", "look at the card: its eswitch mode, and whether it was reset";
    /// A representor's programming differs from its attachment.
    RepresentorDiffers = "REPRESENTOR_DIFFERS", "wait: the service programs it again within a minute",
        after_fix: "repair what the message or the service's log names: the service tries again each minute";
    /// A representor forwards although its VF has no attachment.
    RepresentorUnattached = "REPRESENTOR_UNATTACHED", "wait: the service removes it from the fabric within a minute",
        after_fix: "see the service's log for the step that failed";
    /// The representor of a free VF is a port of another bridge.
    RepresentorTaken = "REPRESENTOR_TAKEN",
        "remove it there: `ip link set LINK nomaster`, or `ovs-vsctl del-port LINK`";
    /// An uplink of the configuration does not exist.
    UplinkMissing = "UPLINK_MISSING", "bring the link back, or correct `uplinks` in the service's configuration";
    /// An uplink is not in the fabric.
    UplinkNotJoined = "UPLINK_NOT_JOINED",
        "remove it from another bridge or bond with `ip link set LINK nomaster`: the service joins it within a minute";
    /// An uplink is switched off.
    UplinkDown = "UPLINK_DOWN", "switch it on: `ip link set LINK up`";
    /// An uplink is switched on and has no carrier.
    UplinkWithoutCarrier = "UPLINK_WITHOUT_CARRIER",
        "check the cable, the transceiver and the port of the switch, and `ethtool LINK`";
    /// A machine beyond the uplinks uses an attachment's address.
    AddressConflict = "ADDRESS_CONFLICT",
        "take the address from that machine; or add it to `exclude` of the network's subnet and recreate the pod";
    /// A pod uses a gateway that its network no longer has.
    GatewayGone = "GATEWAY_GONE", "recreate the pod: it keeps the gateway of its attach until it ends";
    /// A VF is in quarantine and is not allocated.
    VfQuarantined = "VF_QUARANTINED", "repair the cause, then run `dpuctl clear-quarantine`";
    /// A host has no session.
    HostNotConnected = "HOST_NOT_CONNECTED", "run `host-shim-agent status` on the host, and check the management link";
    /// A host could not be examined.
    HostNotExamined = "HOST_NOT_EXAMINED", "upgrade the host's agent, or try again with a longer --timeout";
    /// A certificate in use expires soon, or has expired.
    CertificateExpires = "CERTIFICATE_EXPIRES", "renew it: the files are read again by themselves";
    /// A problem of the service that `dpuctl status` reports.
    ServiceProblem = "SERVICE_PROBLEM", "repair what the message names; the service's log says when it began";
}

impl FindingCode {
    /// A finding on `subject` with the sentence `message`.
    pub fn of(self, subject: impl fmt::Display, message: impl Into<String>) -> Finding {
        Finding {
            code: self.as_str().into(),
            subject: subject.to_string(),
            message: message.into(),
            state: FindingState::Found.into(),
            advice: self.advice().into(),
            ..Finding::default()
        }
    }

    /// A finding on `subject`, whose link has the name `link`.
    pub fn of_link(
        self,
        link: &str,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) -> Finding {
        Finding { advice: self.advice_for(link), ..self.of(subject, message) }
    }

    /// The advice with the link's name.
    #[must_use]
    pub fn advice_for(self, link: &str) -> String {
        self.advice().replace("LINK", link)
    }

    fn named(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|finding| finding.as_str() == code)
    }
}

impl Finding {
    /// Marks it as not repaired, with the reason if known. Replaces the advice, which must not suggest the failed
    /// repair again. A finding of a later version keeps its advice.
    pub fn set_not_repaired(&mut self, why: impl Into<String>) {
        self.set_state(FindingState::NotRepaired);
        self.explain(why);
    }

    /// Adds the reason why it is not repaired yet, if known, and replaces the advice, which must not suggest waiting.
    pub fn explain(&mut self, why: impl Into<String>) {
        let why = why.into();
        if !why.is_empty() {
            self.why = why;
        }
        if let Some(finding) = FindingCode::named(&self.code)
            && self.advice == finding.advice()
        {
            self.advice = finding.advice_after_fix().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique() {
        let codes: HashSet<_> = FindingCode::ALL.iter().map(|finding| finding.as_str()).collect();
        assert_eq!(codes.len(), FindingCode::ALL.len());
    }

    #[test]
    fn advice_after_failed_repair_is_not_fix() {
        for finding in FindingCode::ALL {
            let mut found = finding.of("pf0vf3", "it differs");
            found.set_not_repaired("busy");
            assert!(!found.advice.is_empty() && !found.advice.contains("--fix"), "{found:?}");
            assert_eq!((found.state(), found.why.as_str()), (FindingState::NotRepaired, "busy"));
        }
    }

    #[test]
    fn advice_of_later_version_stays() {
        let mut found = Finding {
            code: "LATER".into(),
            advice: "wait".into(),
            ..FindingCode::VfDiffers.of("pf0vf3", "it differs")
        };
        found.set_not_repaired("");
        assert_eq!(found.advice, "wait");
    }
}
