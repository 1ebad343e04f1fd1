//! The actions of an agent. In the program: host-shim/src/agent.

use super::{
    attach::{asks, begins_add, hears_attached, may_write_record},
    detach::{begins_del, begins_release, begins_release_on_request, records_release},
    giving_up::fails_add,
    memory::{Agent, LockRequest, Standing, Step, Task},
    recovery::{delivers_detach, reconciles, upkeep},
    session::hears,
    side::AgentSide,
    speculation::{
        is_to_be_moved, is_to_be_written, moves_speculative_back, moves_speculatively, takes,
    },
};
use crate::{
    host::Place,
    names::{HostId, Key, Vf},
    system::System,
    wire::{Answer, InFlight, Request},
};

/// An action of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// `verbs/attach.rs::attach`, `verbs/detach.rs::detach` or `verbs/release.rs::release_on_request`: a request
    /// gets the key's lock.
    Begins(Key),
    /// `dpu/calls.rs::attach`.
    CallsAttach(Key),
    /// `dpu/calls.rs::attach`: the answer.
    HearsAttached(Key),
    /// `verbs/guess.rs::take`, with this VF.
    Takes(Key, Vf),
    /// `vfs/ahead.rs::begin`, the first half: the record.
    WritesSpeculative(Key),
    /// `vfs/ahead.rs::begin`, the second half: the move.
    MovesSpeculatively(Key),
    /// `verbs/guess.rs::take_home`.
    MovesSpeculativeBack(Key),
    /// `verbs/attach.rs::ask_patiently`, at its timeout.
    TimesOut(Key),
    /// `vfs/intake.rs::enter`, up to the record.
    WritesRecord(Key),
    /// `verbs/attach.rs::ask_for`: the caller of an attach is gone.
    NoticesHangup(Key, InFlight),
    /// `vfs/intake.rs::move_in_now`.
    MovesIn(Key),
    /// `verbs/attach.rs::confirm`, the first half: the record.
    Keeps(Key),
    /// `verbs/attach.rs::confirm`, the second half: the answer.
    Answers(Key),
    /// `verbs/release.rs::release`.
    BeginsRelease(Key),
    /// `vfs/homecoming.rs::begin`: the record, on the disk.
    RecordsRelease(Key),
    /// `vfs/homecoming.rs::bring_out`.
    MovesBack(Key),
    /// `dpu/calls.rs::detach`.
    CallsDetach(Key),
    /// `dpu/calls.rs::detach`: the answer.
    HearsDetached(Key),
    /// `upkeep/keeper.rs::reconcile_locked`, on its own initiative.
    Reconciles(Key),
    /// `dpu/calls.rs::deliver_detaches`.
    DeliversDetach(Key),
    /// `vfs/free_vfs.rs::restore`.
    RestoresFreeVf(Vf),
    /// `dpu/reports.rs::send_inventory`.
    SendsInventory(HostId),
    /// `dpu/reports.rs::hello`, the first half: attaches in progress are listed before records.
    Connects(HostId),
    /// `dpu/reports.rs::hello`, the second half.
    SaysHello(HostId),
    /// `dpu/mod.rs::keep_session` and `upkeep/room.rs::act_on`: a message of the DPU.
    Hears(HostId),
    /// `dpu/session.rs::keep`: the DPU has ended the session.
    NoticesEnd(HostId),
}

impl AgentAction {
    /// The agent's host.
    #[must_use]
    pub fn host(self) -> HostId {
        match self {
            Self::Begins(key)
            | Self::CallsAttach(key)
            | Self::Takes(key, _)
            | Self::WritesSpeculative(key)
            | Self::MovesSpeculatively(key)
            | Self::MovesSpeculativeBack(key)
            | Self::TimesOut(key)
            | Self::HearsAttached(key)
            | Self::WritesRecord(key)
            | Self::NoticesHangup(key, _)
            | Self::MovesIn(key)
            | Self::Keeps(key)
            | Self::Answers(key)
            | Self::BeginsRelease(key)
            | Self::RecordsRelease(key)
            | Self::MovesBack(key)
            | Self::CallsDetach(key)
            | Self::HearsDetached(key)
            | Self::Reconciles(key)
            | Self::DeliversDetach(key) => key.host,
            Self::RestoresFreeVf(vf) => vf.host,
            Self::SendsInventory(host)
            | Self::Connects(host)
            | Self::SaysHello(host)
            | Self::Hears(host)
            | Self::NoticesEnd(host) => host,
        }
    }
}

impl AgentSide<'_> {
    /// The possible actions of a host's agent.
    pub fn actions(&self, system: &System, host: HostId, add: &mut impl FnMut(AgentAction)) {
        let Some(agent) = &system.hosts[usize::from(host)].agent else { return };
        for key in system.keys().filter(|key| key.host == host) {
            match agent.task(key) {
                Some(task) => self.task_actions(system, key, *task, add),
                None => idle_actions(system, agent, key, add),
            }
        }
        for vf in system.vfs_of(host) {
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
        let is_asking =
            matches!(task.step, Step::CallAttach(..) | Step::AskAgain(_) | Step::AwaitAttach(..));
        if is_asking && !system.is_awaited(key, agent.calls[usize::from(key.container)]) {
            add(AgentAction::NoticesHangup(key, InFlight::Late));
            let is_under_way = |request: &Request| request.is_awaited && request.key == key;
            if host.wire.requests.iter().any(is_under_way) {
                add(AgentAction::NoticesHangup(key, InFlight::Lost));
            }
        }
        if is_to_be_written(system, agent, key) {
            add(AgentAction::WritesSpeculative(key));
        }
        if is_to_be_moved(system, key) {
            add(AgentAction::MovesSpeculatively(key));
        }
        match task.step {
            Step::CallAttach(_, asked) if asked.is_some() => {
                if agent.session().is_some_and(|session| Some(session) != asked) {
                    add(AgentAction::CallsAttach(key));
                }
            }
            Step::CallAttach(..) | Step::AskAgain(_) => {
                if matches!(task.step, Step::AskAgain(_)) {
                    add(AgentAction::TimesOut(key));
                }
                let takeable = self.takeable(system, agent, key).into_iter();
                takeable.for_each(|vf| add(AgentAction::Takes(key, vf)));
                if agent.session().is_some() {
                    add(AgentAction::CallsAttach(key));
                }
            }
            Step::AwaitAttach(..) if is_answered() => add(AgentAction::HearsAttached(key)),
            Step::AwaitDetach(..) if is_answered() => add(AgentAction::HearsDetached(key)),
            Step::AwaitAttach(..) | Step::AwaitDetach(..) => {}
            Step::MoveSpeculativeBack(_) => add(AgentAction::MovesSpeculativeBack(key)),
            Step::WriteRecord(_, attachment, _) => {
                if may_write_record(system, key, attachment) {
                    add(AgentAction::WritesRecord(key));
                }
            }
            Step::MoveIn(..) => add(AgentAction::MovesIn(key)),
            Step::Keep(..) => add(AgentAction::Keeps(key)),
            Step::Answer(..) => add(AgentAction::Answers(key)),
            Step::BeginRelease(_) => add(AgentAction::BeginsRelease(key)),
            Step::RecordRelease(_) => add(AgentAction::RecordsRelease(key)),
            Step::MoveBack(_) => add(AgentAction::MovesBack(key)),
            // While a session is being opened, the call waits for it.
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
                if is_up && self.has_inventory(system, host, agent) {
                    add(AgentAction::SendsInventory(host));
                }
            }
        }
    }
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

impl AgentSide<'_> {
    /// Carries out an action.
    pub fn does(&self, system: &mut System, action: AgentAction) {
        match action {
            AgentAction::Begins(key) => begins(system, key),
            AgentAction::CallsAttach(key) => asks(system, key),
            AgentAction::Takes(key, vf) => takes(system, key, vf),
            AgentAction::WritesSpeculative(key) => self.writes_speculative(system, key),
            AgentAction::MovesSpeculatively(key) => moves_speculatively(system, key),
            AgentAction::MovesSpeculativeBack(key) => moves_speculative_back(system, key),
            AgentAction::TimesOut(key) => fails_add(system, key),
            AgentAction::HearsAttached(key) => hears_attached(system, key),
            AgentAction::NoticesHangup(key, in_flight) => {
                system.abandon(key, in_flight);
                self.disowns(system, key);
            }
            AgentAction::Keeps(key) => self.keeps(system, key),
            AgentAction::Answers(key) => self.answers(system, key),
            AgentAction::WritesRecord(key) => self.writes_record(system, key),
            AgentAction::MovesIn(key) => self.moves_in(system, key),
            AgentAction::BeginsRelease(key) => begins_release(system, key),
            AgentAction::RecordsRelease(key) => records_release(system, key),
            AgentAction::MovesBack(key) => self.moves_back(system, key),
            AgentAction::CallsDetach(key) => self.calls_detach(system, key),
            AgentAction::HearsDetached(key) => {
                let answer = system.host_mut(key).wire.take_answer(key);
                self.detach_ends(system, key, answer == Some(Answer::Detached));
            }
            AgentAction::Reconciles(key) => reconciles(system, key),
            AgentAction::DeliversDetach(key) => delivers_detach(system, key),
            AgentAction::RestoresFreeVf(vf) => system.function_mut(vf).carries = None,
            AgentAction::SendsInventory(host) => self.sends_inventory(system, host),
            AgentAction::Connects(host) => self.connects(system, host),
            AgentAction::SaysHello(host) => self.says_hello(system, host),
            AgentAction::Hears(host) => hears(system, host),
            AgentAction::NoticesEnd(host) => self.notices_end(system, host),
        }
    }
}

fn begins(system: &mut System, key: Key) {
    let Some(agent) = system.agent_mut(key) else { return };
    let request = agent.waiting[usize::from(key.container)].remove(0);
    match request {
        LockRequest::Add(netns, call) => begins_add(system, key, netns, call),
        LockRequest::Del => begins_del(system, key),
        LockRequest::Release(id) => begins_release_on_request(system, key, id),
    }
}
