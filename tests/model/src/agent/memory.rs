//! What the agent has in memory.

use std::collections::BTreeMap;

use crate::{
    names::{AttachmentId, CallId, Key, Netns, Promise, Record, SessionId, Vf},
    wire::{Detach, VfCondition},
};

/// What the agent has in memory besides its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// How it stands with the DPU.
    pub standing: Standing,
    /// What is under way with each container's key: who is here holds the key's lock.
    pub tasks: Vec<Option<Task>>,
    /// The call of ADD that each key's task is of.
    pub calls: Vec<CallId>,
    /// The VFs that the DPU has promised in the session and that no ADD has taken, with the numbers of that.
    pub promises: BTreeMap<Vf, u8>,
    /// What each key's ADD has taken of them, until its VF is recorded or all is taken back.
    pub claims: Vec<Option<Promise>>,
    /// Who waits for the lock.
    pub waiting: Vec<Vec<Wish>>,
    /// What calls whose answers never came may have left on the DPU.
    pub undelivered: Vec<Detach>,
    /// What came into its pod while nobody could be told.
    pub untold: Vec<AttachmentId>,
    /// What the DPU was told last. `None`: it is to be told anew.
    pub sent_inventory: Option<Vec<(Vf, VfCondition)>>,
}

/// How it stands with the DPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// There is no session.
    Down,
    /// A hello is being written: what is under way has been listed.
    Connecting(Vec<Key>),
    /// The hello is on its way.
    Opening(SessionId),
    /// The DPU has welcomed the host.
    Up(SessionId),
}

/// What somebody wants of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// The runtime: ADD.
    Add(Netns, CallId),
    /// The runtime: DEL.
    Del,
    /// The DPU: give it back.
    Release(AttachmentId),
}

/// What is under way with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The next step.
    pub step: Step,
    /// What follows the last one.
    pub then: Then,
}

/// A step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Ask the DPU, on another session than the one that was asked before.
    CallAttach(Netns, Option<SessionId>),
    /// Ask the DPU again, which could not give what was asked for.
    AskAgain(Netns),
    /// It was asked.
    AwaitAttach(Netns, SessionId),
    /// Take the VF of a guess home, which the DPU does not give.
    TakeHome(Netns),
    /// Write the record. An earlier holder of the VF was asked to finish.
    WriteRecord(Netns, Record, bool),
    /// Move the VF into the pod.
    MoveIn(Netns, Record),
    /// Record that the pod keeps it.
    Keep(Netns, Record),
    /// Answer the ADD. It was answered before, or not.
    Answer(Netns, Record, bool),
    /// Begin to give it back.
    BeginRelease(AttachmentId),
    /// Record that it is being given back, of which the DPU could not be told.
    RecordRelease(AttachmentId),
    /// Get the VF home.
    BringHome(AttachmentId),
    /// Tell the DPU.
    CallDetach(Giving, Detach),
    /// It was told.
    AwaitDetach(Giving, Detach, SessionId),
}

/// What a Detach is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Giving {
    /// A record's attachment, whose VF is leaving its pod.
    Leaving(AttachmentId),
    /// A record's attachment, whose VF is home or not.
    Recorded(AttachmentId, bool),
    /// A DEL without a record.
    Unrecorded,
    /// A release of the DPU's without a record.
    Unknown,
    /// An attachment that could not be recorded.
    Unused,
    /// What a call without an answer has left, perhaps.
    Disowned,
}

/// What follows the last step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// ADD succeeds.
    AnswerAdd,
    /// ADD goes on: an earlier attachment of the key was in its way.
    GoOn(Netns),
    /// ADD fails.
    FailAdd,
    /// DEL succeeds.
    AnswerDel,
    /// Nobody waits.
    Nothing,
}

impl Agent {
    /// A process that has just been started.
    #[must_use]
    pub fn new(containers: usize) -> Self {
        Self {
            standing: Standing::Down,
            tasks: vec![None; containers],
            calls: vec![0; containers],
            promises: BTreeMap::new(),
            claims: vec![None; containers],
            waiting: vec![Vec::new(); containers],
            undelivered: Vec::new(),
            untold: Vec::new(),
            sent_inventory: None,
        }
    }

    /// What is under way with a key.
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

    /// What a key's ADD has taken.
    #[must_use]
    pub fn claimed(&self, key: Key) -> Option<Promise> {
        self.claims[usize::from(key.container)]
    }

    pub(super) fn claim(&mut self, key: Key, promise: Option<Promise>) {
        self.claims[usize::from(key.container)] = promise;
    }

    /// Whether an ADD has taken a VF.
    pub(super) fn has_claim(&self, vf: Vf) -> bool {
        self.claims.iter().flatten().any(|claim| claim.vf == vf)
    }

    /// `vfs/keys.rs::is_add_waiting`: whether an ADD waits for a key's lock.
    #[must_use]
    pub fn is_repeated(&self, key: Key) -> bool {
        let waiting = &self.waiting[usize::from(key.container)];
        waiting.iter().any(|wish| matches!(wish, Wish::Add(..)))
    }

    /// The session in force.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self.standing {
            Standing::Up(session) => Some(session),
            _ => None,
        }
    }

    /// `dpu/pending_detaches.rs::note`: one for each key.
    pub(super) fn note(&mut self, detach: Detach) {
        self.undelivered.retain(|other| other.key != detach.key);
        self.undelivered.push(detach);
        self.undelivered.sort_unstable();
    }

    /// Whether somebody waits for a key's lock.
    #[must_use]
    pub fn is_wanted(&self, key: Key) -> bool {
        !self.waiting[usize::from(key.container)].is_empty()
    }
}

impl Step {
    /// Whether the record of a guess and its move go on beside it: until the call is over.
    pub(super) fn is_beside_guess(&self) -> bool {
        matches!(
            self,
            Self::CallAttach(..)
                | Self::AwaitAttach(..)
                | Self::CallDetach(Giving::Disowned, _)
                | Self::AwaitDetach(Giving::Disowned, ..)
        )
    }
}

impl Task {
    /// Whether an attach is under way that nobody was answered, as `dpu/reports.rs::enter_pending` says.
    pub(super) fn is_pending(&self, is_claiming: bool) -> bool {
        match self.step {
            // Before it was asked for, a hello must not make the DPU wait for it.
            Step::CallAttach(_, asked) => asked.is_some() || is_claiming,
            Step::AskAgain(_)
            | Step::AwaitAttach(..)
            | Step::TakeHome(_)
            | Step::WriteRecord(..)
            | Step::Keep(..)
            | Step::Answer(..) => true,
            Step::MoveIn(..) => self.then == Then::AnswerAdd,
            Step::CallDetach(giving, _) | Step::AwaitDetach(giving, ..) => {
                self.then == Then::FailAdd && matches!(giving, Giving::Unused | Giving::Disowned)
            }
            _ => false,
        }
    }
}
