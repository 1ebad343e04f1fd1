//! What keeps the promises, one by one.
//!
//! `tests/counterexamples.rs` takes them out and shows what breaks then. Three have no such test, for
//! nothing breaks without them within bounds that were tried: `InventoryOfCurrentSession`,
//! `VerdictOfCurrentSession` and `EarlierHolderSettled`.

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
    /// What was guessed for is given back by its key, whatever the DPU has made of that.
    GuessDisownedByKey,
    /// A promised VF is given to nobody who does not name it.
    PromisedToNobodyElse,
    /// Who names a promised VF is given that, or none.
    PromisedOrNone,
    /// A VF is given only to who names its latest promise.
    PromiseNumbers,
    /// What was promised in a session ends with it.
    PromisesEnd,
    /// Nobody takes what was promised in a session that is over: the next hello tells what is in use.
    ClosedBeforeHello,
    /// Inventories say of a VF that an ADD has taken that it is in use.
    ClaimedInUse,
    /// The DPU is told of a VF that was taken for nothing, and tells of it again.
    UntakenIsTold,
    /// A VF that came back is told of again.
    ReturnedToldAgain,
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
