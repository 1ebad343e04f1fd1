//! The host's program: a plugin that runtimes start, by CNI or by netavark, and the agent behind it that talks to the
//! DPU and moves VFs between network namespaces.
//!
//! Other programs run the agent within themselves by [`embedded`]. All else is for the programs of this crate, and
//! changes without notice.
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
