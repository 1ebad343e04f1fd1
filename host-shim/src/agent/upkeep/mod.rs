//! What the agent does unasked, and for operators.

mod examine;
mod keeper;
pub(super) mod provide;
pub(super) mod vfs_abroad;
