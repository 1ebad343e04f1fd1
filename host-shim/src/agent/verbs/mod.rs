//! What the plugin asks for: the verbs of CNI, a file each, as functions over three [doors](Doors): the host's
//! VFs, the DPU, and what other plugins make.
//!
//! A verb holds the locks of its attachments' keys from beginning to end, a DEL also while it is settled behind the
//! answer, so that two verbs of one key follow each other, and the keeper and the DPU's own wishes come before or
//! after them. The order of all locks is on the page of [`vfs`](super::vfs).
//!
//! A verb keeps no state in memory that must outlive it: the record says what to finish or undo before the work begins.

mod asked;
mod attach;
mod check;
mod default_routes;
mod delegated;
mod destination;
mod detach;
mod doors;
mod gc;
mod guess;
mod led;
mod naming;
mod phases;
mod refusing;
mod release;
mod status;
mod take_in;

pub(super) use attach::attach;
pub(super) use check::check;
pub(super) use delegated::{release_untaken, repair_delegated};
pub(super) use destination::Destination;
pub(super) use detach::detach;
pub(super) use doors::Doors;
pub(super) use gc::gc;
pub(super) use phases::VerbPhases;
pub(super) use release::{
    Renewal, release, release_on_request, release_without_del, take_back_unanswered,
};
pub(super) use status::{status, trouble};

#[cfg(test)]
pub(super) use doors::tests;
