//! The agent on a host: what it has in memory, and the tasks that it is at.
//!
//! A task holds its key's lock from its first step to its last; who else wants something of the key
//! waits in `waiting`. Between two steps anything can happen, so a step is what the agent does in one go:
//! one durable write, one move of a VF, one call, one answer.

mod actions;
mod ahead;
mod attach;
mod detach;
mod giving_up;
pub mod memory;
mod recovery;
mod session;
mod side;
mod tasks;

pub use actions::AgentAction;
pub use attach::may_write_record;
pub use giving_up::gives_back_unused;
pub use side::AgentSide;
