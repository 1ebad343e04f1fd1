//! What the agent reports of this host to a person who asks it.

use serde::{Deserialize, Serialize};

/// How the agent, its DPU and its pods are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The agent's version.
    pub version: String,
    /// What affects pods, one sentence each. Empty: nothing.
    pub problems: Vec<String>,
    /// The session with the DPU.
    pub session: SessionReport,
    /// The agent's certificate. `None`: it could not be read yet.
    pub certificate: Option<CertificateReport>,
    /// The VFs, in the order of their numbers.
    pub vfs: Vec<VfReport>,
    /// Why the VFs can't be listed. Empty: they are.
    pub vfs_unknown: String,
    /// The attachments that the agent holds records of, by their pods.
    pub pods: Vec<PodReport>,
    /// The latest calls that were refused or failed, oldest first.
    pub failures: Vec<CallFailure>,
    /// The detaches that the DPU has not confirmed yet, each as `CONTAINER/INTERFACE`.
    pub pending_detaches: Vec<String>,
}

/// The session with the DPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// The DPU's name, as the agent's configuration has it.
    pub dpu: String,
    /// Where the agent connects to.
    pub endpoint: String,
    /// Whether there is a session.
    pub connected: bool,
    /// Since when there is one, or none: RFC 3339, UTC.
    pub since: String,
    /// Why there is none: the code. Empty: there is one.
    pub code: String,
    /// The same as a sentence.
    pub message: String,
}

/// The agent's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The identity in it.
    pub identity: String,
    /// Its last moment: RFC 3339, UTC.
    pub valid_until: String,
    /// What is wrong with it or its replacement, one sentence. Empty: nothing.
    pub problem: String,
}

/// How a VF is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfState {
    /// Clean and at home.
    Free,
    /// Free, and reserved by the DPU for the next pods of this host.
    Offered,
    /// A pod has it, or is about to get it.
    Held,
    /// No pod can get it.
    Unavailable,
}

impl VfState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Free, Self::Offered, Self::Held, Self::Unavailable];

    /// Its name.
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
    /// Such as `pf0vf3`.
    pub name: String,
    /// Its device: a PCI address.
    pub device: String,
    /// How it is.
    pub state: VfState,
    /// Why it is unavailable. Empty: it is not, or that is not known.
    pub reason: String,
}

/// An attachment of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// `NAMESPACE/NAME`, as far as the runtime says.
    pub pod: String,
    /// The runtime's container id.
    pub container: String,
    /// The interface's name in the pod.
    pub interface: String,
    /// The network.
    pub network: String,
    /// The VF's device.
    pub vf: String,
    /// Its addresses, in CIDR notation.
    pub addresses: Vec<String>,
    /// `attaching`, `live` or `releasing`.
    pub state: String,
    /// What is not as it should be in the pod. Empty: nothing.
    pub problem: String,
    /// The attachment's id.
    pub attachment: String,
}

/// A call that was refused or failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// When: RFC 3339, UTC.
    pub time: String,
    /// Such as `ADD`.
    pub verb: String,
    /// What it was about: the pod and the interface.
    pub subject: String,
    /// The code of the failure.
    pub code: String,
    /// The same as a sentence.
    pub message: String,
}
