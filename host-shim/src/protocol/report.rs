//! The agent's report of its host, for `host-shim-agent status`.

use serde::{Deserialize, Serialize};

/// The state of the agent, its session and its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The agent's version.
    pub version: String,
    /// Problems that affect pods, one sentence each.
    pub problems: Vec<String>,
    /// The session with the DPU.
    pub session: SessionReport,
    /// The agent's certificate. `None`: not read yet.
    pub certificate: Option<CertificateReport>,
    /// The VFs, ordered by their numbers.
    pub vfs: Vec<VfReport>,
    /// Why the VFs cannot be listed. Empty: they are listed.
    pub vfs_unknown: String,
    /// The attachments in the agent's records, ordered by pod.
    pub pods: Vec<PodReport>,
    /// The last calls that were refused or failed, oldest first.
    pub failures: Vec<CallFailure>,
    /// Detaches that the DPU has not confirmed, each as `CONTAINER/INTERFACE`.
    pub pending_detaches: Vec<String>,
}

/// The session with the DPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// The DPU's name in the agent's configuration.
    pub dpu: String,
    /// The address that the agent connects to.
    pub endpoint: String,
    /// Whether there is a session.
    pub connected: bool,
    /// When the session started or was lost: RFC 3339, UTC.
    pub since: String,
    /// The reason code of the missing session. Empty: there is a session.
    pub code: String,
    /// The reason as a sentence.
    pub message: String,
}

/// The agent's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The identity in the certificate.
    pub identity: String,
    /// The end of its validity: RFC 3339, UTC.
    pub valid_until: String,
    /// A problem with the certificate or its replacement, one sentence. Empty: none.
    pub problem: String,
}

/// The state of a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfState {
    /// Verified and in the host's namespace.
    Free,
    /// Free, and reserved by the DPU for the next pods of this host.
    Offered,
    /// In a pod, or about to move there.
    Held,
    /// Not allocatable.
    Unavailable,
}

impl VfState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Free, Self::Offered, Self::Held, Self::Unavailable];

    /// The state's name in JSON and text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Offered => "offered",
            Self::Held => "held",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A VF of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfReport {
    /// The VF's name, such as `pf0vf3`.
    pub name: String,
    /// The VF's device: a PCI address.
    pub device: String,
    /// The VF's state.
    pub state: VfState,
    /// Why the VF is unavailable. Empty: it is available, or the reason is unknown.
    pub reason: String,
}

/// An attachment of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// `NAMESPACE/NAME`, as far as the runtime reports it.
    pub pod: String,
    /// The runtime's container id.
    pub container: String,
    /// The interface's name in the pod.
    pub interface: String,
    /// The network.
    pub network: String,
    /// The VF's device.
    pub vf: String,
    /// The addresses, in CIDR notation.
    pub addresses: Vec<String>,
    /// `attaching`, `live` or `releasing`.
    pub state: String,
    /// A problem of the pod's interface. Empty: none.
    pub problem: String,
    /// The attachment's id.
    pub attachment: String,
}

/// A call that was refused or failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// When the call ended: RFC 3339, UTC.
    pub time: String,
    /// The verb, such as `ADD`.
    pub verb: String,
    /// The pod and interface.
    pub subject: String,
    /// The reason code.
    pub code: String,
    /// The reason as a sentence.
    pub message: String,
}
