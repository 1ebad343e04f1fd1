//! Errors of the netavark plugin.

use std::fmt;

use crate::cni::error::CniError;

/// Why a call failed, in one sentence for podman's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        match error.details.is_empty() {
            true => Self(error.message),
            false => Self(format!("{}: {}", error.message, error.details)),
        }
    }
}
