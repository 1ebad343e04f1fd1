//! The host's program: a CNI plugin that runtimes start, and the agent behind it that talks to the
//! DPU and moves VFs between network namespaces.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod agent;
pub mod cni;
#[cfg(test)]
mod fuzz;
pub mod mover;
pub mod protocol;
pub mod vf_source;
mod whole_file;
