//! Named steps with undo, run by one engine.
//!
//! A step is idempotent: running it when its effect is in place changes nothing, and so does undoing it when there is
//! nothing to undo. Therefore the same list serves the first attempt, a retry and the recovery after a crash.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod engine;
#[cfg_attr(not(feature = "fault-injection"), path = "no_fault.rs")]
mod fault;
mod points;
mod step;

pub use engine::{Failed, Left, repair, run, run_together, undo};
pub use points::{Way, kill_points, pass};
pub use step::{Step, Steps};
