//! The protocol between hosts and their DPU, explored.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod agent;
pub mod explorer;
pub mod properties;
pub mod protocol;
pub mod runtime;
pub mod service;
pub mod system;
pub mod wire;
