//! ADD: ask the DPU, record, move the VF in, record that the pod keeps it, answer. In the program:
//! host-shim/src/agent/{verbs/attach,vfs/intake,dpu/calls}.rs.

use super::{
    giving_up::{fails_add, gives_back_unused},
    memory::{Step, Then},
    side::AgentSide,
    tasks::{ends, is_awaited, move_vf, set, step, then},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Life, Place},
    names::{AttachmentId, CallId, Key, Netns, Record},
    protection::Protection,
    system::System,
    wire::{Answer, Call, HostMessage},
};

/// `verbs/attach.rs::attach_alone`, with `verbs/attach.rs::make_way`.
pub(super) fn begins_add(system: &mut System, key: Key, netns: Netns, call: CallId) {
    let Some(agent) = system.agent_mut(key) else { return };
    agent.calls[usize::from(key.container)] = call;
    if !is_awaited(system, key) {
        return fails_add(system, key);
    }
    let Some(earlier) = system.host(key).by_key(key).copied() else {
        return match system.is_alive(netns) {
            true => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
            false => fails_add(system, key),
        };
    };
    if earlier.phase == AgentPhase::Releasing {
        return set(system, key, Step::MoveBack(earlier.attachment.id), Then::GoOn(netns));
    }
    if earlier.is_speculative() {
        return set(system, key, Step::BeginRelease(earlier.attachment.id), Then::GoOn(netns));
    }
    match earlier.netns == netns {
        true => set(system, key, Step::CallAttach(netns, None), Then::AnswerAdd),
        false => fails_add(system, key),
    }
}

impl AgentSide<'_> {
    /// `vfs/intake.rs::enter`, up to the record, which precedes any change of the VF.
    pub(super) fn writes_record(&self, system: &mut System, key: Key) {
        let Some(Step::WriteRecord(netns, attachment, has_asked)) = step(system, key) else {
            return;
        };
        let host = system.host(key);
        let known = host.by_id(attachment.id).map(|record| record.phase);
        let speculative = host.speculative(key).copied();
        let is_other = |holder: &&AgentRecord| known.is_none() && Some(**holder) != speculative;
        let holder = host.by_vf(attachment.vf).filter(is_other).copied();
        if let Some(holder) = holder {
            let is_ending = holder.phase == AgentPhase::Releasing;
            if is_ending && !has_asked && self.has(Protection::EarlierHolderSettled) {
                return settles_earlier_holder(system, key, holder, (netns, attachment));
            }
            if self.has(Protection::OneRecordPerVf) {
                return gives_back_unused(system, key, attachment, false);
            }
        }
        let function = *system.function(attachment.vf);
        let is_here = match speculative {
            Some(_) => function.place != Place::Nowhere,
            None => known.is_some() || function.place == Place::Home,
        };
        if !is_awaited(system, key) || !is_here {
            return match known.is_some() || speculative.is_some() {
                true => fails_add(system, key),
                false => gives_back_unused(system, key, attachment, function == Function::CLEAN),
            };
        }
        if self.has(Protection::RecordBeforeMove) {
            let host = system.host_mut(key);
            // Both changes are one transaction.
            if speculative.is_some_and(|speculative| speculative.attachment.vf == attachment.vf) {
                host.forget(AttachmentId::speculative_id(key));
            }
            host.put(recorded(attachment, netns, known));
        } else {
            move_vf(system, attachment, netns);
        }
        if let Some(agent) = system.agent_mut(key) {
            agent.set_hold(key, None);
        }
        set(system, key, Step::MoveIn(netns, attachment), Then::AnswerAdd);
    }

    /// `vfs/intake.rs::move_in_now`.
    pub(super) fn moves_in(&self, system: &mut System, key: Key) {
        let Some(Step::MoveIn(netns, attachment)) = step(system, key) else { return };
        let is_add = then(system, key) == Some(Then::AnswerAdd);
        if !system.is_alive(netns) {
            return if is_add { fails_add(system, key) } else { ends(system, key) };
        }
        let known = system.host(key).by_id(attachment.id).map(|record| record.phase);
        match self.has(Protection::RecordBeforeMove) {
            true => move_vf(system, attachment, netns),
            false => system.host_mut(key).put(recorded(attachment, netns, known)),
        }
        if is_add {
            return set(system, key, Step::Keep(netns, attachment), Then::AnswerAdd);
        }
        report_attached(system, key, attachment.id);
        ends(system, key);
    }

    /// `verbs/attach.rs::confirm`, the first half.
    pub(super) fn keeps(&self, system: &mut System, key: Key) {
        let Some(Step::Keep(netns, attachment)) = step(system, key) else { return };
        if !is_awaited(system, key) && self.has(Protection::CallerLookedFor) {
            return fails_add(system, key);
        }
        let host = system.host_mut(key);
        let is_live = |record: &AgentRecord| record.phase == AgentPhase::Live;
        let was_answered = host.by_id(attachment.id).is_some_and(is_live);
        if self.has(Protection::KeptBeforeAnswer) {
            host.put(recorded(attachment, netns, Some(AgentPhase::Live)));
        }
        report_attached(system, key, attachment.id);
        set(system, key, Step::Answer(netns, attachment, was_answered), Then::AnswerAdd);
    }

    /// `verbs/attach.rs::confirm`, the second half.
    pub(super) fn answers(&self, system: &mut System, key: Key) {
        let Some(Step::Answer(netns, attachment, was_answered)) = step(system, key) else { return };
        let is_heard = is_awaited(system, key);
        if !is_heard && self.has(Protection::CallerLookedFor) {
            if !(was_answered && self.has(Protection::AnsweredStays)) {
                let host = system.host_mut(key);
                host.put(recorded(attachment, netns, Some(AgentPhase::Attaching)));
            }
            return fails_add(system, key);
        }
        if is_heard {
            let container = system.container_mut(key);
            (container.life, container.confirmed) = (Life::Attached(attachment.id), None);
        }
        ends(system, key);
    }
}

/// The record of an attachment, with its known phase.
fn recorded(attachment: Record, netns: Netns, known: Option<AgentPhase>) -> AgentRecord {
    let phase = known.unwrap_or(AgentPhase::Attaching);
    AgentRecord { phase, ..AgentRecord::attaching(attachment, netns) }
}

/// Sends the call, which names the VF that was taken.
pub(super) fn asks(system: &mut System, key: Key) {
    let Some(Step::CallAttach(netns, _) | Step::AskAgain(netns)) = step(system, key) else {
        return;
    };
    let host = system.host_mut(key);
    let Some(agent) = &host.agent else { return };
    let Some(session) = agent.session() else { return };
    let offered = agent.hold_of(key);
    let as_of = host.tick();
    host.wire.ask(session, Call::Attach { key, session, as_of, offered });
    set(system, key, Step::AwaitAttach(netns, session), Then::AnswerAdd);
}

/// Receives the answer. After refusals about the VF (`verbs/attach.rs::is_about_vfs`), the ADD tries another VF, or
/// later.
pub(super) fn hears_attached(system: &mut System, key: Key) {
    let Some(Step::AwaitAttach(netns, session)) = step(system, key) else { return };
    let next = match system.host_mut(key).wire.take_answer(key) {
        Some(Answer::Attached(attachment)) => Step::WriteRecord(netns, attachment, false),
        Some(Answer::Stale) => Step::CallAttach(netns, Some(session)),
        Some(Answer::Releasing | Answer::NotFree | Answer::Offered) => {
            Step::MoveSpeculativeBack(netns)
        }
        _ => return fails_add(system, key),
    };
    set(system, key, next, Then::AnswerAdd);
}

/// Whether the record may be written: the task that holds the lock of the VF's earlier holder is waited for.
#[must_use]
pub fn may_write_record(system: &System, key: Key, attachment: Record) -> bool {
    let host = system.host(key);
    let Some(agent) = &host.agent else { return false };
    let other = host.by_vf(attachment.vf).filter(|holder| holder.attachment.key != key);
    let other = other.filter(|other| other.phase == AgentPhase::Releasing);
    other.is_none_or(|other| agent.task(other.attachment.key).is_none())
}

/// `verbs/take_in.rs::settle_earlier_holder`: finishes a record that waits only for the DPU's confirmation.
pub(super) fn settles_earlier_holder(
    system: &mut System,
    key: Key,
    holder: AgentRecord,
    (netns, attachment): (Netns, Record),
) {
    set(system, key, Step::WriteRecord(netns, attachment, true), Then::AnswerAdd);
    let AgentRecord { attachment: earlier, .. } = holder;
    set(system, earlier.key, Step::MoveBack(earlier.id), Then::Nothing);
}

/// `dpu/reports.rs::report_attached`.
pub(super) fn report_attached(system: &mut System, key: Key, id: AttachmentId) {
    let host = system.host_mut(key);
    let Some(agent) = &mut host.agent else { return };
    let stream = agent.session().and_then(|session| host.wire.stream_mut(session));
    match stream {
        Some(stream) if !stream.is_ended => stream.up.push(HostMessage::Attached(id)),
        Some(_) => {}
        None => agent.unreported.push(id),
    }
}
