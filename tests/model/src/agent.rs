//! The agent on a host: host-shim/src/agent.

use crate::{
    protocol::{Protection, Protocol},
    system::{
        AgentPhase, AgentRecord, AttachmentId, Function, Host, HostId, Key, Life, Netns, Place,
        Record, SessionId, System, Vf,
    },
    wire::{
        Answer, Call, Detach, DpuMessage, Hello, HostMessage, InFlight, Inventory, Stream,
        VfCondition,
    },
};

/// What the agent has in memory besides its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// How it stands with the DPU.
    pub standing: Standing,
    /// What is under way with each container's key: who is here holds the key's lock.
    pub tasks: Vec<Option<Task>>,
    /// Who waits for the lock.
    pub waiting: Vec<Vec<Wish>>,
    /// What calls whose answers never came may have left on the DPU.
    pub orphans: Vec<Detach>,
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
    Add(Netns),
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
            waiting: vec![Vec::new(); containers],
            orphans: Vec::new(),
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
    }

    /// The session in force.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self.standing {
            Standing::Up(session) => Some(session),
            _ => None,
        }
    }

    /// `Orphans::note`: one for each key.
    fn note(&mut self, orphan: Detach) {
        self.orphans.retain(|other| other.key != orphan.key);
        self.orphans.push(orphan);
        self.orphans.sort_unstable();
    }

    /// Whether somebody waits for a key's lock.
    #[must_use]
    pub fn is_wanted(&self, key: Key) -> bool {
        !self.waiting[usize::from(key.container)].is_empty()
    }
}

impl Task {
    /// Whether an attach is under way that has no record yet: `Pending`.
    fn is_pending(&self) -> bool {
        match self.step {
            Step::CallAttach(..) | Step::AwaitAttach(..) | Step::WriteRecord(..) => true,
            Step::CallDetach(giving, _) | Step::AwaitDetach(giving, ..) => {
                self.then == Then::FailAdd && matches!(giving, Giving::Unused | Giving::Disowned)
            }
            _ => false,
        }
    }
}

/// The keys of attaches under way.
fn pending(host: HostId, agent: &Agent) -> Vec<Key> {
    let tasks = (0..).zip(&agent.tasks);
    let pending = tasks.filter(|(_, task)| task.is_some_and(|task| task.is_pending()));
    pending.map(|(container, _)| Key { host, container }).collect()
}

/// How the host's VFs are: `physical_functions`.
#[must_use]
pub fn conditions(system: &System, host: HostId) -> Vec<(Vf, VfCondition)> {
    let of_host = &system.hosts[usize::from(host)];
    let own = system.vfs().filter(|vf| system.host_of(*vf) == host);
    own.map(|vf| match system.function(vf) {
        _ if of_host.by_vf(vf).is_some() => (vf, VfCondition::InUse),
        Function { place: Place::Home, carries: None } => (vf, VfCondition::Clean),
        _ => (vf, VfCondition::Missing),
    })
    .collect()
}

/// Whether `Agent::bring_home` would find the VF of a record.
fn is_within_reach(system: &System, record: &AgentRecord) -> bool {
    match system.function(record.attachment.vf).place {
        Place::Home => true,
        Place::Pod(netns) => netns == record.netns,
        Place::Nowhere => false,
    }
}

/// Whether `Agent::reconcile` has anything to do for a key, and what.
fn upkeep(system: &System, key: Key) -> Option<Step> {
    let host = system.host(key);
    let record = host.by_key(key)?;
    let id = record.attachment.id;
    let function = system.function(record.attachment.vf);
    if record.phase == AgentPhase::Releasing || record.attachment.boot_id != host.boot_id {
        let is_home = *function == Function { place: Place::Home, carries: None };
        let can_tell = host.agent.as_ref().is_some_and(|agent| agent.session().is_some());
        let has_work = is_within_reach(system, record)
            && (!is_home || can_tell || record.phase == AgentPhase::Live);
        return has_work.then_some(match record.phase {
            AgentPhase::Live => Step::BeginRelease(id),
            AgentPhase::Releasing => Step::BringHome(id),
        });
    }
    match (function.place, system.is_alive(record.netns)) {
        (Place::Home, true) => Some(Step::MoveIn(record.netns, record.attachment)),
        (Place::Home, false) => Some(Step::BeginRelease(id)),
        _ => None,
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
    /// `Agent::move_in`.
    MovesIn(Key),
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
    /// `Agent::settle_orphans`.
    SettlesOrphan(Key),
    /// `Agent::restore_strays`.
    RestoresStray(Vf),
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
            let is_stray = function.place == Place::Home
                && function.carries.is_some()
                && system.hosts[usize::from(host)].by_vf(vf).is_none();
            if is_stray {
                add(AgentAction::RestoresStray(vf));
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
        if is_up && agent.orphans.iter().any(|orphan| orphan.key == key) {
            add(AgentAction::SettlesOrphan(key));
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
            AgentAction::Begins(key) => begins(system, key),
            AgentAction::CallsAttach(key) => calls_attach(system, key),
            AgentAction::HearsAttached(key) => hears_attached(system, key),
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
            AgentAction::SettlesOrphan(key) => settles_orphan(system, key),
            AgentAction::RestoresStray(vf) => system.function_mut(vf).carries = None,
            AgentAction::SendsInventory(host) => sends_inventory(system, host),
            AgentAction::Connects(host) => self.connects(system, host),
            AgentAction::SaysHello(host) => says_hello(system, host),
            AgentAction::Hears(host) => hears(system, host),
            AgentAction::NoticesEnd(host) => notices_end(system, host),
        }
    }

    /// `Agent::record`. The record is written before the VF is touched.
    fn writes_record(&self, system: &mut System, key: Key) {
        let Some(Step::WriteRecord(netns, attachment, has_asked)) = step(system, key) else {
            return;
        };
        let host = system.host(key);
        let is_known = host.by_id(attachment.id).is_some();
        let holder = host.by_vf(attachment.vf).filter(|_| !is_known).copied();
        if let Some(holder) = holder {
            let is_ending = holder.phase == AgentPhase::Releasing;
            if is_ending && !has_asked && self.has(Protection::EarlierHolderSettled) {
                return settles_earlier_holder(system, key, holder, (netns, attachment));
            }
            if self.has(Protection::OneRecordPerVf) {
                return gives_back_unused(system, key, attachment, false);
            }
        }
        if !is_known && system.function(attachment.vf).place != Place::Home {
            return gives_back_unused(system, key, attachment, false);
        }
        match self.has(Protection::RecordBeforeMove) {
            true => system.host_mut(key).put(live(attachment, netns)),
            false => move_vf(system, attachment, netns),
        }
        set(system, key, Step::MoveIn(netns, attachment), Then::AnswerAdd);
    }

    /// `Agent::move_in`.
    fn moves_in(&self, system: &mut System, key: Key) {
        let Some(Step::MoveIn(netns, attachment)) = step(system, key) else { return };
        let is_add = then(system, key) == Some(Then::AnswerAdd);
        if !system.is_alive(netns) {
            return match is_add {
                true => set(system, key, Step::BeginRelease(attachment.id), Then::FailAdd),
                false => ends(system, key),
            };
        }
        match self.has(Protection::RecordBeforeMove) {
            true => move_vf(system, attachment, netns),
            false => system.host_mut(key).put(live(attachment, netns)),
        }
        tell_attached(system, key, attachment.id);
        if is_add {
            answer_add(system, key, netns, Some(attachment.id));
        }
        ends(system, key);
    }

    /// `Agent::call_detach`: without a session it fails.
    fn calls_detach(&self, system: &mut System, key: Key) {
        let Some(Step::CallDetach(giving, detach)) = step(system, key) else { return };
        let Some(then) = then(system, key) else { return };
        let host = system.host_mut(key);
        match host.agent.as_ref().and_then(Agent::session) {
            Some(session) => {
                host.wire.ask(session, Call::Detach(detach));
                set(system, key, Step::AwaitDetach(giving, detach, session), then);
            }
            None => self.detach_ends(system, key, false),
        }
    }

    /// What follows a call of Detach, and with it the task.
    pub fn detach_ends(&self, system: &mut System, key: Key, is_told: bool) {
        let (giving, detach) = match step(system, key) {
            Some(Step::CallDetach(giving, detach) | Step::AwaitDetach(giving, detach, _)) => {
                (giving, detach)
            }
            _ => return,
        };
        let host = system.host_mut(key);
        let Some(agent) = &mut host.agent else { return };
        match giving {
            Giving::Recorded(id, is_home) => {
                let is_over = is_told || !self.has(Protection::ReleasingUntilTold);
                if is_over && is_home {
                    host.forget(id);
                }
            }
            Giving::Unrecorded if is_told => agent.sent_inventory = None,
            Giving::Unrecorded if self.has(Protection::UnrecordedIsOrphan) => agent.note(detach),
            Giving::Unrecorded => {}
            Giving::Unknown => agent.sent_inventory = None,
            Giving::Unused => {
                if !is_told {
                    agent.note(detach);
                }
                agent.sent_inventory = None;
            }
            Giving::Disowned if is_told => agent.sent_inventory = None,
            Giving::Disowned => agent.note(detach),
        }
        release_ends(system, key);
    }

    /// A call gets no answer any more.
    pub fn call_fails(&self, system: &mut System, key: Key, in_flight: InFlight) {
        self.abandon(system, key, in_flight);
        match step(system, key) {
            Some(Step::AwaitAttach(netns, session)) => {
                set(system, key, Step::CallAttach(netns, Some(session)), Then::AnswerAdd);
            }
            Some(Step::AwaitDetach(..)) => self.detach_ends(system, key, false),
            _ => {}
        }
    }

    /// `Agent::disown`: an attach is given up though its answer never came.
    pub fn disowns(&self, system: &mut System, key: Key) {
        let netns = match step(system, key) {
            Some(Step::CallAttach(netns, _) | Step::AwaitAttach(netns, _)) => netns,
            _ => return,
        };
        let was_asked = !matches!(step(system, key), Some(Step::CallAttach(_, None)));
        if !was_asked || system.host(key).by_key(key).is_some() {
            answer_add(system, key, netns, None);
            return ends(system, key);
        }
        let detach = detach_request(system, key, None, !self.has(Protection::DisownClaimsNothing));
        set(system, key, Step::CallDetach(Giving::Disowned, detach), Then::FailAdd);
    }

    /// `Agent::hello`, as far as it lists what is under way.
    fn connects(&self, system: &mut System, host: HostId) {
        let Some(agent) = &mut system.hosts[usize::from(host)].agent else { return };
        agent.untold.clear();
        let pending = match self.has(Protection::PendingInHello) {
            true => pending(host, agent),
            false => Vec::new(),
        };
        agent.standing = Standing::Connecting(pending);
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

fn live(attachment: Record, netns: Netns) -> AgentRecord {
    AgentRecord { attachment, netns, phase: AgentPhase::Live, is_forgotten: false }
}

fn move_vf(system: &mut System, attachment: Record, netns: Netns) {
    let carries = Some(attachment.id);
    *system.function_mut(attachment.vf) = Function { place: Place::Pod(netns), carries };
}

/// `detach_request`, as of now.
fn detach_request(
    system: &mut System,
    key: Key,
    id: Option<AttachmentId>,
    returned: bool,
) -> Detach {
    let clock = &mut system.host_mut(key).clock;
    clock.0 += 1;
    Detach { key, id, returned, as_of: *clock }
}

fn begins(system: &mut System, key: Key) {
    let Some(agent) = system.agent_mut(key) else { return };
    let wish = agent.waiting[usize::from(key.container)].remove(0);
    match wish {
        Wish::Add(netns) => begins_add(system, key, netns),
        Wish::Del => begins_del(system, key),
        Wish::Release(id) => begins_release_on_request(system, key, id),
    }
}

/// `Agent::attach` and `make_way`.
fn begins_add(system: &mut System, key: Key, netns: Netns) {
    let Some(earlier) = system.host(key).by_key(key).copied() else {
        return match system.is_alive(netns) {
            true => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
            false => answer_add(system, key, netns, None),
        };
    };
    if earlier.phase == AgentPhase::Releasing {
        return set(system, key, Step::BringHome(earlier.attachment.id), Then::GoOn(netns));
    }
    match earlier.netns == netns {
        true => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
        false => answer_add(system, key, netns, None),
    }
}

/// `Agent::detach` and `detach_unrecorded`.
fn begins_del(system: &mut System, key: Key) {
    let recorded = system.host(key).by_key(key).map(|record| record.attachment.id);
    let step = match recorded {
        Some(id) => Step::BeginRelease(id),
        None => {
            let is_fetched = fetches_stray(system, key);
            let detach = detach_request(system, key, None, is_fetched);
            Step::CallDetach(Giving::Unrecorded, detach)
        }
    };
    set(system, key, step, Then::AnswerDel);
}

/// `Agent::fetch_stray`: the pod has a VF that no record holds.
fn fetches_stray(system: &mut System, key: Key) -> bool {
    let netns = Netns { key, sandbox: system.container(key).sandboxes };
    let has_it = |vf: &Vf| system.function(*vf).place == Place::Pod(netns);
    let Some(vf) = system.vfs().find(has_it) else { return false };
    if system.host(key).by_vf(vf).is_some() {
        return false;
    }
    *system.function_mut(vf) = Function { place: Place::Home, carries: None };
    true
}

/// `Agent::release_on_request`.
fn begins_release_on_request(system: &mut System, key: Key, id: AttachmentId) {
    let step = match system.host(key).by_id(id).is_some() {
        true => Step::BeginRelease(id),
        false => Step::CallDetach(Giving::Unknown, detach_request(system, key, Some(id), false)),
    };
    set(system, key, step, Then::Nothing);
}

fn calls_attach(system: &mut System, key: Key) {
    let Some(Step::CallAttach(netns, _)) = step(system, key) else { return };
    let host = system.host_mut(key);
    let Some(session) = host.agent.as_ref().and_then(Agent::session) else { return };
    host.wire.ask(session, Call::Attach { key, session });
    set(system, key, Step::AwaitAttach(netns, session), Then::AnswerAdd);
}

fn hears_attached(system: &mut System, key: Key) {
    let Some(Step::AwaitAttach(netns, session)) = step(system, key) else { return };
    let next = match system.host_mut(key).wire.take_answer(key) {
        Some(Answer::Attached(attachment)) => Step::WriteRecord(netns, attachment, false),
        Some(Answer::Stale) => Step::CallAttach(netns, Some(session)),
        _ => {
            answer_add(system, key, netns, None);
            return ends(system, key);
        }
    };
    set(system, key, next, Then::AnswerAdd);
}

/// `Agent::settle_earlier_holder`: a record of which only the DPU's last word is missing is finished
/// first.
fn settles_earlier_holder(
    system: &mut System,
    key: Key,
    holder: AgentRecord,
    (netns, attachment): (Netns, Record),
) {
    set(system, key, Step::WriteRecord(netns, attachment, true), Then::AnswerAdd);
    let AgentRecord { attachment: earlier, .. } = holder;
    set(system, earlier.key, Step::BringHome(earlier.id), Then::Nothing);
}

/// `Agent::give_back_unused`.
fn gives_back_unused(system: &mut System, key: Key, attachment: Record, found_vf: bool) {
    let detach = detach_request(system, key, Some(attachment.id), found_vf);
    set(system, key, Step::CallDetach(Giving::Unused, detach), Then::FailAdd);
}

/// `Agent::tell_attached`.
fn tell_attached(system: &mut System, key: Key, id: AttachmentId) {
    let host = system.host_mut(key);
    let Some(agent) = &mut host.agent else { return };
    let stream = agent.session().and_then(|session| host.wire.stream_mut(session));
    match stream {
        Some(stream) if !stream.is_ended => stream.up.push(HostMessage::Attached(id)),
        Some(_) => {}
        None => agent.untold.push(id),
    }
}

fn begins_release(system: &mut System, key: Key) {
    let Some(Step::BeginRelease(id)) = step(system, key) else { return };
    let Some(then) = then(system, key) else { return };
    let host = system.host_mut(key);
    if let Some(record) = host.by_id(id).copied()
        && record.phase == AgentPhase::Live
    {
        host.put(AgentRecord { phase: AgentPhase::Releasing, ..record });
    }
    set(system, key, Step::BringHome(id), then);
}

fn brings_home(system: &mut System, key: Key) {
    let Some(Step::BringHome(id)) = step(system, key) else { return };
    let Some(then) = then(system, key) else { return };
    let Some(record) = system.host(key).by_id(id).copied() else { return ends(system, key) };
    let is_home = is_within_reach(system, &record);
    if is_home {
        let clean = Function { place: Place::Home, carries: None };
        *system.function_mut(record.attachment.vf) = clean;
    }
    let detach = detach_request(system, key, Some(id), is_home);
    set(system, key, Step::CallDetach(Giving::Recorded(id, is_home), detach), then);
}

/// What waits for the end of a release, and for that of other calls of Detach.
fn release_ends(system: &mut System, key: Key) {
    let Some(then) = then(system, key) else { return };
    ends(system, key);
    match then {
        Then::GoOn(netns) => match system.host(key).by_key(key) {
            None => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
            Some(_) => answer_add(system, key, netns, None),
        },
        Then::FailAdd => fail_add(system, key),
        Then::AnswerDel => answer_del(system, key),
        Then::AnswerAdd | Then::Nothing => {}
    }
}

/// The runtime hears of its ADD, unless it has given it up.
fn answer_add(system: &mut System, key: Key, netns: Netns, id: Option<AttachmentId>) {
    let container = system.container_mut(key);
    if container.life == Life::Adding && container.sandboxes == netns.sandbox {
        container.life = id.map_or(Life::Failed, Life::Attached);
    }
}

fn fail_add(system: &mut System, key: Key) {
    let container = system.container_mut(key);
    if container.life == Life::Adding {
        container.life = Life::Failed;
    }
}

/// The runtime hears of its DEL, and removes the sandbox.
fn answer_del(system: &mut System, key: Key) {
    system.container_mut(key).life = Life::Absent;
    system.netns_dies(key);
}

fn reconciles(system: &mut System, key: Key) {
    if let Some(step) = upkeep(system, key) {
        set(system, key, step, Then::Nothing);
    }
}

fn settles_orphan(system: &mut System, key: Key) {
    let has_record = system.host(key).by_key(key).is_some();
    let Some(agent) = system.agent_mut(key) else { return };
    let Some(place) = agent.orphans.iter().position(|orphan| orphan.key == key) else { return };
    let orphan = agent.orphans.remove(place);
    // The same attach was tried again, and has a record now.
    if !has_record {
        set(system, key, Step::CallDetach(Giving::Disowned, orphan), Then::Nothing);
    }
}

fn inventory(system: &System, host: HostId) -> Inventory {
    let as_of = system.hosts[usize::from(host)].clock;
    Inventory { as_of, conditions: conditions(system, host) }
}

fn sends_inventory(system: &mut System, host: HostId) {
    let inventory = inventory(system, host);
    let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
        return;
    };
    agent.sent_inventory = Some(inventory.conditions.clone());
    let stream = agent.session().and_then(|session| wire.stream_mut(session));
    if let Some(stream) = stream.filter(|stream| !stream.is_ended) {
        stream.up.push(HostMessage::Inventory(inventory));
    }
}

fn says_hello(system: &mut System, host: HostId) {
    let inventory = inventory(system, host);
    let of_host = &system.hosts[usize::from(host)];
    let is_in_pod = |record: &AgentRecord| {
        system.function(record.attachment.vf).place == Place::Pod(record.netns)
    };
    let kept = of_host.records().filter(|record| record.phase == AgentPhase::Live);
    let live = kept.map(|record| (record.attachment.id, is_in_pod(record))).collect();
    let of_host = &mut system.hosts[usize::from(host)];
    let Some(agent) = &mut of_host.agent else { return };
    let Standing::Connecting(pending) = std::mem::replace(&mut agent.standing, Standing::Down)
    else {
        return;
    };
    of_host.latest_session.0 += 1;
    let session = of_host.latest_session;
    agent.standing = Standing::Opening(session);
    agent.sent_inventory = Some(inventory.conditions.clone());
    let hello = Hello { boot_id: of_host.boot_id, inventory, live, pending };
    let up = vec![HostMessage::Hello(hello)];
    let stream = Stream { session, up, down: Vec::new(), agent_listens: true, is_ended: false };
    of_host.wire.streams.push(stream);
}

fn hears(system: &mut System, host: HostId) {
    let Host { agent: Some(agent), wire, disk, .. } = &mut system.hosts[usize::from(host)] else {
        return;
    };
    let (Standing::Opening(session) | Standing::Up(session)) = agent.standing else { return };
    let Some(stream) = wire.stream_mut(session) else { return };
    match stream.down.remove(0) {
        DpuMessage::Welcome => {
            agent.standing = Standing::Up(session);
            let is_recorded = |id: &AttachmentId| {
                disk.iter().any(|record| !record.is_forgotten && record.attachment.id == *id)
            };
            let untold = std::mem::take(&mut agent.untold).into_iter().filter(is_recorded);
            stream.up.extend(untold.map(HostMessage::Attached));
        }
        DpuMessage::Release(key, id) => {
            agent.waiting[usize::from(key.container)].push(Wish::Release(id));
        }
    }
}

/// Calls on the connection go on: only the stream has ended.
fn notices_end(system: &mut System, host: HostId) {
    let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
        return;
    };
    if let Standing::Opening(session) | Standing::Up(session) = agent.standing {
        wire.streams.retain(|stream| stream.session != session);
        agent.standing = Standing::Down;
    }
}
