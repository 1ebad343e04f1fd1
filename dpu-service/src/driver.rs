//! The words of all drivers, of the eswitch as of the fabric: what can be done, and what was refused.
//!
//! Ingress is what a pod receives, and egress what it sends. Where the kernel's directions are meant, it is the
//! representor's ingress, where frames of the pod come in.

mod refused;

pub use refused::{Fault, Refused};

/// Whether something can be done. `Err`: why not.
pub(crate) type Ability = Result<(), String>;

/// The ability to keep to a network's `allow`.
pub(crate) const ALLOW_RULES: &str = "allow-rules";

/// Something that a kernel or a card may or may not be able to do, as probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its stable name, such as `vlan-filtering`.
    pub name: &'static str,
    /// Whether it can be used.
    pub available: bool,
    /// Whether hardware does it. What is available otherwise, the kernel does.
    pub offloaded: bool,
    /// Why not, or with what limits. One sentence without a final stop, or nothing.
    pub detail: String,
}

/// A setting that this kernel or card can't do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} can't be done here: {why}")]
pub struct Unsupported {
    /// The setting with its value, such as `VLAN 100`.
    pub setting: String,
    /// Why not.
    pub why: String,
}

/// What the kernel has of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whether it is as wanted. A setting that the driver leaves to the host counts as being so.
    pub in_place: bool,
    /// What is there, for people.
    pub detail: String,
}

impl Reading {
    /// As wanted.
    pub fn in_place(detail: impl Into<String>) -> Self {
        Self { in_place: true, detail: detail.into() }
    }

    /// Both of them, as wanted if both are.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let detail = format!("{}; {}", self.detail, other.detail);
        Self { in_place: self.in_place && other.in_place, detail }
    }

    /// Not as wanted.
    pub fn missing(detail: impl Into<String>) -> Self {
        Self { in_place: false, detail: detail.into() }
    }
}

/// As drivers report it.
pub(crate) fn capability(name: &'static str, ability: &Ability) -> Capability {
    limited_capability(name, ability, "")
}

/// As drivers report it; where it can be done, with these `limits`.
pub(crate) fn limited_capability(
    name: &'static str,
    ability: &Ability,
    limits: &str,
) -> Capability {
    let detail = ability.clone().err().unwrap_or_else(|| limits.to_owned());
    Capability { name, available: ability.is_ok(), offloaded: false, detail }
}

impl Capability {
    /// Likewise; where it can be done, hardware does it.
    #[must_use]
    pub(crate) fn by_hardware(self) -> Self {
        Self { offloaded: self.available, ..self }
    }
}
