//! The DPU, as the agent speaks with it.

pub(super) mod calls;
pub(super) mod dial;
mod forwarding;
pub(super) mod inventory;
pub(super) mod session;
pub(super) mod undelivered;
pub(super) mod welcomed;
