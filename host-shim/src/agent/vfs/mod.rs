//! The VFs of this host, and which attachment has which VF. Only this module moves a VF, resets it, changes the
//! number of VFs, or writes a record. Other modules call [`Vfs`], and read.
//!
//! | part | purpose |
//! | --- | --- |
//! | [`Host`](host) | the host's namespace, the host's own [upper devices](stacked_by_host), cards and records; turns for kernel calls; read access to [`cards`] |
//! | [`Keys`](keys) | one lock per attachment |
//! | [`Cleanliness`](cleanliness) | the VFs' baselines ([`originals`]), their verification ([`proofs`]), and their upper devices ([`stacked`]) |
//! | [`Renewer`](renewal) | resets VFs that differ from their baseline |
//! | [`Numbers`](numbers) | changes the number of VFs, and binds VFs to drivers |
//! | [`FreeVfs`](free_vfs) | restores free VFs |
//! | [`Abroad`](abroad) | finds misplaced VFs and moves them back |
//! | [`Claims`](claims) | holds VFs for ADDs in progress |
//! | [`Ahead`](ahead) | speculative moves, before the DPU has answered |
//! | [`Intake`](intake) | records an attachment (built by [`drafts`]) and moves its VF into the pod, with a [file](device_info) about its device |
//! | [`PodLocks`](pod_locks) | one lock per pod, shared by all agents of the host |
//! | [`Homecoming`](homecoming) | moves a VF out of its pod, restores it, removes the record |
//!
//! # Locks
//!
//! All locks of the agent, in locking order: a task that holds one may only wait for those below it.
//!
//! | lock | of | guards | held by |
//! | --- | --- | --- | --- |
//! | `examining` | [`upkeep`](super::upkeep) | an examination of all VFs | doctor |
//! | `passing` | [`upkeep`](super::upkeep) | a comparison of all records with the kernel | the keeper, doctor |
//! | `comparing` | [`upkeep`](super::upkeep) | a comparison of host ports with the configuration | the task for host ports, doctor |
//! | `locks` | [`Keys`](keys) | one attachment; several are locked in the order of their keys | each verb for it, the keeper, the DPU's requests |
//! | `calls` | [`delegates`](super::delegates) | other plugins' programs for one interface, also of an earlier agent; waited for within bounds | who has an interface created, checked or deleted, with its key |
//! | `renewing` | [`Renewer`](renewal) | resets: one VF at a time | who resets a VF, with its key or as a free VF; doctor, which binds VFs to drivers |
//! | `vfs_stay` | [`Numbers`](numbers) | the number of VFs | for reading, an attach that claims a VF; for writing, a change of the number, without a key |
//! | `free_vfs` | [`Host`](host) | one free VF | an attach that claims it; who restores or resets it |
//! | `pods` | [`PodLocks`](pod_locks) | a pod's rules and its routes' priorities, for all agents of the host | moves of VFs with rules or prioritised routes; who adds or removes such for an interface of other plugins |
//! | `moves` | [`MoveTurns`](move_turns) | a turn for moving a VF; moves into pods have priority | who moves a VF in or out |
//! | `keeping` | [`upkeep`](super::upkeep) | the keeper's turn for reads | the keeper |
//! | `finishes` | [`Turns`](turns) | a turn for configuring a VF after a speculative move | who configures it, and moves it back if that fails |
//! | `looks` | [`Turns`](turns) | a turn for reading the kernel | each read, and who moves misplaced VFs back |
//! | `last` | [`Walks`](stacked) | a walk through all namespaces | who verifies VFs |
//! | `followed` | [`StackedByHost`](stacked_by_host) | reading link events of the host's namespace, or listing all links | who starts a speculative move, with its turn |
//!
//! Locks that are held for memory operations only are not in the table: no task waits for anything while it holds one.
//! Some are nested: the session's offers, within them the claims, and within these the records, resets and
//! verifications.
//!
//! All locks are fair, except `pods` between agents, and `moves` between the two directions up to a bound. So no task
//! may wait for a key with `vfs_stay` held: a waiting change of the number of VFs would stop all three.
//!
//! In one place a task that holds a key waits against the order: an attach waits for the key of the attachment that
//! releases its VF (`settle_earlier_holder`). Among attaches of one interface each, such waits form no cycle. The
//! awaited record was in phase *releasing* when the wait began. An attach waits for another key only after it saw that
//! its own key has no record (`make_way`), and with its key locked no other task writes one. Its own speculative record
//! is awaited by no task: it is gone before, or the attach fails. In a chain of waits each awaited task therefore began
//! to wait later, so that the chain cannot close.
//!
//! An attach of several interfaces holds some keys while it waits for others; two such attaches could wait for each
//! other. So each wait is bounded by the time that a VF may take to return; then the attach is refused. An attach also
//! retries while the DPU answers that it is about to get the VF back (`verbs/attach.rs`): that waits for no lock, and
//! no longer.
//!
//! # Who races
//!
//! - *Two tasks for one attachment.* The key's lock. A VF in a record needs no lock of its own: only one record has it,
//!   and a task that works on it holds that record's key.
//! - *An attach and a restore or reset of free VFs.* `free_vfs`, then a look at the records: the attach holds the lock
//!   until its record exists.
//! - *Two attaches for one VF.* An offered VF is [claimed](claims) by one of them until a record has it or the claim is
//!   dropped. For a VF that the DPU chose the record decides: an attach leaves a VF of another record alone.
//! - *An attach that takes an offer, and the end of the session.* The offers are locked from the look until the claim,
//!   and closed before the next hello lists the VFs in use. Every taken VF is listed, and no other one is taken.
//! - *A claim and a listing.* Claims are listed before records, and end only when there is a record or the VF is back:
//!   a VF that passes from one to the other is in at least one list.
//! - *A speculative move and the DPU's answer.* Both are awaited before the record replaces the speculative one, or the
//!   VF moves back. The key is locked all the time.
//! - *An attach and a change of the number of VFs.* `vfs_stay`.
//! - *Two interfaces of one pod*, of one agent or two. `pods`: what one leaves or removes depends on the other. The
//!   wait is bounded, because the other agent may be suspended.
//! - *A listing and a move.* No lock. Links are listed before records: a VF that leaves in between has a record by
//!   then, and does not count as free.
//! - *A look and the kernel's own moves*, when a pod's namespace ends or a card is reset. No lock helps: the kernel
//!   reports each arrival, and a task that waits for one subscribes before it looks.

mod abroad;
mod ahead;
mod cards;
mod claims;
mod cleanliness;
mod device_info;
mod drafts;
mod free_vfs;
mod homecoming;
mod host;
mod intake;
mod intake_failure;
mod keys;
mod location;
mod move_failure;
mod move_turns;
mod namespaces;
mod numbers;
mod originals;
mod pauses;
mod pod_locks;
mod proofs;
mod records;
mod renewal;
mod room;
mod stacked;
mod stacked_by_host;
mod turns;

pub use originals::OriginalsError;
pub use records::RecordsError;

pub(super) use abroad::VfAbroad;
pub(super) use ahead::{Guess, MovedAhead};
pub(super) use cards::Cards;
pub(super) use claims::Claimed;
pub(super) use drafts::Wanted;
pub(super) use homecoming::Condition;
pub(super) use host::{Host, HostLinks};
pub(super) use intake::TakenIn;
pub(super) use intake_failure::IntakeFailure;
pub(super) use location::VfLocation;
pub(super) use originals::Originals;
pub(super) use pod_locks::PodLocks;
pub(super) use records::{Phase, PodNetns, Record, Records};
pub(super) use room::{Furnishing, Vfs};
pub(super) use turns::BLOCKING_THREADS;

#[cfg(test)]
pub(super) use {
    move_turns::MOVES,
    records::{read, tests::record},
};

/// What tests of other modules may do here.
#[cfg(test)]
pub(super) mod tests {
    pub(in crate::agent) use super::{
        intake::tests::attach_of,
        records::tests::keep,
        renewal::tests::{hold_renewals, leave_unfinished, unfinished},
        room::tests::{change_of_numbers, turn_at_moving, vfs, vfs_of},
    };
}
