//! The agent's memory.

use std::collections::BTreeMap;

use crate::{
    names::{AttachmentId, CallId, Key, Netns, Offer, Record, SessionId, Vf},
    wire::{Detach, VfCondition},
};

/// The agent's memory, without its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// The state of its connection to the DPU.
    pub standing: Standing,
    /// The task of each container's key, which holds the key's lock.
    pub tasks: Vec<Option<Task>>,
    /// The call of ADD that each key's task belongs to.
    pub calls: Vec<CallId>,
    /// The session's offered VFs that no ADD has taken, with the numbers of their offers.
    pub offers: BTreeMap<Vf, u8>,
    /// The offer that each key's ADD has taken, until its VF is recorded or the ADD is undone.
    pub vf_holds: Vec<Option<Offer>>,
    /// The requests that wait for each key's lock.
    pub waiting: Vec<Vec<LockRequest>>,
    /// Pending detaches: calls without an answer may have left attachments on the DPU.
    pub undelivered: Vec<Detach>,
    /// Attachments that went live without a session to report them.
    pub unreported: Vec<AttachmentId>,
    /// The latest inventory sent. `None`: it has to be sent again.
    pub sent_inventory: Option<Vec<(Vf, VfCondition)>>,
}

/// The state of the connection to the DPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// There is no session.
    Down,
    /// A hello is being written. The attaches in progress have been listed.
    Connecting(Vec<Key>),
    /// The hello was sent.
    Opening(SessionId),
    /// The DPU has replied to the hello.
    Up(SessionId),
}

/// A request for an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockRequest {
    /// ADD, from the runtime.
    Add(Netns, CallId),
    /// DEL, from the runtime.
    Del,
    /// A release, from the DPU.
    Release(AttachmentId),
}

/// The task of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The next step.
    pub step: Step,
    /// What follows the last step.
    pub then: Then,
}

/// A step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Ask the DPU, in another session than the one that was asked before.
    CallAttach(Netns, Option<SessionId>),
    /// Ask the DPU again after a refusal about the VF.
    AskAgain(Netns),
    /// Wait for the answer.
    AwaitAttach(Netns, SessionId),
    /// Move back a speculatively moved VF that the DPU has refused.
    MoveSpeculativeBack(Netns),
    /// Write the record. `true`: the VF's earlier holder was asked to finish.
    WriteRecord(Netns, Record, bool),
    /// Move the VF into the pod.
    MoveIn(Netns, Record),
    /// Record that the pod keeps it.
    Keep(Netns, Record),
    /// Answer the ADD. `true`: it was answered before.
    Answer(Netns, Record, bool),
    /// Begin a release.
    BeginRelease(AttachmentId),
    /// Record the release, which could not be reported to the DPU.
    RecordRelease(AttachmentId),
    /// Move the VF back.
    MoveBack(AttachmentId),
    /// Send a Detach.
    CallDetach(DetachReason, Detach),
    /// Wait for its answer.
    AwaitDetach(DetachReason, Detach, SessionId),
}

/// The reason of a Detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetachReason {
    /// A recorded attachment whose VF is leaving its pod.
    Leaving(AttachmentId),
    /// A recorded attachment. `true`: the VF is home.
    Recorded(AttachmentId, bool),
    /// A DEL without a record.
    Unrecorded,
    /// A release requested by the DPU without a record.
    Unknown,
    /// An attachment that could not be recorded.
    Unused,
    /// An attachment that a call without an answer may have left.
    Disowned,
}

/// What follows the last step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// ADD succeeds.
    AnswerAdd,
    /// ADD continues: an earlier attachment of the key has been released.
    GoOn(Netns),
    /// ADD fails.
    FailAdd,
    /// DEL succeeds.
    AnswerDel,
    /// No caller waits.
    Nothing,
}

impl Agent {
    /// A new process.
    #[must_use]
    pub fn new(containers: usize) -> Self {
        Self {
            standing: Standing::Down,
            tasks: vec![None; containers],
            calls: vec![0; containers],
            offers: BTreeMap::new(),
            vf_holds: vec![None; containers],
            waiting: vec![Vec::new(); containers],
            undelivered: Vec::new(),
            unreported: Vec::new(),
            sent_inventory: None,
        }
    }

    /// The task of a key.
    #[must_use]
    pub fn task(&self, key: Key) -> Option<&Task> {
        self.tasks[usize::from(key.container)].as_ref()
    }

    pub(super) fn set(&mut self, key: Key, step: Step, then: Then) {
        self.tasks[usize::from(key.container)] = Some(Task { step, then });
    }

    pub(super) fn end(&mut self, key: Key) {
        self.tasks[usize::from(key.container)] = None;
        self.calls[usize::from(key.container)] = 0;
    }

    /// The offer that a key's ADD has taken.
    #[must_use]
    pub fn hold_of(&self, key: Key) -> Option<Offer> {
        self.vf_holds[usize::from(key.container)]
    }

    pub(super) fn set_hold(&mut self, key: Key, offer: Option<Offer>) {
        self.vf_holds[usize::from(key.container)] = offer;
    }

    /// Whether an ADD has taken a VF.
    pub(super) fn is_held_by_add(&self, vf: Vf) -> bool {
        self.vf_holds.iter().flatten().any(|hold| hold.vf == vf)
    }

    /// `vfs/keys.rs::is_add_waiting`: whether an ADD waits for a key's lock.
    #[must_use]
    pub fn is_repeated(&self, key: Key) -> bool {
        let waiting = &self.waiting[usize::from(key.container)];
        waiting.iter().any(|request| matches!(request, LockRequest::Add(..)))
    }

    /// The current session.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self.standing {
            Standing::Up(session) => Some(session),
            _ => None,
        }
    }

    /// `dpu/pending_detaches.rs::note`: keeps one per key.
    pub(super) fn note(&mut self, detach: Detach) {
        self.undelivered.retain(|other| other.key != detach.key);
        self.undelivered.push(detach);
        self.undelivered.sort_unstable();
    }

    /// Whether a request waits for a key's lock.
    #[must_use]
    pub fn is_wanted(&self, key: Key) -> bool {
        !self.waiting[usize::from(key.container)].is_empty()
    }
}

impl Step {
    /// Whether a speculative record and move continue in parallel: until the call is over.
    pub(super) fn allows_speculation(&self) -> bool {
        matches!(
            self,
            Self::CallAttach(..)
                | Self::AwaitAttach(..)
                | Self::CallDetach(DetachReason::Disowned, _)
                | Self::AwaitDetach(DetachReason::Disowned, ..)
        )
    }
}

impl Task {
    /// Whether an unanswered attach is in progress, as `dpu/reports.rs::enter_pending` decides.
    pub(super) fn is_pending(&self, has_hold: bool) -> bool {
        match self.step {
            // Before the DPU was asked, a hello must not make it wait for this attach.
            Step::CallAttach(_, asked) => asked.is_some() || has_hold,
            Step::AskAgain(_)
            | Step::AwaitAttach(..)
            | Step::MoveSpeculativeBack(_)
            | Step::WriteRecord(..)
            | Step::Keep(..)
            | Step::Answer(..) => true,
            Step::MoveIn(..) => self.then == Then::AnswerAdd,
            Step::CallDetach(reason, _) | Step::AwaitDetach(reason, ..) => {
                self.then == Then::FailAdd
                    && matches!(reason, DetachReason::Unused | DetachReason::Disowned)
            }
            _ => false,
        }
    }
}
