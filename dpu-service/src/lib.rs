//! The DPU's program: API, attach and detach, journal, eswitch, fabric, reconciler.
#![forbid(unsafe_code)]

pub mod config;
pub mod model;
