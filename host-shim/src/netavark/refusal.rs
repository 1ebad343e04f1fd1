//! Errors of the netavark plugin.

use crate::cni::error::CniError;

/// Why a call failed, in one sentence for podman's user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub(super) String);

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        match error.details.is_empty() {
            true => Self(error.message),
            false => Self(format!("{}: {}", error.message, error.details)),
        }
    }
}
