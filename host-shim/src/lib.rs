//! The host's programs: the plugin that runtimes start (CNI or netavark), and the agent that talks to the DPU and moves
//! VFs between network namespaces.
//!
//! Other programs embed the agent with [`embedded`]. Everything else is internal and changes without notice.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[doc(hidden)]
pub mod agent;
#[doc(hidden)]
pub mod cni;
#[cfg(test)]
mod fuzz;
#[doc(hidden)]
pub mod install;
#[doc(hidden)]
pub mod mover;
#[doc(hidden)]
pub mod netavark;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod status;
#[doc(hidden)]
pub mod vf_source;
mod whole_file;

pub use agent::embedded;
