//! The host's program: a plugin that runtimes start, by CNI or by netavark, and the agent behind it that talks to the
//! DPU and moves VFs between network namespaces.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod agent;
pub mod cni;
#[cfg(test)]
mod fuzz;
pub mod install;
pub mod mover;
pub mod netavark;
pub mod protocol;
pub mod vf_source;
mod whole_file;
