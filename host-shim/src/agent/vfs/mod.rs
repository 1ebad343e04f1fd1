//! The VFs of this host, and who has which. This is the only room that moves a VF, makes one anew or changes their
//! number, and the only one that writes a record: other rooms come in by the doors of [`Vfs`], and read.
//!
//! | part | does |
//! | --- | --- |
//! | [`Host`](host) | knows the host's namespace, what the host itself has [stacked](stacked_by_host) there, its cards and the records; gives turns at the kernel, and other rooms a look at its [`cards`] |
//! | [`Keys`](keys) | has one lock for each attachment |
//! | [`Cleanliness`](cleanliness) | knows what VFs were like ([`originals`]), what they are like ([`proofs`]), and what is stacked on them ([`stacked`]) |
//! | [`Renewer`](renewal) | makes VFs anew that are not as they were |
//! | [`Numbers`](numbers) | changes how many VFs there are, and gives them to drivers |
//! | [`FreeVfs`](free_vfs) | brings VFs into order that nobody has |
//! | [`Abroad`](abroad) | finds VFs where no record has them, and fetches them |
//! | [`Claims`](claims) | keeps VFs for ADDs that are under way |
//! | [`Ahead`](ahead) | moves VFs into their pod that the DPU is only being asked for |
//! | [`Intake`](intake) | records an attachment, as [`drafts`] has it, and moves its VF into the pod, with a [file](device_info) that tells the pod which device it has |
//! | [`PodLocks`](pod_locks) | has one lock for each pod, for all agents of the host |
//! | [`Homecoming`](homecoming) | takes a VF out of its pod, restores it, forgets the record |
//!
//! # Locks
//!
//! All of the agent's, in the order in which they may be taken: whoever holds one waits only for those below it.
//!
//! | lock | of | what it guards | held by |
//! | --- | --- | --- | --- |
//! | `examining` | [`upkeep`](super::upkeep) | all VFs are looked at for somebody | doctor |
//! | `passing` | [`upkeep`](super::upkeep) | all is compared with the kernel | the keeper, doctor |
//! | `comparing` | [`upkeep`](super::upkeep) | the host's ports are compared with the configuration | the keeper of host ports, doctor |
//! | `locks` | [`Keys`](keys) | one attachment; who wants several takes them in the order of their keys | each verb of it, the keeper, the DPU's wishes |
//! | `calls` | [`delegates`](super::delegates) | the programs of other plugins, for one interface; also against one that an earlier agent has called. Waited for within bounds | who has an interface made, looked at or taken back, with its key |
//! | `renewing` | [`Renewer`](renewal) | VFs are made anew one at a time | whoever makes one anew, with its key or as a free one; doctor, which gives VFs to drivers |
//! | `vfs_stay` | [`Numbers`](numbers) | how many VFs there are | for reading, an attach that makes a VF its own; for writing, who changes the number, without a key |
//! | `free_vfs` | [`Host`](host) | a VF that nobody has | an attach that makes it its own; who restores it or makes it anew |
//! | `pods` | [`PodLocks`](pod_locks) | the rules of a pod, and what its routes cost; for all agents of the host | a move of a VF that brings rules or routes with a priority, in or out; who sets such beside an interface of other plugins, or takes them off |
//! | `moves` | [`MoveTurns`](move_turns) | a turn at moving a VF, those into pods first | who takes a VF in or gives it back |
//! | `keeping` | [`upkeep`](super::upkeep) | the keeper's turn at looking | the keeper |
//! | `finishes` | [`Turns`](turns) | a turn at configuring a VF that was moved ahead | who takes it in, and home again if that fails |
//! | `looks` | [`Turns`](turns) | a turn at looking at the kernel | each look, and who fetches VFs home that no record names |
//! | `last` | [`Walks`](stacked) | all namespaces are walked through | who proves VFs |
//! | `followed` | [`StackedByHost`](stacked_by_host) | what the kernel tells of the host's links is read, or they are listed | who moves a VF ahead, with its turn |
//!
//! What is locked for a look into memory is not in the table, as nobody waits for anything with such a lock in hand.
//! Some are taken one within the other: the session's promises, within them the claims, and within these what claims
//! look at, which is records, renewals and proofs.
//!
//! All are fair but for `pods` between agents, and `moves` between the two ways, up to a bound: who comes later waits
//! behind who waits already. So nobody may wait for a key with `vfs_stay` in hand: a change of the number of VFs that
//! waits in between would stop all three.
//!
//! One who holds a key waits out of that order in one place: an attach, for the key of whoever is giving its
//! VF back (`settle_earlier_holder`). Such waits form no circle among attaches of one interface each. The one that is
//! waited for had a record in phase *releasing* when the waiting began; an attach waits for another key only once it
//! has seen that its own key has none (`make_way`), and while it holds its key nobody else makes one. It may have made
//! a guess itself, which nobody waits for: one that has to go home is gone before, or the attach fails. So in a chain
//! of waits each one that is waited for began to wait later than the one that waits for it, and no chain comes back to
//! where it began. An attach of several interfaces holds some of its keys while it waits for the others; were one of
//! these attached by itself at that moment, two could wait for each other. So each wait is bounded by the
//! time that a VF may take to come home, after which the attach is refused. An attach also asks
//! again while the DPU answers that it is about to get back what is asked for (`verbs/attach.rs`): it waits for no
//! lock, and no longer than that.
//!
//! # Who races
//!
//! - *Two for one attachment.* The lock of its key. A VF needs no lock of its own once a record holds it: one at
//!   most does, and whoever works at it holds that record's key.
//! - *An attach with whoever restores or renews free VFs.* `free_vfs`, and a look at the records once it is held:
//!   the attach keeps it until its record is there.
//! - *Two attaches for one VF.* One that was promised is [claimed](claims) by one of them, which keeps it until a
//!   record holds it, or it is given up. Of one that the DPU chose the record decides: who finds it held by another
//!   attachment leaves it alone.
//! - *An attach that takes a promised VF with the end of the session.* The session's list of promises is locked from
//!   the look at it until the VF is claimed, and is closed before the next hello lists what is in use. So what was
//!   taken is listed, and nothing is taken that is not.
//! - *A claim with a listing.* Claims are listed before records, and end only once there is a record, or the VF is at
//!   home: a VF that passes from one to the other is in one of both.
//! - *A VF that is moved ahead with the DPU's answer.* Both are awaited, whatever becomes of either, before its record
//!   takes the guess's place or it goes home. Its own key is held all the while.
//! - *An attach with a change of the number of VFs.* `vfs_stay`.
//! - *Two interfaces of one pod*, of one agent or of two. `pods`: what the one leaves or takes away depends on what
//!   the other has. It is waited for within bounds, for the other agent may be suspended.
//! - *A listing with a move.* Nothing is held. Links are listed before records, so that a VF which leaves meanwhile
//!   has a record by then and is not taken for a free one.
//! - *A look with the kernel's own moves*, as when a pod's namespace ends or a card is reset. Nothing can be held
//!   against those: the kernel tells of each arrival, and whoever waits for one has subscribed before it looked.

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

/// What tests of other rooms may do here.
#[cfg(test)]
pub(super) mod tests {
    pub(in crate::agent) use super::{
        intake::tests::attach_of,
        records::tests::keep,
        renewal::tests::{hold_renewals, leave_unfinished, unfinished},
        room::tests::{change_of_numbers, turn_at_moving, vfs, vfs_of},
    };
}
