//! The move first: beside the call to the DPU the agent guesses which VF it will answer, records that, and
//! moves this VF into the pod, where it carries nothing of an attachment yet.
//! In the program: host-shim/src/agent/{verbs/attach,vfs/ahead}.rs.

use super::{
    attach::asks,
    giving_up::fails_add,
    memory::{Agent, Step, Then},
    recovery::is_within_reach,
    side::AgentSide,
    tasks::{set, step},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Place},
    names::{Address, AttachmentId, BootId, Key, Netns, Phase, Record, Vf},
    protection::Protection,
    system::System,
};

/// What a key's ADD may guess: a VF that is clean at home, and that no record or other guess holds. The last
/// one, for left to itself the DPU chooses the first.
pub(super) fn guess(system: &System, agent: &Agent, key: Key) -> Option<Vf> {
    let host = system.host(key);
    let is_free = |vf: &Vf| {
        *system.function(*vf) == Function::CLEAN
            && host.by_vf(*vf).is_none()
            && !agent.guessed.contains(&Some(*vf))
    };
    let is_new = host.by_key(key).is_none();
    system.vfs_of(key.host).filter(|vf| is_new && is_free(vf)).last()
}

/// The VF that a key's ADD has guessed, recorded or not yet.
pub(super) fn guessed(system: &System, key: Key) -> Option<Vf> {
    let host = system.host(key);
    let recorded = host.guess(key).map(|guess| guess.attachment.vf);
    recorded.or(host.agent.as_ref()?.guessed[usize::from(key.container)])
}

pub(super) fn asks_ahead(system: &mut System, key: Key, vf: Vf) {
    let Some(agent) = system.agent_mut(key) else { return };
    agent.guessed[usize::from(key.container)] = Some(vf);
    asks(system, key);
}

/// Whether the record of a guess is to be written.
pub(super) fn is_to_be_written(agent: &Agent, key: Key) -> bool {
    agent.guessed[usize::from(key.container)].is_some()
}

/// Whether the VF of a guess is to be moved: a live namespace waits for it.
pub(super) fn is_to_be_moved(system: &System, key: Key) -> bool {
    let is_beside = step(system, key).is_some_and(|step| step.is_beside_guess());
    let is_here = |guess: &AgentRecord| {
        guess.phase == AgentPhase::Attaching
            && system.is_alive(guess.netns)
            && system.function(guess.attachment.vf).place == Place::Home
    };
    is_beside && system.host(key).guess(key).is_some_and(is_here)
}

impl AgentSide<'_> {
    /// `vfs/ahead.rs::begin`, the first half. Somebody may have got the VF from the DPU since it was guessed.
    pub(super) fn writes_guess(&self, system: &mut System, key: Key) {
        let Some(vf) = guessed(system, key) else { return };
        let netns = Netns { key, sandbox: system.container(key).sandboxes };
        let host = system.host_mut(key);
        if let Some(agent) = &mut host.agent {
            agent.guessed[usize::from(key.container)] = None;
        }
        if host.by_vf(vf).is_some() && self.has(Protection::OneRecordPerVf) {
            return;
        }
        match self.has(Protection::GuessBeforeMove) {
            true => host.put(record_of(host.boot_id, key, vf, netns)),
            false => move_ahead(system, vf, netns),
        }
    }
}

/// The record of a guess.
fn record_of(boot_id: BootId, key: Key, vf: Vf, netns: Netns) -> AgentRecord {
    let (id, address) = (AttachmentId::of_guess(key), Address(u8::MAX));
    let attachment = Record { id, key, vf, address, boot_id, phase: Phase::Held };
    AgentRecord::attaching(attachment, netns)
}

pub(super) fn moves_ahead(system: &mut System, key: Key) {
    let Some(guess) = system.host(key).guess(key).copied() else { return };
    move_ahead(system, guess.attachment.vf, guess.netns);
}

fn move_ahead(system: &mut System, vf: Vf, netns: Netns) {
    *system.function_mut(vf) = Function { place: Place::Pod(netns), carries: None };
}

/// `verbs/guess.rs::take_home`: the DPU has answered another VF. It has nothing of the guess, and is not told. A VF
/// that is not back is left to the keeper.
pub(super) fn takes_home(system: &mut System, key: Key) {
    let Some(Step::TakeHome(netns, attachment)) = step(system, key) else { return };
    if let Some(guess) = system.host(key).guess(key).copied() {
        if !is_within_reach(system, &guess) {
            system.host_mut(key).put(AgentRecord { phase: AgentPhase::Releasing, ..guess });
            return fails_add(system, key);
        }
        *system.function_mut(guess.attachment.vf) = Function::CLEAN;
        system.host_mut(key).forget(guess.attachment.id);
    }
    let next = match attachment {
        Some(attachment) => Step::WriteRecord(netns, attachment, false),
        None => Step::AskAgain(netns),
    };
    set(system, key, next, Then::AnswerAdd);
}
