//! VF pools: pure allocation, no I/O, no clock of its own.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod id;

pub use id::{ParseIdError, PfId, VfId};
