//! What keeps the promises, one by one.
//!
//! `tests/counterexamples.rs` takes them out and shows what breaks then. Four have no such test, for
//! nothing breaks without them within bounds that were tried: `InventoryOfCurrentSession`,
//! `VerdictOfCurrentSession`, `EarlierHolderSettled` and `GuessInUse`.

use clap::ValueEnum;

/// A part of the protocol that keeps something from happening. Each can be taken out, to see what it
/// is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protection {
    /// A Detach names the attachment that it means.
    AttachmentIdFence,
    /// An Attach of an earlier session is refused.
    SessionCheck,
    /// The agent's record is written before the VF is moved.
    RecordBeforeMove,
    /// The service's record is written before the answer.
    JournalBeforeAnswer,
    /// The representor is programmed before the answer.
    ProgramBeforeAnswer,
    /// A hello lists the attaches under way.
    PendingInHello,
    /// An inventory says nothing of a VF that came back later.
    AsOf,
    /// What is given back is freed only once its VF is home.
    FreedOnlyWhenHome,
    /// An inventory does not free the VF of an Attach under way.
    UnderWay,
    /// The host itself ends its calls by detaching.
    DetachEndsCalls,
    /// An inventory of an earlier session is refused.
    InventoryOfCurrentSession,
    /// What follows from a hello is carried out only while its session is in force.
    VerdictOfCurrentSession,
    /// An attachment that the host does not know is kept until its VF is home.
    UnclaimedKept,
    /// Attachments of an earlier boot are over.
    BootId,
    /// A VF that another record holds is not touched.
    OneRecordPerVf,
    /// An earlier record of the VF is finished first.
    EarlierHolderSettled,
    /// A record stays until the DPU was told.
    ReleasingUntilTold,
    /// A Detach that says that the VF is back offers it.
    ReturnOffers,
    /// What is to be known of a VF is learned while it is in use, too.
    KnownWhileInUse,
    /// An inventory says nothing of a VF that a later Detach has told to be away, either.
    AsOfAbsent,
    /// A host that has an attach under way is told that it was released, too.
    PendingIsToldOfRelease,
    /// A Detach of an earlier session is refused.
    DetachSessionCheck,
    /// A DEL without a record, whose Detach got no answer, is told again; and the inventory with it.
    UnrecordedIsToldAgain,
    /// Who gives up a call that was never answered does not claim that the VF is home.
    DisownClaimsNothing,
    /// A hello that a newer one has overtaken is refused.
    NewestHello,
    /// A caller is looked for before its ADD is done.
    CallerLookedFor,
    /// An ADD that nobody was answered is undone when the agent starts.
    UnansweredUndone,
    /// That an attachment is kept is recorded before the answer.
    KeptBeforeAnswer,
    /// What was answered stays, though the caller of a repeat has gone.
    AnsweredStays,
    /// An Attach that a later Detach of its key has overtaken reserves nothing.
    OvertakenReservesNothing,
    /// A Detach without an id ends nothing that its host has asked for since. Here it is served before that
    /// Attach, which comes to the same.
    DetachBeforeLaterAttach,
    /// A key names its host: containers of two hosts may have the same id.
    HostInKey,
    /// A hello ends no session but that of its own host.
    SessionOfEachHost,
    /// A hello settles the attachments of its own host only.
    HelloJudgesItsOwn,
    /// A host gets VFs of its own only.
    OwnVfsOnly,
    /// The record of a guess is written before its VF is moved.
    GuessBeforeMove,
    /// Inventories say of the VF of a guess that it is in use.
    GuessInUse,
    /// A VF that its host holds for a guess can be had for that.
    GuessWithdrawsNothing,
    /// A guess is given up where the DPU has an earlier attachment of its key still, perhaps with its VF.
    GuessGivesWay,
    /// What was guessed for is given back by its key, whatever the DPU has made of that.
    GuessDisownedByKey,
    /// No two ADDs claim one VF.
    OneClaimPerVf,
    /// The DPU gives the VF that was wished for, or none.
    WishIsExact,
    /// Who names no VF is given none that others have claimed.
    OthersAvoided,
    /// A VF that is claimed while an attach is under way that names none is not moved before the DPU has answered.
    NoMoveBesideUnnamed,
    /// Nor is one while the DPU is still to be told of something that is given back.
    NoMoveWhileUndelivered,
    /// Nobody claims a VF that the DPU held at its welcome for an attachment that the host's hello did not know.
    UnclaimedIsNotClaimed,
    /// The service unprograms what serves nobody before it serves anybody.
    ClearedBeforeServing,
    /// An address is had again only once the disk knows that it was given back.
    AddressFreedLast,
}

/// What is in place: all but what is taken out.
#[derive(Clone, Copy, Debug)]
pub struct Protections<'a> {
    without: &'a [Protection],
}

impl<'a> Protections<'a> {
    /// All but these.
    #[must_use]
    pub fn without(without: &'a [Protection]) -> Self {
        Self { without }
    }

    /// Whether it is in place.
    #[must_use]
    pub fn has(self, protection: Protection) -> bool {
        !self.without.contains(&protection)
    }
}
