//! DEL and all other releases: record, move the VF back, inform the DPU, remove the record. In the program:
//! host-shim/src/agent/{verbs/detach,verbs/release,vfs/homecoming,dpu/calls}.rs.

use super::{
    giving_up::{detach_request, fails_add},
    memory::{Agent, DetachReason, Step, Then},
    recovery::is_within_reach,
    side::AgentSide,
    tasks::{ends, ends_hold, set, step, then},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Life, Place},
    names::{AttachmentId, Key, Netns, Record, Vf},
    protection::Protection,
    system::System,
    wire::{Call, Detach, InFlight},
};

impl AgentSide<'_> {
    /// `dpu/calls.rs::detach`, which fails without a session.
    pub(super) fn calls_detach(&self, system: &mut System, key: Key) {
        let Some(Step::CallDetach(reason, detach)) = step(system, key) else { return };
        let Some(then) = then(system, key) else { return };
        let host = system.host_mut(key);
        match host.agent.as_ref().and_then(Agent::session) {
            Some(session) => {
                host.wire.ask(session, Call::Detach(detach));
                set(system, key, Step::AwaitDetach(reason, detach, session), then);
            }
            None => self.detach_ends(system, key, false),
        }
    }

    /// Continues after a call of Detach.
    pub fn detach_ends(&self, system: &mut System, key: Key, is_reported: bool) {
        let (reason, detach) = match step(system, key) {
            Some(Step::CallDetach(reason, detach) | Step::AwaitDetach(reason, detach, _)) => {
                (reason, detach)
            }
            _ => return,
        };
        let host = system.host_mut(key);
        let Some(agent) = &mut host.agent else { return };
        match reason {
            DetachReason::Leaving(id) => {
                let Some(then) = then(system, key) else { return };
                records_as_releasing(system, key, id);
                return set(system, key, Step::MoveBack(id), then);
            }
            DetachReason::Recorded(id, is_home) => {
                let is_over =
                    is_home && (is_reported || !self.has(Protection::ReleasingUntilConfirmed));
                if is_over {
                    host.forget(id);
                }
                // If the DPU had given the key another VF than the speculative one, the next inventory frees that
                // VF.
                if is_over
                    && id.is_speculative_id()
                    && let Some(agent) = &mut host.agent
                {
                    agent.sent_inventory = None;
                }
            }
            DetachReason::Unrecorded if is_reported => agent.sent_inventory = None,
            DetachReason::Unrecorded if self.has(Protection::UnrecordedIsReportedAgain) => {
                agent.note(detach);
            }
            DetachReason::Unrecorded => {}
            DetachReason::Unknown => agent.sent_inventory = None,
            DetachReason::Unused => {
                if !is_reported {
                    agent.note(detach);
                }
                agent.sent_inventory = None;
            }
            DetachReason::Disowned if is_reported => {
                agent.undelivered.retain(|other| *other != detach);
                agent.sent_inventory = None;
            }
            DetachReason::Disowned => agent.note(detach),
        }
        ends_hold(system, key);
        release_ends(system, key);
    }

    /// A call will get no answer.
    pub fn call_fails(&self, system: &mut System, key: Key, in_flight: InFlight) {
        system.abandon(key, in_flight);
        match step(system, key) {
            Some(Step::AwaitAttach(netns, session)) => {
                set(system, key, Step::CallAttach(netns, Some(session)), Then::AnswerAdd);
            }
            Some(Step::AwaitDetach(..)) => self.detach_ends(system, key, false),
            _ => {}
        }
    }
}

/// `verbs/detach.rs::detach`, with `verbs/detach.rs::detach_unrecorded`.
pub(super) fn begins_del(system: &mut System, key: Key) {
    let recorded = system.host(key).by_key(key).map(|record| record.attachment.id);
    let step = match recorded {
        Some(id) => Step::BeginRelease(id),
        None => {
            let is_fetched = fetches_from_pod(system, key);
            let detach = detach_request(system, key, None, is_fetched);
            Step::CallDetach(DetachReason::Unrecorded, detach)
        }
    };
    set(system, key, step, Then::AnswerDel);
}

/// `vfs/abroad.rs::fetch_from_pod`: moves back a VF of the pod that no record holds.
pub(super) fn fetches_from_pod(system: &mut System, key: Key) -> bool {
    let netns = Netns { key, sandbox: system.container(key).sandboxes };
    let has_it = |vf: &Vf| system.function(*vf).place == Place::Pod(netns);
    let Some(vf) = system.vfs_of(key.host).find(has_it) else { return false };
    if system.host(key).by_vf(vf).is_some() {
        return false;
    }
    *system.function_mut(vf) = Function::CLEAN;
    true
}

/// `verbs/release.rs::release_on_request`.
pub(super) fn begins_release_on_request(system: &mut System, key: Key, id: AttachmentId) {
    let step = match system.host(key).by_id(id).is_some() {
        true => Step::BeginRelease(id),
        false => {
            Step::CallDetach(DetachReason::Unknown, detach_request(system, key, Some(id), false))
        }
    };
    set(system, key, step, Then::Nothing);
}

/// `verbs/release.rs::leave`; for a DEL `verbs/release.rs::leave_at_once`: the DPU is informed at once, except
/// about a speculative record.
pub(super) fn begins_release(system: &mut System, key: Key) {
    let Some(Step::BeginRelease(id)) = step(system, key) else { return };
    let Some(then) = then(system, key) else { return };
    let is_made = |record: &AgentRecord| !record.is_speculative();
    let is_reported = then == Then::AnswerDel && system.host(key).by_id(id).is_some_and(is_made);
    let step = match is_reported {
        true => {
            let leaving = detach_request(system, key, Some(id), false);
            Step::CallDetach(DetachReason::Leaving(id), leaving)
        }
        false => Step::RecordRelease(id),
    };
    set(system, key, step, then);
}

/// `vfs/homecoming.rs::begin`. For a DEL, the program writes the record while it informs the DPU; the model writes
/// it after the answer. Other releases, and those without a session, show that the record precedes the DPU's
/// knowledge.
pub(super) fn records_release(system: &mut System, key: Key) {
    let Some(Step::RecordRelease(id)) = step(system, key) else { return };
    let Some(then) = then(system, key) else { return };
    records_as_releasing(system, key, id);
    set(system, key, Step::MoveBack(id), then);
}

fn records_as_releasing(system: &mut System, key: Key, id: AttachmentId) {
    let host = system.host_mut(key);
    if let Some(record) = host.by_id(id).copied()
        && record.phase != AgentPhase::Releasing
    {
        host.put(AgentRecord { phase: AgentPhase::Releasing, ..record });
    }
}

impl AgentSide<'_> {
    /// `vfs/homecoming.rs::bring_out`. Then a DEL is answered; the rest is `verbs/release.rs::settle` up to the
    /// call.
    pub(super) fn moves_back(&self, system: &mut System, key: Key) {
        let Some(Step::MoveBack(id)) = step(system, key) else { return };
        let Some(then) = then(system, key) else { return };
        let Some(record) = system.host(key).by_id(id).copied() else { return ends(system, key) };
        let is_home = is_within_reach(system, &record);
        if is_home {
            *system.function_mut(record.attachment.vf) = Function::CLEAN;
        }
        let then = match then {
            Then::AnswerDel => {
                answer_del(system, key);
                Then::Nothing
            }
            then => then,
        };
        if is_home {
            system.host_mut(key).note_returned(id);
        }
        let detach = self.giving_back(system, &record, is_home);
        set(system, key, Step::CallDetach(DetachReason::Recorded(id, is_home), detach), then);
    }

    /// `verbs/release.rs::giving_back`: a speculative attach is released by its key and its VF.
    fn giving_back(&self, system: &mut System, record: &AgentRecord, is_home: bool) -> Detach {
        let Record { id, key, vf, .. } = record.attachment;
        match record.is_speculative() && self.has(Protection::SpeculativeReleasedByKey) {
            true => Detach {
                returned_vf: is_home.then_some(vf),
                ..detach_request(system, key, None, false)
            },
            false => detach_request(system, key, Some(id), is_home),
        }
    }
}

/// Continues with what waits for the end of a release or another call of Detach.
pub(super) fn release_ends(system: &mut System, key: Key) {
    let Some(then) = then(system, key) else { return };
    match then {
        Then::GoOn(netns) => match system.host(key).by_key(key) {
            None => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
            Some(_) => fails_add(system, key),
        },
        Then::FailAdd => fails_add(system, key),
        Then::AnswerDel => {
            ends(system, key);
            answer_del(system, key);
        }
        Then::AnswerAdd | Then::Nothing => ends(system, key),
    }
}

/// The runtime gets the answer to its DEL, and removes the sandbox.
pub(super) fn answer_del(system: &mut System, key: Key) {
    system.container_mut(key).life = Life::Absent;
    system.netns_dies(key);
}
