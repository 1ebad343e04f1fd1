//! The agent on a host: host-shim/src/agent.

mod attach;
mod detach;
mod recovery;
mod session;

use crate::{
    protocol::Protocol,
    system::{
        AttachmentId, CallId, Function, HostId, Key, Netns, Place, Record, SessionId, System, Vf,
    },
    wire::{Answer, Detach, InFlight, Request, VfCondition},
};

pub use session::conditions;

use attach::{calls_attach, hears_attached};
use detach::{begins_del, begins_release, begins_release_on_request, brings_home};
use recovery::{delivers_detach, reconciles, upkeep};
use session::{hears, notices_end, sends_inventory};

/// What the agent has in memory besides its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// How it stands with the DPU.
    pub standing: Standing,
    /// What is under way with each container's key: who is here holds the key's lock.
    pub tasks: Vec<Option<Task>>,
    /// The call of ADD that each key's task is of.
    pub calls: Vec<CallId>,
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
    /// It was asked.
    AwaitAttach(Netns, SessionId),
    /// Write the record. An earlier holder of the VF was asked to finish.
    WriteRecord(Netns, Record, bool),
    /// Move the VF into the pod.
    MoveIn(Netns, Record),
    /// Record that the pod keeps it.
    Keep(Netns, Record),
    /// Answer the ADD. It was answered before, or not.
    Answer(Netns, Record, bool),
    /// Record that it is being given back.
    BeginRelease(AttachmentId),
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

    fn set(&mut self, key: Key, step: Step, then: Then) {
        self.tasks[usize::from(key.container)] = Some(Task { step, then });
    }

    fn end(&mut self, key: Key) {
        self.tasks[usize::from(key.container)] = None;
        self.calls[usize::from(key.container)] = 0;
    }

    /// `Agent::repeats`: whether an ADD waits for a key's lock.
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

    /// `Undelivered::note`: one for each key.
    fn note(&mut self, detach: Detach) {
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

impl Task {
    /// Whether an attach is under way that nobody was answered: `Pending`.
    fn is_pending(&self) -> bool {
        match self.step {
            // Before it was asked for, a hello must not make the DPU wait for it.
            Step::CallAttach(_, asked) => asked.is_some(),
            Step::AwaitAttach(..) | Step::WriteRecord(..) | Step::Keep(..) | Step::Answer(..) => {
                true
            }
            Step::MoveIn(..) => self.then == Then::AnswerAdd,
            Step::CallDetach(giving, _) | Step::AwaitDetach(giving, ..) => {
                self.then == Then::FailAdd && matches!(giving, Giving::Unused | Giving::Disowned)
            }
            _ => false,
        }
    }
}

/// What an agent can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// `Agent::attach`, `detach` or `release_on_request`: somebody gets the key's lock.
    Begins(Key),
    /// `Agent::call_attach`.
    CallsAttach(Key),
    /// `Agent::call_attach`: the answer.
    HearsAttached(Key),
    /// `Agent::record`.
    WritesRecord(Key),
    /// `Agent::ask_for`: the caller of an attach has gone.
    NoticesHangup(Key, InFlight),
    /// `Agent::move_in`.
    MovesIn(Key),
    /// `Agent::confirm`, the first half: the record.
    Keeps(Key),
    /// `Agent::confirm`, the second half: the answer.
    Answers(Key),
    /// `Agent::begin_release`.
    BeginsRelease(Key),
    /// `Agent::bring_home`.
    BringsHome(Key),
    /// `Agent::call_detach`.
    CallsDetach(Key),
    /// `Agent::call_detach`: the answer.
    HearsDetached(Key),
    /// `Agent::reconcile`, unasked.
    Reconciles(Key),
    /// `Agent::deliver_detaches`.
    DeliversDetach(Key),
    /// `Agent::restore_free_vfs`.
    RestoresFreeVf(Vf),
    /// `Agent::send_inventory`.
    SendsInventory(HostId),
    /// `Agent::hello`, the first half: what is under way is listed before what is recorded.
    Connects(HostId),
    /// `Agent::hello`, the second half.
    SaysHello(HostId),
    /// `Agent::hear`.
    Hears(HostId),
    /// `Session::keep`: the DPU has ended the session.
    NoticesEnd(HostId),
}

impl Protocol {
    /// What the agent of a host can do next.
    pub fn agent_actions(&self, system: &System, host: HostId, add: &mut impl FnMut(AgentAction)) {
        let Some(agent) = &system.hosts[usize::from(host)].agent else { return };
        for key in system.keys().filter(|key| key.host == host) {
            match agent.task(key) {
                Some(task) => self.task_actions(system, key, *task, add),
                None => Self::idle_actions(system, agent, key, add),
            }
        }
        for vf in system.vfs().filter(|vf| system.host_of(*vf) == host) {
            let function = system.function(vf);
            let is_free = function.place == Place::Home
                && function.carries.is_some()
                && system.hosts[usize::from(host)].by_vf(vf).is_none();
            if is_free {
                add(AgentAction::RestoresFreeVf(vf));
            }
        }
        self.session_actions(system, host, agent, add);
    }

    fn idle_actions(system: &System, agent: &Agent, key: Key, add: &mut impl FnMut(AgentAction)) {
        if agent.is_wanted(key) {
            add(AgentAction::Begins(key));
        }
        if upkeep(system, key).is_some() {
            add(AgentAction::Reconciles(key));
        }
        let is_up = agent.session().is_some();
        if is_up && agent.undelivered.iter().any(|detach| detach.key == key) {
            add(AgentAction::DeliversDetach(key));
        }
    }

    fn task_actions(
        &self,
        system: &System,
        key: Key,
        task: Task,
        add: &mut impl FnMut(AgentAction),
    ) {
        let host = system.host(key);
        let Some(agent) = &host.agent else { return };
        let is_answered = || host.wire.answers.iter().any(|(of, _)| *of == key);
        let is_asking = matches!(task.step, Step::CallAttach(..) | Step::AwaitAttach(..));
        if is_asking && !system.is_awaited(key, agent.calls[usize::from(key.container)]) {
            add(AgentAction::NoticesHangup(key, InFlight::Late));
            let is_under_way = |request: &Request| request.is_awaited && request.key == key;
            if host.wire.requests.iter().any(is_under_way) {
                add(AgentAction::NoticesHangup(key, InFlight::Lost));
            }
        }
        match task.step {
            Step::CallAttach(_, asked) => {
                if agent.session().is_some_and(|session| Some(session) != asked) {
                    add(AgentAction::CallsAttach(key));
                }
            }
            Step::AwaitAttach(..) if is_answered() => add(AgentAction::HearsAttached(key)),
            Step::AwaitDetach(..) if is_answered() => add(AgentAction::HearsDetached(key)),
            Step::AwaitAttach(..) | Step::AwaitDetach(..) => {}
            Step::WriteRecord(_, attachment, _) => {
                let other = host.by_vf(attachment.vf).map(|holder| holder.attachment.key);
                if other.is_none_or(|other| other == key || agent.task(other).is_none()) {
                    add(AgentAction::WritesRecord(key));
                }
            }
            Step::MoveIn(..) => add(AgentAction::MovesIn(key)),
            Step::Keep(..) => add(AgentAction::Keeps(key)),
            Step::Answer(..) => add(AgentAction::Answers(key)),
            Step::BeginRelease(_) => add(AgentAction::BeginsRelease(key)),
            Step::BringHome(_) => add(AgentAction::BringsHome(key)),
            // Where a session is about to begin, it is waited for.
            Step::CallDetach(..) => {
                if matches!(agent.standing, Standing::Up(_) | Standing::Down) {
                    add(AgentAction::CallsDetach(key));
                }
            }
        }
    }

    fn session_actions(
        &self,
        system: &System,
        host: HostId,
        agent: &Agent,
        add: &mut impl FnMut(AgentAction),
    ) {
        let streams = &system.hosts[usize::from(host)].wire.streams;
        let stream = |session| streams.iter().find(|stream| stream.session == session);
        match agent.standing {
            Standing::Down if system.dpu.service.is_some() => add(AgentAction::Connects(host)),
            Standing::Down => {}
            Standing::Connecting(_) => add(AgentAction::SaysHello(host)),
            Standing::Opening(session) | Standing::Up(session) => {
                let Some(stream) = stream(session) else { return };
                if !stream.down.is_empty() {
                    add(AgentAction::Hears(host));
                } else if stream.is_ended {
                    add(AgentAction::NoticesEnd(host));
                }
                let is_up = agent.session().is_some();
                if is_up && agent.sent_inventory.as_ref() != Some(&conditions(system, host)) {
                    add(AgentAction::SendsInventory(host));
                }
            }
        }
    }

    /// Does what an agent can do.
    pub fn agent_does(&self, system: &mut System, action: AgentAction) {
        match action {
            AgentAction::Begins(key) => self.begins(system, key),
            AgentAction::CallsAttach(key) => calls_attach(system, key),
            AgentAction::HearsAttached(key) => hears_attached(system, key),
            AgentAction::NoticesHangup(key, in_flight) => {
                self.abandon(system, key, in_flight);
                self.disowns(system, key);
            }
            AgentAction::Keeps(key) => self.keeps(system, key),
            AgentAction::Answers(key) => self.answers(system, key),
            AgentAction::WritesRecord(key) => self.writes_record(system, key),
            AgentAction::MovesIn(key) => self.moves_in(system, key),
            AgentAction::BeginsRelease(key) => begins_release(system, key),
            AgentAction::BringsHome(key) => brings_home(system, key),
            AgentAction::CallsDetach(key) => self.calls_detach(system, key),
            AgentAction::HearsDetached(key) => {
                let answer = system.host_mut(key).wire.take_answer(key);
                self.detach_ends(system, key, answer == Some(Answer::Detached));
            }
            AgentAction::Reconciles(key) => reconciles(system, key),
            AgentAction::DeliversDetach(key) => delivers_detach(system, key),
            AgentAction::RestoresFreeVf(vf) => system.function_mut(vf).carries = None,
            AgentAction::SendsInventory(host) => sends_inventory(system, host),
            AgentAction::Connects(host) => self.connects(system, host),
            AgentAction::SaysHello(host) => self.says_hello(system, host),
            AgentAction::Hears(host) => hears(system, host),
            AgentAction::NoticesEnd(host) => notices_end(system, host),
        }
    }
}

fn step(system: &System, key: Key) -> Option<Step> {
    Some(system.host(key).agent.as_ref()?.task(key)?.step)
}

fn then(system: &System, key: Key) -> Option<Then> {
    Some(system.host(key).agent.as_ref()?.task(key)?.then)
}

fn set(system: &mut System, key: Key, step: Step, then: Then) {
    if let Some(agent) = system.agent_mut(key) {
        agent.set(key, step, then);
    }
}

fn ends(system: &mut System, key: Key) {
    if let Some(agent) = system.agent_mut(key) {
        agent.end(key);
    }
}

fn move_vf(system: &mut System, attachment: Record, netns: Netns) {
    let carries = Some(attachment.id);
    *system.function_mut(attachment.vf) = Function { place: Place::Pod(netns), carries };
}

impl Protocol {
    fn begins(&self, system: &mut System, key: Key) {
        let Some(agent) = system.agent_mut(key) else { return };
        let wish = agent.waiting[usize::from(key.container)].remove(0);
        match wish {
            Wish::Add(netns, call) => self.begins_add(system, key, netns, call),
            Wish::Del => begins_del(system, key),
            Wish::Release(id) => begins_release_on_request(system, key, id),
        }
    }
}

/// The call of ADD that a key's task is of.
fn call(system: &System, key: Key) -> CallId {
    let agent = system.host(key).agent.as_ref();
    agent.map_or(0, |agent| agent.calls[usize::from(key.container)])
}

/// `Caller::is_waiting`, of the ADD that a key's task is of.
fn is_awaited(system: &System, key: Key) -> bool {
    system.is_awaited(key, call(system, key))
}
