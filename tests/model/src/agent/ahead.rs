//! The move first: an ADD takes a VF that the DPU has offered, names it to the DPU, and meanwhile records it as a guess
//! and moves it into the pod, where it carries nothing of an attachment yet. In the program:
//! host-shim/src/agent/{verbs/attach,verbs/guess,vfs/ahead,vfs/claims,dpu/vf_offers}.rs.

use super::{
    giving_up::fails_add,
    memory::{Agent, Step, Then},
    recovery::is_within_reach,
    side::AgentSide,
    tasks::{lets_go, set, step},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Place},
    names::{Address, AttachmentId, BootId, Key, Netns, Phase, Promise, Record, Vf},
    protection::Protection,
    system::System,
};

impl AgentSide<'_> {
    /// `vfs/claims.rs::try_claim`, for a key's ADD: of the offered VFs those that are clean at home, and in no record.
    /// One that another has taken is no longer among them. Whose turn it is makes no difference.
    pub(super) fn claimable(&self, system: &System, agent: &Agent, key: Key) -> Vec<Vf> {
        let host = system.host(key);
        let is_new = agent.claimed(key).is_none() && host.by_key(key).is_none();
        let is_open = agent.session().is_some() || !self.has(Protection::ClosedBeforeHello);
        let is_free =
            |vf: &&Vf| *system.function(**vf) == Function::CLEAN && host.by_vf(**vf).is_none();
        agent.offers.keys().filter(|_| is_new && is_open).filter(is_free).copied().collect()
    }
}

/// `verbs/guess.rs::take`.
pub(super) fn takes(system: &mut System, key: Key, vf: Vf) {
    let Some(agent) = system.agent_mut(key) else { return };
    let Some(number) = agent.offers.remove(&vf) else { return };
    agent.claim(key, Some(Promise { vf, number }));
}

/// Whether the record of a guess is to be written.
pub(super) fn is_to_be_written(system: &System, agent: &Agent, key: Key) -> bool {
    let is_beside = agent.task(key).is_some_and(|task| task.step.is_beside_guess());
    is_beside && agent.claimed(key).is_some() && system.host(key).by_key(key).is_none()
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
    /// `vfs/ahead.rs::begin`, the first half.
    pub(super) fn writes_guess(&self, system: &mut System, key: Key) {
        let netns = Netns { key, sandbox: system.container(key).sandboxes };
        let host = system.host_mut(key);
        let claim = host.agent.as_ref().and_then(|agent| agent.claimed(key));
        let Some(Promise { vf, .. }) = claim else { return };
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

/// `verbs/guess.rs::take_home`: the DPU does not give it, and knows that. A VF that is not back is left to the keeper.
pub(super) fn takes_home(system: &mut System, key: Key) {
    let Some(Step::TakeHome(netns)) = step(system, key) else { return };
    if let Some(guess) = system.host(key).guess(key).copied() {
        if !is_within_reach(system, &guess) {
            system.host_mut(key).put(AgentRecord { phase: AgentPhase::Releasing, ..guess });
            return fails_add(system, key);
        }
        *system.function_mut(guess.attachment.vf) = Function::CLEAN;
        system.host_mut(key).forget(guess.attachment.id);
    }
    lets_go(system, key);
    set(system, key, Step::AskAgain(netns), Then::AnswerAdd);
}
