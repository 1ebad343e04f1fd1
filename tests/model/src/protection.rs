//! The protections, one by one.
//!
//! `tests/counterexamples.rs` removes each and shows what breaks. Three have no such test, because nothing breaks
//! without them within the bounds that were tried: `InventoryOfCurrentSession`, `VerdictOfCurrentSession` and
//! `EarlierHolderSettled`.

use clap::ValueEnum;

/// A rule of the protocol that prevents a failure. Each can be removed to show the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protection {
    /// A Detach names the attachment.
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
    /// An inventory does not apply to a VF that came back later.
    AsOf,
    /// A released attachment is freed only once its VF is home.
    FreedOnlyWhenHome,
    /// An inventory does not free the VF of an Attach in progress.
    UnderWay,
    /// A host ends its calls by a Detach.
    DetachEndsCalls,
    /// An inventory of an earlier session is refused.
    InventoryOfCurrentSession,
    /// The consequences of a hello are carried out only while its session is in force.
    VerdictOfCurrentSession,
    /// An attachment that its host does not know is kept until its VF is home.
    UnclaimedKept,
    /// Attachments of an earlier boot are over.
    BootId,
    /// A VF that another record holds is not touched.
    OneRecordPerVf,
    /// An earlier record of the VF is finished first.
    EarlierHolderSettled,
    /// A record stays until the DPU has confirmed the release.
    ReleasingUntilConfirmed,
    /// A Detach that reports the VF back marks it as free.
    ReturnMarksFree,
    /// Facts of a VF are learned also while it is in use.
    KnownWhileInUse,
    /// An inventory does not apply to a VF that a later Detach reported as away.
    AsOfAbsent,
    /// A host with an Attach in progress is informed of its release, too.
    PendingGetsRelease,
    /// A Detach of an earlier session is refused.
    DetachSessionCheck,
    /// A DEL without a record is reported again if its Detach got no answer, and so is the inventory.
    UnrecordedIsReportedAgain,
    /// An agent that abandons an unanswered call does not claim that the VF is home.
    DisownClaimsNothing,
    /// A hello that a newer one has overtaken is refused.
    NewestHello,
    /// The agent checks for the caller before it completes an ADD.
    CallerLookedFor,
    /// An ADD that was not answered is undone when the agent starts.
    UnansweredUndone,
    /// The record says that an attachment is kept before the ADD is answered.
    KeptBeforeAnswer,
    /// An answered attachment stays when the caller of a repeated ADD is gone.
    AnsweredStays,
    /// An Attach that a later Detach of its key has overtaken reserves nothing.
    TombstoneReservesNothing,
    /// A Detach without an id does not end a later Attach of its host. In the model the Detach is served first,
    /// which has the same result.
    DetachBeforeLaterAttach,
    /// A key includes its host: containers of two hosts may have the same id.
    HostInKey,
    /// A hello ends only a session of its own host.
    SessionOfEachHost,
    /// A hello decides only about attachments of its own host.
    HelloJudgesItsOwn,
    /// A host gets only its own VFs.
    OwnVfsOnly,
    /// The record of a speculative move is written before the VF is moved.
    SpeculativeRecordFirst,
    /// A speculative attach is released by its key, whatever the DPU has made of it.
    SpeculativeReleasedByKey,
    /// An offered VF goes only to a request that names it.
    OfferedNeedsName,
    /// A request that names an offered VF gets that VF or none.
    NamedOrNone,
    /// A VF goes only to a request with its latest offer.
    OfferNumbers,
    /// Offers of a session end with it.
    OffersEnd,
    /// Offers cannot be taken after the session's end: the next hello reports which VFs are in use.
    ClosedBeforeHello,
    /// Inventories report a VF that an ADD has taken as in use.
    HeldInUse,
    /// The agent declines a VF that it has taken and does not use, and the DPU offers it again.
    DeclinedIsReported,
    /// A VF that came back is offered again.
    ReturnedIsOfferedAgain,
    /// After its start, the service unprograms unused representors before it serves calls.
    ClearedBeforeServing,
    /// An address is free only once its release is on the disk.
    AddressFreedLast,
}

/// The protections in place.
#[derive(Clone, Copy, Debug)]
pub struct Protections<'a> {
    without: &'a [Protection],
}

impl<'a> Protections<'a> {
    /// All except these.
    #[must_use]
    pub fn without(without: &'a [Protection]) -> Self {
        Self { without }
    }

    /// Whether the protection is in place.
    #[must_use]
    pub fn has(self, protection: Protection) -> bool {
        !self.without.contains(&protection)
    }
}
