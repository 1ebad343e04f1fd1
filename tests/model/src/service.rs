//! The service on the DPU: its memory and its flows.
//!
//! A flow holds its key's lock from its first step to its last. A reservation is in `entries` from that moment on,
//! before the disk has it. All memory is lost when the service dies; it starts again from the journal.

mod actions;
mod attach;
mod detach;
pub mod memory;
mod offers;
mod session;
mod side;

pub use actions::ServiceAction;
pub use side::ServiceSide;
