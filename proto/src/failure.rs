//! Why a call failed: a stable code and one sentence, unchanged from the service to the pod's event.

use std::{collections::HashMap, fmt};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The `domain` of `google.rpc.ErrorInfo` in this API.
const DOMAIN: &str = "offload.v1";

/// CNI's "try again later" (specification, section "Error").
const CNI_TRY_AGAIN: u32 = 11;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $code:ident, $cni:expr, $advice:literal;)*) => {
        /// The stable codes of all refusals and failures. The meaning of a code never changes; new codes may be added.
        /// docs/ERRORS.md explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])* $name,)* }

        impl Reason {
            /// All reasons, in the order of docs/ERRORS.md.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable code, such as `VFS_EXHAUSTED`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// The code's meaning, one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc,)*).trim_ascii_start(),)* }
            }

            /// The gRPC status code of the reason.
            #[must_use]
            pub const fn grpc_code(self) -> Code {
                match self { $(Reason::$name => Code::$code,)* }
            }

            /// The code in a CNI error object: the specification's if it has one, otherwise one from 100 on.
            #[must_use]
            pub const fn cni_code(self) -> u32 {
                match self { $(Reason::$name => $cni,)* }
            }

            /// Whether the failure may be temporary, so that the caller should retry.
            #[must_use]
            pub const fn is_passing(self) -> bool {
                self.cni_code() == CNI_TRY_AGAIN
            }

            /// What to do about it, one clause without a final stop.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Reason::$name => $advice,)* }
            }
        }
    };
}

reasons! {
    /// The request is malformed.
    InvalidRequest = "INVALID_REQUEST", InvalidArgument, 100, "docs/CONFIGURATION.md and docs/RUNTIMES.md have the form of each value";
    /// The network does not exist, or there is no default network.
    NetworkUnknown = "NETWORK_UNKNOWN", NotFound, 101, "list the networks with `dpuctl get networks`";
    /// The pool has no free VF.
    VfsExhausted = "VFS_EXHAUSTED", ResourceExhausted, 102, "stop pods that use the pool, give it more VFs, or free quarantined ones with `dpuctl clear-quarantine`; see `dpuctl get vfs`";
    /// All free VFs of the pool are offered to the host and taken by other attaches.
    VfsOffered = "VFS_OFFERED", ResourceExhausted, CNI_TRY_AGAIN, "try again: other attaches of the host use these VFs, and free them if they fail";
    /// No free address in the subnet.
    AddressesExhausted = "ADDRESSES_EXHAUSTED", ResourceExhausted, 103, "widen the subnet's ranges or wait for addresses in cool-down; see `dpuctl get networks`";
    /// Another attachment holds the requested address, or it is in cool-down.
    AddressInUse = "ADDRESS_IN_USE", AlreadyExists, 104, "ask for another address, stop its holder, or wait until its cool-down ends";
    /// The requested address cannot be allocated.
    AddressNotAllowed = "ADDRESS_NOT_ALLOWED", InvalidArgument, 105, "ask for an address inside one of the network's subnets that is not reserved";
    /// Another attachment holds the requested MAC address.
    MacInUse = "MAC_IN_USE", AlreadyExists, 106, "ask for another MAC address or stop its holder";
    /// The host has no VF of that PCI address.
    VfUnknown = "VF_UNKNOWN", NotFound, 107, "ask for a VF that `dpuctl get vfs -o wide` lists";
    /// The requested VF is not free.
    VfNotFree = "VF_NOT_FREE", FailedPrecondition, 108, "see `dpuctl get vfs` for who holds it";
    /// Another attachment holds the requested port of the DPU.
    PortInUse = "PORT_IN_USE", AlreadyExists, 135, "ask for another port, or stop its holder";
    /// The kernel, the card or this version does not support what was requested or what the network requires.
    Unsupported = "UNSUPPORTED", FailedPrecondition, 109, "leave it out, or see `dpuctl describe dpu` for what the DPU can do";
    /// The workload already has its interface.
    WorkloadAttached = "WORKLOAD_ATTACHED", AlreadyExists, 146, "detach it first";
    /// An attachment of the key exists and differs from the request.
    AttachmentDiffers = "ATTACHMENT_DIFFERS", AlreadyExists, 110, "detach it first";
    /// The certificate's host is not in this DPU's configuration.
    HostUnknown = "HOST_UNKNOWN", PermissionDenied, 111, "add the host to the service's configuration";
    /// The network is not allowed for the host, or for the pod's namespace.
    NetworkNotAllowed = "NETWORK_NOT_ALLOWED", PermissionDenied, 141, "ask for another network, or have an operator allow it: `networks` of the [[host]], or the network's `namespaces`";
    /// The host's pods may not choose that MAC address.
    MacNotAllowed = "MAC_NOT_ALLOWED", PermissionDenied, 142, "ask for a MAC address with the DPU's prefix, leave it out, or have an operator set `any_mac` of the [[host]]";
    /// The network does not allow the additional source addresses that the pod requests.
    SourceNotAllowed = "SOURCE_NOT_ALLOWED", PermissionDenied, 143, "leave them out, or have an operator allow them: `optional_sources` of the network";
    /// The certificate's role does not allow the call.
    NotAuthorised = "NOT_AUTHORISED", PermissionDenied, 112, "use a certificate of the role that the call needs";
    /// The call belongs to an ended session, or the host has no session.
    StaleSession = "STALE_SESSION", Unavailable, CNI_TRY_AGAIN, "try again: the agent opens a new session by itself";
    /// The journal cannot be written.
    JournalUnavailable = "JOURNAL_UNAVAILABLE", Unavailable, 114, "free disk space or repair the disk of the service's `state_dir`; drain the hosts before a journal that can't be read is moved away, as docs/OPERATIONS.md says under State and backups";
    /// The kernel, the card or Open vSwitch refused a programming step.
    ProgrammingFailed = "PROGRAMMING_FAILED", Internal, 115, "run `dpuctl doctor` for what is wrong with the card or the fabric, and see the service's log";
    /// The fabric cannot be used, such as its bridge or Open vSwitch's daemons.
    FabricUnavailable = "FABRIC_UNAVAILABLE", Unavailable, 154, "start or create what the message names, such as ovs-vswitchd or the bridge: the service then continues without a restart";
    /// The fabric takes no more ports.
    FabricFull = "FABRIC_FULL", ResourceExhausted, 134, "stop pods on this DPU, or use another node";
    /// The state of the DPU's kernel or fabric cannot be read.
    PortsUnreadable = "PORTS_UNREADABLE", Unavailable, 144, "start what the message says does not answer, such as ovs-vswitchd and ovsdb-server, or see its log";
    /// The DPU's service is stopping and accepts no new attachments.
    Draining = "DRAINING", Unavailable, CNI_TRY_AGAIN, "try again later or on another node";
    /// Too many calls are in progress.
    Overloaded = "OVERLOADED", ResourceExhausted, CNI_TRY_AGAIN, "try again later";
    /// Attachments use the network.
    NetworkInUse = "NETWORK_IN_USE", FailedPrecondition, 118, "stop its pods first; `dpuctl get attachments --network NAME` lists them";
    /// Other networks refer to the network.
    NetworkNamed = "NETWORK_NAMED", FailedPrecondition, 145, "remove it from the networks that the message names, or delete those first";
    /// Another operator has changed the network since the caller read it.
    NetworkConflict = "NETWORK_CONFLICT", Aborted, 153, "read the network again and repeat the change";
    /// A lease is outside the changed range.
    LeaseInTheWay = "LEASE_IN_THE_WAY", FailedPrecondition, 119, "stop the pod that holds the address first";
    /// Networks of two layer-2 domains share a subnet and would conflict.
    SubnetConflict = "SUBNET_CONFLICT", FailedPrecondition, 147, "use a subnet that no other network has, or leave out what the message names: a host port, or the DPU as the gateway";
    /// No attachment has that id or key.
    AttachmentUnknown = "ATTACHMENT_UNKNOWN", NotFound, 120, "list the attachments with `dpuctl get attachments`";
    /// The attachment, or a resource that the request needs, is in release, or a VF is being reset.
    Releasing = "RELEASING", Unavailable, CNI_TRY_AGAIN, "try again: the release ends once the VF is back and the DPU is reachable";
    /// The network comes from the configuration file and cannot be changed through the API.
    NetworkFixed = "NETWORK_FIXED", FailedPrecondition, 122, "change the service's configuration file instead";
    /// The call took longer than its deadline.
    DeadlineExceeded = "DEADLINE_EXCEEDED", DeadlineExceeded, CNI_TRY_AGAIN, "try again";
    /// The host's agent does not answer on its socket.
    AgentUnreachable = "AGENT_UNREACHABLE", Unavailable, CNI_TRY_AGAIN, "start the agent with `systemctl start dpu-offload-agent`; if it does not stay up, see `journalctl -u dpu-offload-agent`";
    /// The DPU is not reachable.
    DpuUnreachable = "DPU_UNREACHABLE", Unavailable, CNI_TRY_AGAIN, "check the DPU, its address in the agent's configuration and the management link";
    /// A certificate is missing, expired, or not trusted.
    CertificateRefused = "CERTIFICATE_REFUSED", Unauthenticated, 126, "let the agent read the file named, renew the certificate, trust its CA, or correct `dpu.name` in the agent's configuration if another name was expected";
    /// The netns path is missing or not a network namespace.
    NetnsInvalid = "NETNS_INVALID", InvalidArgument, 4, "pass the path of a network namespace, in CNI_NETNS or as netns_path";
    /// The pod already has an interface of that name.
    InterfaceExists = "INTERFACE_EXISTS", AlreadyExists, 128, "choose another interface name";
    /// The VF could not be moved or configured.
    MoveFailed = "MOVE_FAILED", Internal, 129, "run `dpuctl doctor` for the VF, and see the agent's log for what came before";
    /// The host cannot find the VF that the DPU chose.
    VfMissing = "VF_MISSING", FailedPrecondition, 130, "see `dpuctl get vfs`; the VF may be bound to another driver or held by an unrecorded namespace";
    /// The agent's records cannot be written.
    RecordsUnavailable = "RECORDS_UNAVAILABLE", Unavailable, 131, "free disk space or repair the disk of the agent's state directory";
    /// CHECK found that the pod's interface differs from its attachment.
    CheckFailed = "CHECK_FAILED", FailedPrecondition, 132, "run `dpuctl doctor --fix`, or recreate the pod";
    /// The VF is not in quarantine.
    VfNotQuarantined = "VF_NOT_QUARANTINED", FailedPrecondition, 133, "see `dpuctl get vfs` for the state of each VF";
    /// The pool allocates VFs only to requests that name one.
    PoolPinnedOnly = "POOL_PINNED_ONLY", FailedPrecondition, 140, "put the resource that the message names into `resources.limits` of a container, or use a network of another pool";
    /// The kubelet does not report which VF it gave the pod.
    KubeletFailed = "KUBELET_FAILED", Unavailable, CNI_TRY_AGAIN, "see that the kubelet runs, and that `device_plugin.pod_resources` in the agent's configuration is its socket";
    /// The definition of a network of other CNI plugins cannot be used.
    DelegateInvalid = "DELEGATE_INVALID", InvalidArgument, 151, "correct the file that the message names, in the agent's `delegates.networks`";
    /// Another CNI plugin failed.
    DelegateFailed = "DELEGATE_FAILED", Internal, 152, "see the message's part about the plugin, its network's file and the folders in the agent's `delegates.plugins`";
    /// A defect of dpu-offload.
    Internal = "INTERNAL", Internal, 199, "report it with the log of the program named";
}

impl Reason {
    /// The reason of that stable code.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// A refused or failed call: the reason, and one sentence with the object and the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stable code.
    pub reason: Reason,
    /// One sentence without a final stop: what failed, on what, why.
    pub message: String,
}

impl Failure {
    /// A failure with the sentence `message`.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Extracts the failure from a gRPC status. `None`: the status has no ErrorInfo of this API, such as the
    /// transport's own errors.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let info = status.get_details_error_info()?;
        let reason = (info.domain == DOMAIN).then(|| Reason::parse(&info.reason))??;
        Some(Self::new(reason, status.message()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// The gRPC status of this failure, with a different code than the reason's.
    #[must_use]
    pub fn into_status(self, code: Code) -> Status {
        let details = ErrorDetails::with_error_info(self.reason.as_str(), DOMAIN, HashMap::new());
        Status::with_error_details(code, self.message, details)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let code = failure.reason.grpc_code();
        failure.into_status(code)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_parse_back() {
        let codes: HashSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
    }

    #[test]
    fn cni_codes_of_ours_are_unique() {
        let ours: Vec<_> = Reason::ALL
            .iter()
            .map(|reason| reason.cni_code())
            .filter(|code| *code >= 100)
            .collect();
        assert_eq!(ours.iter().collect::<HashSet<_>>().len(), ours.len());
    }

    #[test]
    fn reasons_have_meaning_and_advice() {
        for reason in Reason::ALL {
            assert!(reason.meaning().ends_with('.'), "{reason}: {}", reason.meaning());
            let advice = reason.advice();
            assert!(!advice.is_empty() && !advice.ends_with('.'), "{reason}: {advice}");
            let first = advice.split(&[',', ';', ':']).next().unwrap_or_default();
            assert!(!first.contains("--force"), "{reason}: {advice}");
        }
    }

    #[test]
    fn a_failure_survives_the_wire() {
        let failure = Failure::new(Reason::VfsExhausted, "pool default has no free VF");
        let status = Status::from(failure.clone());
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(Failure::from_status(&status), Some(failure));
    }
}
