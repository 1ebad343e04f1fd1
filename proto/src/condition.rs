//! Why a condition of a DPU is not true: a stable code, and how long it takes to turn.

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
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $kind:ident, $pods:literal, $begins:expr, $ends:expr;)*) => {
        /// Why a condition is false or unknown. The codes' meaning never changes; new ones may be added.
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

            /// What it means, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// The condition that it makes false or unknown.
            #[must_use]
            pub const fn condition(self) -> ConditionType {
                match self { $(Self::$name => ConditionType::$kind,)* }
            }

            /// Whether pods lose traffic, or new ones can't start.
            #[must_use]
            pub const fn affects_pods(self) -> bool {
                match self { $(Self::$name => $pods,)* }
            }

            /// How long it must hold before the condition turns.
            #[must_use]
            pub const fn begins_after(self) -> Duration {
                match self { $(Self::$name => $begins,)* }
            }

            /// How long it must be gone before the condition turns true again.
            #[must_use]
            pub const fn ends_after(self) -> Duration {
                match self { $(Self::$name => $ends,)* }
            }
        }
    };
}

reasons! {
    /// What `JournalWritable`, `FabricReady` or `CertificatesValid` names keeps all pods from being attached.
    NotServing = "NOT_SERVING", Ready, true, NOW, seconds(5);
    /// The DPU takes no new attachments for now.
    Draining = "DRAINING", Ready, true, NOW, NOW;
    /// The fabric or the eswitch can't be prepared or asked.
    FabricUnavailable = "FABRIC_UNAVAILABLE", FabricReady, true, NOW, seconds(2);
    /// A part of the fabric is missing, such as an uplink.
    FabricIncomplete = "FABRIC_INCOMPLETE", FabricReady, true, NOW, seconds(2);
    /// The eswitch or the fabric can't serve some ports as it should.
    PortsUnserved = "PORTS_UNSERVED", FabricReady, false, seconds(2), NOW;
    /// A gateway on this DPU is not as it should be.
    GatewayBroken = "GATEWAY_BROKEN", FabricReady, true, NOW, NOW;
    /// An uplink is switched off.
    UplinkDown = "UPLINK_DOWN", UplinksUp, true, seconds(1), seconds(2);
    /// An uplink is switched on and has no carrier.
    UplinkWithoutCarrier = "UPLINK_WITHOUT_CARRIER", UplinksUp, true, seconds(1), seconds(2);
    /// There is no uplink of that name.
    UplinkMissing = "UPLINK_MISSING", UplinksUp, true, seconds(1), NOW;
    /// The kernel does not answer how the uplinks are.
    UplinksUnreadable = "UPLINKS_UNREADABLE", UplinksUp, false, seconds(2), NOW;
    /// ADDs were refused: the pool has no free VF.
    VfsExhausted = "VFS_EXHAUSTED", AttachesServed, true, NOW, NOW;
    /// ADDs were refused: a subnet has no free address.
    AddressesExhausted = "ADDRESSES_EXHAUSTED", AttachesServed, true, NOW, NOW;
    /// ADDs failed: the kernel refused to program a port.
    ProgrammingFailed = "PROGRAMMING_FAILED", AttachesServed, true, NOW, NOW;
    /// ADDs were refused: the fabric takes no more ports.
    FabricFull = "FABRIC_FULL", AttachesServed, true, NOW, NOW;
    /// ADDs were refused: card, fabric or agent can't do what the network requires.
    Unsupported = "UNSUPPORTED", AttachesServed, true, NOW, NOW;
    /// ADDs of a host failed: the journal can't be written.
    JournalUnavailable = "JOURNAL_UNAVAILABLE", AttachesServed, true, NOW, NOW;
    /// ADDs of a host failed: the kernel, or what joins its ports, can't be asked.
    PortsUnreadable = "PORTS_UNREADABLE", AttachesServed, true, NOW, NOW;
    /// ADDs of a host failed by a defect of ours.
    Internal = "INTERNAL", AttachesServed, true, NOW, NOW;
    /// All VFs of a pool that are not in use are in quarantine.
    PoolQuarantined = "POOL_QUARANTINED", AttachesServed, false, NOW, NOW;
    /// The journal can't be written.
    JournalNotWritable = "JOURNAL_NOT_WRITABLE", JournalWritable, true, NOW, seconds(10);
    /// A host has no session.
    HostNotConnected = "HOST_NOT_CONNECTED", HostsConnected, true, seconds(5), NOW;
    /// A host that was removed from the configuration has attachments.
    HostRemoved = "HOST_REMOVED", HostsConnected, false, NOW, NOW;
    /// Attachments have no representor.
    RepresentorMissing = "REPRESENTOR_MISSING", PodsConnected, true, NOW, NOW;
    /// Representors can't be programmed as their attachments want it.
    RepairFailed = "REPAIR_FAILED", PodsConnected, true, seconds(2), NOW;
    /// A host has VFs in pods that the journal does not know: their ports are closed.
    AttachmentUnrecorded = "ATTACHMENT_UNRECORDED", PodsConnected, true, NOW, NOW;
    /// Attachments use a gateway that their network no longer has.
    GatewayGone = "GATEWAY_GONE", PodsConnected, true, NOW, NOW;
    /// A host's agent reports pods whose interfaces, addresses or routes differ from their attachments.
    PodDiffers = "POD_DIFFERS", PodsConnected, true, NOW, NOW;
    /// Machines beyond the uplinks use addresses of attachments.
    AddressConflict = "ADDRESS_CONFLICT", PodsConnected, true, NOW, NOW;
    /// An attachment has an address that its network uses otherwise.
    AddressTaken = "ADDRESS_TAKEN", PodsConnected, true, NOW, NOW;
    /// A host does not know attachments whose VFs it does not have back.
    AttachmentUnclaimed = "ATTACHMENT_UNCLAIMED", PodsConnected, false, NOW, NOW;
    /// Attachments stay in Releasing.
    ReleaseStuck = "RELEASE_STUCK", PodsConnected, false, NOW, NOW;
    /// This DPU's certificate has expired.
    CertificateExpired = "CERTIFICATE_EXPIRED", CertificatesValid, true, NOW, NOW;
    /// This DPU's certificate expires soon.
    CertificateExpiring = "CERTIFICATE_EXPIRING", CertificatesValid, false, NOW, NOW;
    /// Replaced certificate files are refused.
    CertificateRefused = "CERTIFICATE_REFUSED", CertificatesValid, false, NOW, NOW;
    /// The kernel handles traffic of attachments that the card should.
    RulesInSoftware = "RULES_IN_SOFTWARE", Offloaded, false, NOW, NOW;
    /// Whether the card handles traffic can't be asked.
    TrafficUnreadable = "TRAFFIC_UNREADABLE", Offloaded, false, NOW, NOW;
    /// The configuration file is not in force as it is.
    ConfigurationRefused = "CONFIGURATION_REFUSED", ConfigurationApplied, false, NOW, NOW;
    /// There is no network, so that no pod can attach.
    NoNetworks = "NO_NETWORKS", ConfigurationApplied, false, NOW, NOW;
    /// A network of the API is not in force.
    NetworkSuspended = "NETWORK_SUSPENDED", ConfigurationApplied, false, NOW, NOW;
    /// A network's MTU is larger than an uplink's.
    MtuTooLarge = "MTU_TOO_LARGE", ConfigurationApplied, false, NOW, NOW;
    /// Cards of a network's pool can't do what the network requires.
    NetworkUnsupported = "NETWORK_UNSUPPORTED", ConfigurationApplied, false, NOW, NOW;
    /// A network has a subnet in common with that of a host port.
    SubnetConflict = "SUBNET_CONFLICT", ConfigurationApplied, false, NOW, NOW;
    /// A pool selects VFs of a PF that no host has.
    PoolWithoutHost = "POOL_WITHOUT_HOST", ConfigurationApplied, false, NOW, NOW;
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

    /// The reason by which a refused ADD makes `AttachesServed` false. `None`: the refusal is the caller's affair, or
    /// passes by itself.
    #[must_use]
    pub const fn of_refusal(refusal: Reason) -> Option<Self> {
        match refusal {
            Reason::VfsExhausted => Some(Self::VfsExhausted),
            Reason::AddressesExhausted => Some(Self::AddressesExhausted),
            Reason::ProgrammingFailed => Some(Self::ProgrammingFailed),
            Reason::FabricFull => Some(Self::FabricFull),
            Reason::Unsupported => Some(Self::Unsupported),
            Reason::JournalUnavailable => Some(Self::JournalUnavailable),
            Reason::PortsUnreadable => Some(Self::PortsUnreadable),
            Reason::Internal => Some(Self::Internal),
            _ => None,
        }
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

/// There is no condition of that name.
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
                assert_eq!(reason.condition(), ConditionType::AttachesServed);
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
