//! The CNI plugin: a process that a runtime starts for each call. It checks, asks the agent, and
//! prints the answer; it must be quick to start and small.

mod annotations;
pub mod config;
pub mod environment;
pub mod error;
pub mod foreign;
pub mod go_json;
pub(crate) mod ipam;
mod networks;
pub mod plugin;
mod port_mappings;
#[cfg(test)]
mod recorded;
pub mod request;
pub mod result;
pub mod version;
pub mod wishes;
