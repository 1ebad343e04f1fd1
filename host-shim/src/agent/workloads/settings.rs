//! `[workloads]` of the agent's configuration file.

use serde::Deserialize;

/// What callers without CNI get.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadSettings {
    /// The DPU's network that they are attached to. Empty: its default one.
    pub network: String,
}
