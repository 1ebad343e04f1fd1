//! ADD: host-shim/src/agent/{attach,intake}.rs.

use super::{Agent, Giving, Step, Then, detach::detach_request, ends, move_vf, set, step, then};
use crate::{
    protocol::{Protection, Protocol},
    system::{AgentPhase, AgentRecord, AttachmentId, Key, Life, Netns, Place, Record, System},
    wire::{Answer, Call, HostMessage},
};

impl Protocol {
    /// `Agent::record`. The record is written before the VF is touched.
    pub(super) fn writes_record(&self, system: &mut System, key: Key) {
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
    pub(super) fn moves_in(&self, system: &mut System, key: Key) {
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
}

pub(super) fn live(attachment: Record, netns: Netns) -> AgentRecord {
    AgentRecord { attachment, netns, phase: AgentPhase::Live, is_forgotten: false }
}

/// `Agent::attach` and `make_way`.
pub(super) fn begins_add(system: &mut System, key: Key, netns: Netns) {
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

pub(super) fn calls_attach(system: &mut System, key: Key) {
    let Some(Step::CallAttach(netns, _)) = step(system, key) else { return };
    let host = system.host_mut(key);
    let Some(session) = host.agent.as_ref().and_then(Agent::session) else { return };
    host.wire.ask(session, Call::Attach { key, session });
    set(system, key, Step::AwaitAttach(netns, session), Then::AnswerAdd);
}

pub(super) fn hears_attached(system: &mut System, key: Key) {
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
pub(super) fn settles_earlier_holder(
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
pub(super) fn gives_back_unused(system: &mut System, key: Key, attachment: Record, found_vf: bool) {
    let detach = detach_request(system, key, Some(attachment.id), found_vf);
    set(system, key, Step::CallDetach(Giving::Unused, detach), Then::FailAdd);
}

/// `Agent::tell_attached`.
pub(super) fn tell_attached(system: &mut System, key: Key, id: AttachmentId) {
    let host = system.host_mut(key);
    let Some(agent) = &mut host.agent else { return };
    let stream = agent.session().and_then(|session| host.wire.stream_mut(session));
    match stream {
        Some(stream) if !stream.is_ended => stream.up.push(HostMessage::Attached(id)),
        Some(_) => {}
        None => agent.untold.push(id),
    }
}

/// The runtime hears of its ADD, unless it has given it up.
pub(super) fn answer_add(system: &mut System, key: Key, netns: Netns, id: Option<AttachmentId>) {
    let container = system.container_mut(key);
    if container.life == Life::Adding && container.sandboxes == netns.sandbox {
        container.life = id.map_or(Life::Failed, Life::Attached);
    }
}

pub(super) fn fail_add(system: &mut System, key: Key) {
    let container = system.container_mut(key);
    if container.life == Life::Adding {
        container.life = Life::Failed;
    }
}
