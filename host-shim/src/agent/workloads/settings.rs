//! `[workloads]` of the agent's configuration file.

use serde::Deserialize;

/// Settings for callers without CNI.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadSettings {
    /// The DPU's network of all workloads. Empty: the DPU's default network.
    pub network: String,
}
