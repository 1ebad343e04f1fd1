//! A fault of one object.

use std::fmt;

use offload_proto::ConditionReason;

use model::HostName;

/// A fault of one object. Its reason makes a condition false or unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub reason: ConditionReason,
    /// The object, such as `pool/default`.
    pub object: String,
    /// What failed, why, and what to do: one sentence without a final stop.
    pub message: String,
}

impl Fault {
    pub(crate) fn of_dpu(reason: ConditionReason, message: impl Into<String>) -> Self {
        Self { reason, object: "dpu".into(), message: message.into() }
    }

    pub(crate) fn of_network(
        reason: ConditionReason,
        network: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self { reason, object: format!("network/{network}"), message: message.into() }
    }

    pub(crate) fn of_pool(
        reason: ConditionReason,
        pool: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self { reason, object: format!("pool/{pool}"), message: message.into() }
    }

    pub(crate) fn of_host(
        reason: ConditionReason,
        host: &HostName,
        message: impl Into<String>,
    ) -> Self {
        Self { reason, object: format!("host/{host}"), message: message.into() }
    }
}
