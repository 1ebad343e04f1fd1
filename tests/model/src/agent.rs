//! The agent on a host: its memory and its tasks.
//!
//! A task holds its key's lock from its first step to its last. Other requests for the key wait in `waiting`.
//! Anything can happen between two steps. A step is one durable write, one move of a VF, one call, or one answer.

mod actions;
mod attach;
mod detach;
mod giving_up;
pub mod memory;
mod recovery;
mod session;
mod side;
mod speculation;
mod tasks;

pub use actions::AgentAction;
pub use attach::may_write_record;
pub use giving_up::gives_back_unused;
pub use side::AgentSide;
