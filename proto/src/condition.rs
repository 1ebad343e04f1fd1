//! Why a condition of a DPU is not true: a stable code, and the delays until the condition changes.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    Reason,
    v1::{ConditionStatus, ConditionType},
};

/// The code of a condition that is true.
pub const AS_EXPECTED: &str = "AS_EXPECTED";

const NOW: Duration = Duration::ZERO;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $kind:ident, $pods:literal, $begins:expr, $ends:expr, $advice:literal;)*) => {
        /// Why a condition is false or unknown. The meaning of a code never changes; new codes may be added.
        /// docs/CONDITIONS.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ConditionReason { $($(#[doc = $doc])* $name,)* }

        impl ConditionReason {
            /// All reasons, in the order of docs/CONDITIONS.md.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable code, such as `UPLINK_DOWN`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The code's meaning, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// The condition that it makes false or unknown.
            #[must_use]
            pub const fn condition(self) -> ConditionType {
                match self { $(Self::$name => ConditionType::$kind,)* }
            }

            /// Whether pods lose traffic or new pods cannot start.
            #[must_use]
            pub const fn affects_pods(self) -> bool {
                match self { $(Self::$name => $pods,)* }
            }

            /// What to do about it, one clause without a final stop. `LINK` stands for a link's name.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }

            /// How long the problem must last before the condition changes.
            #[must_use]
            pub const fn begins_after(self) -> Duration {
                match self { $(Self::$name => $begins,)* }
            }

            /// How long the problem must be over before the condition is true again.
            #[must_use]
            pub const fn ends_after(self) -> Duration {
                match self { $(Self::$name => $ends,)* }
            }
        }
    };
}

reasons! {
    /// A problem of `JournalWritable` or `FabricReady` prevents all attaches, or one of `CertificatesValid` those of
    /// hosts without a session.
    NotServing = "NOT_SERVING", Ready, true, NOW, seconds(5),
        "see the condition that the message names";
    /// The DPU takes no new attachments for now.
    Draining = "DRAINING", Ready, true, NOW, NOW,
        "wait for the next service, or start it: `systemctl start dpu-offload-service`";
    /// The fabric or the eswitch cannot be prepared or read.
    FabricUnavailable = "FABRIC_UNAVAILABLE", FabricReady, true, NOW, seconds(2),
        "bring back what the message names, such as Open vSwitch, or correct `[fabric]` in the service's file";
    /// A part of the fabric is missing, such as an uplink, or another program's bridge runs STP.
    FabricIncomplete = "FABRIC_INCOMPLETE", FabricReady, true, NOW, seconds(2),
        "bring back the link or bridge that the message names, switch STP off, or correct `[fabric]` in the service's file";
    /// The eswitch or the fabric cannot serve some ports correctly.
    PortsUnserved = "PORTS_UNSERVED", FabricReady, false, seconds(2), NOW,
        "compare `dpuctl describe dpu` with what the networks require; undo what other programs changed in the fabric";
    /// A gateway on this DPU has a problem.
    GatewayBroken = "GATEWAY_BROKEN", FabricReady, true, NOW, NOW,
        "remove what the message names: the service creates the gateway again within a minute";
    /// An uplink is switched off.
    UplinkDown = "UPLINK_DOWN", UplinksUp, true, seconds(1), seconds(2),
        "switch it on: `ip link set LINK up`";
    /// An uplink is switched on and has no carrier.
    UplinkWithoutCarrier = "UPLINK_WITHOUT_CARRIER", UplinksUp, true, seconds(1), seconds(2),
        "check the cable, the transceiver and the port of the switch, and `ethtool LINK`";
    /// An uplink does not exist.
    UplinkMissing = "UPLINK_MISSING", UplinksUp, true, seconds(1), NOW,
        "bring the link back, or correct `uplinks` in the service's file";
    /// The state of the uplinks cannot be read.
    UplinksUnreadable = "UPLINKS_UNREADABLE", UplinksUp, false, seconds(2), NOW,
        "see the service's log, and the kernel's";
    /// ADDs were refused: the pool has no free VF.
    VfsExhausted = "VFS_EXHAUSTED", AttachesServed, true, NOW, NOW,
        "end pods, give the pool more VFs, or use another pool: `dpuctl get pools`";
    /// ADDs were refused: a subnet has no free address.
    AddressesExhausted = "ADDRESSES_EXHAUSTED", AttachesServed, true, NOW, NOW,
        "end pods, or add a subnet: `dpuctl add subnet --help`";
    /// ADDs failed: the kernel refused to program a port.
    ProgrammingFailed = "PROGRAMMING_FAILED", AttachesServed, true, NOW, NOW,
        "run `dpuctl doctor`; `dpuctl events` has the step that failed";
    /// ADDs were refused: the fabric takes no more ports.
    FabricFull = "FABRIC_FULL", AttachesServed, true, NOW, NOW,
        "end pods, or use Open vSwitch: a Linux bridge has at most 1023 ports";
    /// ADDs of a host failed: the journal can't be written.
    JournalUnavailable = "JOURNAL_UNAVAILABLE", AttachesServed, true, NOW, NOW,
        "make room on the disk of `state_dir`, and see that it can be written: the service tries again by itself";
    /// ADDs of a host failed: the state of the DPU's kernel or fabric cannot be read.
    PortsUnreadable = "PORTS_UNREADABLE", AttachesServed, true, NOW, NOW,
        "see the message: the service asks again at each ADD";
    /// ADDs of a host failed: its agent can't write its records.
    RecordsUnavailable = "RECORDS_UNAVAILABLE", AttachesServed, true, NOW, NOW,
        "make room on the disk of the agent's `state_dir`, and see that it can be written";
    /// ADDs of a host failed: the VF could not be moved into the pod or configured there.
    MoveFailed = "MOVE_FAILED", AttachesServed, true, NOW, NOW,
        "run `dpuctl doctor`, and `host-shim-agent status` on the host";
    /// ADDs of a host failed: it can't find the VF that this DPU chose.
    VfMissing = "VF_MISSING", AttachesServed, true, NOW, NOW,
        "run `dpuctl get vfs`; on the host, see which driver or network namespace has the VF";
    /// ADDs of a host failed: its kubelet does not report which VF it gave the pod.
    KubeletFailed = "KUBELET_FAILED", AttachesServed, true, NOW, NOW,
        "see that the kubelet runs, and that `device_plugin.pod_resources` of the agent is its socket";
    /// ADDs of a host failed in other CNI plugins.
    DelegateFailed = "DELEGATE_FAILED", AttachesServed, true, NOW, NOW,
        "see what the message says of the plugin, and its network's file in the agent's `delegates.networks`";
    /// Three ADDs of a host failed in a row: files, memory or call slots were used up.
    Overloaded = "OVERLOADED", AttachesServed, true, NOW, NOW,
        "raise the limit that the message names, or find what uses it up";
    /// Three ADDs of a host failed in a row: they exceeded their callers' time limits.
    DeadlineExceeded = "DEADLINE_EXCEEDED", AttachesServed, true, NOW, NOW,
        "see which phase takes long: `dpuctl top --phases`";
    /// ADDs of a host failed because of a defect of dpu-offload.
    Internal = "INTERNAL", AttachesServed, true, NOW, NOW,
        "send a bug report with the archive of `dpuctl bundle`";
    /// All VFs of a pool that are not in use are in quarantine.
    PoolQuarantined = "POOL_QUARANTINED", AttachesServed, false, NOW, NOW,
        "repair what `dpuctl get vfs` says of each VF, then run `dpuctl clear-quarantine`";
    /// The journal can't be written.
    JournalNotWritable = "JOURNAL_NOT_WRITABLE", JournalWritable, true, NOW, seconds(10),
        "make room on the disk of `state_dir`, and see that it can be written: the service tries again by itself";
    /// Events are dropped: their file cannot be written.
    EventsNotWritten = "EVENTS_NOT_WRITTEN", JournalWritable, false, NOW, seconds(10),
        "make room on the disk of `state_dir`: the service tries again by itself; see `dpuctl events` before it ends";
    /// A host has no session.
    HostNotConnected = "HOST_NOT_CONNECTED", HostsConnected, true, seconds(5), NOW,
        "run `host-shim-agent status` on the host, and check the management link";
    /// A host that was removed from the configuration has attachments.
    HostRemoved = "HOST_REMOVED", HostsConnected, false, NOW, NOW,
        "put its `[[host]]` back, or run `dpuctl release --host`";
    /// Attachments have no representor.
    RepresentorMissing = "REPRESENTOR_MISSING", PodsConnected, true, NOW, NOW,
        "look at the card: its eswitch mode, and whether it was reset";
    /// Representors cannot be programmed as their attachments require.
    RepairFailed = "REPAIR_FAILED", PodsConnected, true, seconds(2), NOW,
        "run `dpuctl doctor`: it names the cause of each";
    /// A host has VFs in pods that the journal does not know: their ports are closed.
    AttachmentUnrecorded = "ATTACHMENT_UNRECORDED", PodsConnected, true, NOW, NOW,
        "recreate the pods on these VFs: their ports stay closed";
    /// Attachments use a gateway that their network no longer has.
    GatewayGone = "GATEWAY_GONE", PodsConnected, true, NOW, NOW,
        "recreate the pods: each keeps the gateway of its ADD until it ends";
    /// A host's agent reports pods whose interfaces, addresses or routes differ from their attachments.
    PodDiffers = "POD_DIFFERS", PodsConnected, true, NOW, NOW,
        "run `dpuctl doctor`, and then `dpuctl doctor --fix`, or recreate the pods";
    /// Machines beyond the uplinks use addresses of attachments.
    AddressConflict = "ADDRESS_CONFLICT", PodsConnected, true, NOW, NOW,
        "take the address from that machine; or add it to `exclude` of the subnet and recreate the pod";
    /// An attachment has an address that its network now uses for something else.
    AddressTaken = "ADDRESS_TAKEN", PodsConnected, true, NOW, NOW,
        "use another address in the network, or recreate the pod that has it";
    /// A host neither knows some attachments nor has returned their VFs.
    AttachmentUnclaimed = "ATTACHMENT_UNCLAIMED", PodsConnected, false, NOW, NOW,
        "release the attachments whose pods are gone: `dpuctl release`";
    /// Attachments stay in Releasing.
    ReleaseStuck = "RELEASE_STUCK", PodsConnected, false, NOW, NOW,
        "see that the host's agent runs, and `dpuctl describe attachment`";
    /// This DPU's certificate has expired.
    CertificateExpired = "CERTIFICATE_EXPIRED", CertificatesValid, true, NOW, NOW,
        "renew it: the files are read again by themselves";
    /// This DPU's clock shows a time before its certificate's first moment.
    CertificateNotYetValid = "CERTIFICATE_NOT_YET_VALID", CertificatesValid, true, NOW, NOW,
        "set the DPU's clock, and see that it is synchronised, such as by NTP";
    /// This DPU's certificate expires soon.
    CertificateExpiring = "CERTIFICATE_EXPIRING", CertificatesValid, false, NOW, NOW,
        "renew it: the files are read again by themselves";
    /// Replaced certificate files are refused.
    CertificateRefused = "CERTIFICATE_REFUSED", CertificatesValid, false, NOW, NOW,
        "correct the files that the message names: they are read again by themselves";
    /// The kernel handles traffic of attachments that the card should.
    RulesInSoftware = "RULES_IN_SOFTWARE", Offloaded, false, NOW, NOW,
        "turn hardware offload on: `ethtool -K LINK hw-tc-offload on`, `hw-offload` of Open vSwitch";
    /// The card's offload state cannot be read.
    TrafficUnreadable = "TRAFFIC_UNREADABLE", Offloaded, false, NOW, NOW,
        "see the service's log";
    /// The configuration file is not in force as written.
    ConfigurationRefused = "CONFIGURATION_REFUSED", ConfigurationApplied, false, NOW, NOW,
        "correct the file, or end the attachments in its way: the service tries within 2 s; restart it if the message says so";
    /// The configuration file of a host's agent is not in force.
    HostConfigurationRefused = "HOST_CONFIGURATION_REFUSED", ConfigurationApplied, false, NOW, NOW,
        "correct the file that the message names, and send the agent SIGHUP";
    /// No network exists, so that no pod can attach.
    NoNetworks = "NO_NETWORKS", ConfigurationApplied, false, NOW, NOW,
        "add a `[[network]]` to the service's file, or run `dpuctl apply`";
    /// A network of the API is not in force.
    NetworkSuspended = "NETWORK_SUSPENDED", ConfigurationApplied, false, NOW, NOW,
        "change or delete the network, or what the message names";
    /// A network's MTU is larger than an uplink's.
    MtuTooLarge = "MTU_TOO_LARGE", ConfigurationApplied, false, NOW, NOW,
        "give the network a smaller `mtu`, or the uplink a larger one";
    /// Cards of a network's pool can't do what the network requires.
    NetworkUnsupported = "NETWORK_UNSUPPORTED", ConfigurationApplied, false, NOW, NOW,
        "leave out what the cards can't do: `dpuctl describe dpu`";
    /// A network shares a subnet with a host port's network.
    SubnetConflict = "SUBNET_CONFLICT", ConfigurationApplied, false, NOW, NOW,
        "use another subnet, or delete the host port";
    /// A pool selects VFs of a PF that no host has.
    PoolWithoutHost = "POOL_WITHOUT_HOST", ConfigurationApplied, false, NOW, NOW,
        "add the PF to `pfs` of its `[[host]]`, or change the pool";
}

impl ConditionReason {
    /// The status of the condition while it holds.
    #[must_use]
    pub const fn status(self) -> ConditionStatus {
        match self {
            Self::UplinksUnreadable | Self::TrafficUnreadable => ConditionStatus::Unknown,
            _ => ConditionStatus::False,
        }
    }

    /// The reason by which a refused ADD makes a condition false. `None`: the refusal is the caller's affair, or passes
    /// without action. What networks require and cards cannot do is `NetworkUnsupported`.
    #[must_use]
    pub const fn of_refusal(refusal: Reason) -> Option<Self> {
        match refusal {
            Reason::VfsExhausted => Some(Self::VfsExhausted),
            Reason::AddressesExhausted => Some(Self::AddressesExhausted),
            Reason::ProgrammingFailed => Some(Self::ProgrammingFailed),
            Reason::FabricFull => Some(Self::FabricFull),
            Reason::FabricUnavailable => Some(Self::FabricUnavailable),
            Reason::JournalUnavailable => Some(Self::JournalUnavailable),
            Reason::PortsUnreadable => Some(Self::PortsUnreadable),
            Reason::RecordsUnavailable => Some(Self::RecordsUnavailable),
            Reason::MoveFailed => Some(Self::MoveFailed),
            Reason::VfMissing => Some(Self::VfMissing),
            Reason::KubeletFailed => Some(Self::KubeletFailed),
            Reason::DelegateFailed => Some(Self::DelegateFailed),
            Reason::Overloaded => Some(Self::Overloaded),
            Reason::DeadlineExceeded => Some(Self::DeadlineExceeded),
            Reason::Internal => Some(Self::Internal),
            _ => None,
        }
    }

    /// Whether an ADD with this reason fails on the host, so that only the agent can report it to the DPU. `Internal`
    /// can come from both sides.
    #[must_use]
    pub const fn is_of_host(self) -> bool {
        matches!(
            self,
            Self::RecordsUnavailable
                | Self::MoveFailed
                | Self::VfMissing
                | Self::KubeletFailed
                | Self::DelegateFailed
                | Self::Overloaded
                | Self::DeadlineExceeded
                | Self::Internal
        )
    }

    /// Whether an ADD that fails for this reason usually succeeds when the runtime tries again. Then
    /// [`Self::failures_in_a_row`] is more than one, and the host's agent reports it, whichever side refused the ADD.
    #[must_use]
    pub const fn usually_passes(self) -> bool {
        matches!(self, Self::Overloaded | Self::DeadlineExceeded)
    }

    /// How many ADDs must fail for this reason, with none that succeeds between them, before the condition turns.
    #[must_use]
    pub const fn failures_in_a_row(self) -> usize {
        if self.usually_passes() { 3 } else { 1 }
    }
}

impl fmt::Display for ConditionReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl ConditionType {
    /// All types, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Ready,
        Self::FabricReady,
        Self::UplinksUp,
        Self::AttachesServed,
        Self::JournalWritable,
        Self::HostsConnected,
        Self::PodsConnected,
        Self::CertificatesValid,
        Self::Offloaded,
        Self::ConfigurationApplied,
    ];

    /// The name that people and metrics use, such as `UplinksUp`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "Unknown",
            Self::Ready => "Ready",
            Self::FabricReady => "FabricReady",
            Self::UplinksUp => "UplinksUp",
            Self::AttachesServed => "AttachesServed",
            Self::JournalWritable => "JournalWritable",
            Self::HostsConnected => "HostsConnected",
            Self::PodsConnected => "PodsConnected",
            Self::CertificatesValid => "CertificatesValid",
            Self::Offloaded => "Offloaded",
            Self::ConfigurationApplied => "ConfigurationApplied",
        }
    }
}

/// The name of a condition does not exist.
#[derive(Clone, Debug)]
pub struct UnknownCondition(String);

impl fmt::Display for UnknownCondition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = ConditionType::ALL.map(ConditionType::name).join(", ");
        write!(out, "{:?} is no condition: use one of {all}", self.0)
    }
}

impl std::error::Error for UnknownCondition {}

impl FromStr for ConditionType {
    type Err = UnknownCondition;

    fn from_str(text: &str) -> Result<Self, UnknownCondition> {
        let named = |kind: &Self| kind.name().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownCondition(text.to_owned()))
    }
}

impl ConditionStatus {
    /// The name that people use, such as `True`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unspecified | Self::Unknown => "Unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_each_type_has_some() {
        let codes: HashSet<_> = ConditionReason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(codes.len(), ConditionReason::ALL.len());
        let types: HashSet<_> =
            ConditionReason::ALL.iter().map(|reason| reason.condition()).collect();
        assert_eq!(types, ConditionType::ALL.into());
    }

    #[test]
    fn refusals_keep_their_code() {
        for refusal in Reason::ALL {
            if let Some(reason) = ConditionReason::of_refusal(*refusal) {
                assert_eq!(reason.as_str(), refusal.as_str());
                let is_of_fabric = *refusal == Reason::FabricUnavailable;
                assert_eq!(reason.condition() == ConditionType::FabricReady, is_of_fabric);
                assert_eq!(reason.condition() == ConditionType::AttachesServed, !is_of_fabric);
            }
        }
    }

    #[test]
    fn names_parse_back() {
        for kind in ConditionType::ALL {
            assert_eq!(kind.name().parse::<ConditionType>().unwrap(), kind);
        }
        assert!("Uplinks".parse::<ConditionType>().unwrap_err().to_string().contains("UplinksUp"));
    }
}
