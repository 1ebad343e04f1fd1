//! What the plugin asks for: the verbs of CNI.

mod attach;
mod check;
pub(super) mod detach;
mod gc;
mod status;
