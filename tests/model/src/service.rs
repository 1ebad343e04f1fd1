//! The service on the DPU: what it has in memory.
//!
//! A flow holds its key's lock from its first step to its last. What is reserved is in `entries` from that
//! moment on, whatever becomes of the disk. All of this is gone when the service dies: it starts again
//! with what the journal has.

mod actions;
mod attach;
mod detach;
pub mod memory;
mod promises;
mod session;
mod side;

pub use actions::ServiceAction;
pub use side::ServiceSide;
