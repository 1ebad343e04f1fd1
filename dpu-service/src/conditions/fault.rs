//! One thing that is wrong.

use std::fmt;

use offload_proto::ConditionReason;

use crate::model::HostName;

/// What is wrong with one object. It makes the condition of its reason false or unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The stable code.
    pub reason: ConditionReason,
    /// What it is about, such as `pool/default`.
    pub object: String,
    /// What is wrong, why, and what to do: one sentence without a final stop.
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
