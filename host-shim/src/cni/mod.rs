//! The CNI plugin: a process that a runtime starts for each call. It checks the call, asks the agent and prints the
//! answer. It must start fast and stay small, so it has no TLS and no async runtime.

mod annotations;
pub mod config;
pub mod environment;
pub mod error;
pub mod foreign;
pub mod go_json;
pub(crate) mod ipam;
mod networks;
pub mod plugin;
pub mod pod_request;
mod port_mappings;
#[cfg(test)]
mod recorded;
pub mod request;
pub mod result;
pub mod version;
