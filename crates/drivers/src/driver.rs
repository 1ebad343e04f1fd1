//! Types shared by eswitch and fabric drivers: abilities, readings and refusals.
//!
//! Ingress is what a pod receives, egress what it sends. The kernel's directions are reversed: frames of the pod enter
//! at the representor's ingress.

mod refused;

pub use refused::{Fault, Refused};

/// Whether something is supported. `Err`: why not.
pub type Ability = Result<(), String>;

/// Name of the ability to enforce a network's `allow` rules.
pub const ALLOW_RULES: &str = "allow-rules";

/// A probed ability of a kernel or card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Stable name, such as `vlan-filtering`.
    pub name: &'static str,
    /// Whether it can be used.
    pub available: bool,
    /// Whether hardware does it. Otherwise the kernel does.
    pub offloaded: bool,
    /// Why it is not available, or its limits. One sentence without a final stop, or empty.
    pub detail: String,
}

/// A setting that this kernel or card does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} can't be done here: {why}")]
pub struct Unsupported {
    /// The setting with its value, such as `VLAN 100`.
    pub setting: String,
    /// Why not: one clause without a final stop.
    pub why: String,
}

impl Unsupported {
    pub(crate) fn new(setting: impl Into<String>, why: impl Into<String>) -> Self {
        Self { setting: setting.into(), why: why.into() }
    }
}

/// State of one setting in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whether it is as requested. True for a setting that the driver leaves to the host.
    pub in_place: bool,
    /// The actual state, as text.
    pub detail: String,
}

impl Reading {
    /// A setting that is as requested.
    pub fn in_place(detail: impl Into<String>) -> Self {
        Self { in_place: true, detail: detail.into() }
    }

    /// Combines two readings: in place if both are.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let detail = format!("{}; {}", self.detail, other.detail);
        Self { in_place: self.in_place && other.in_place, detail }
    }

    /// A setting that differs from the request.
    pub fn missing(detail: impl Into<String>) -> Self {
        Self { in_place: false, detail: detail.into() }
    }
}

/// Converts an ability into the capability that drivers report.
pub fn capability(name: &'static str, ability: &Ability) -> Capability {
    limited_capability(name, ability, "")
}

/// Converts an ability into a capability with `limits`, if it is available.
pub(crate) fn limited_capability(
    name: &'static str,
    ability: &Ability,
    limits: &str,
) -> Capability {
    let detail = ability.clone().err().unwrap_or_else(|| limits.to_owned());
    Capability { name, available: ability.is_ok(), offloaded: false, detail }
}

impl Capability {
    /// Marks an available capability as done by hardware.
    #[must_use]
    pub fn by_hardware(self) -> Self {
        Self { offloaded: self.available, ..self }
    }
}
