//! The speculative move: an ADD takes an offered VF and names it to the DPU. While it waits, it records the VF and
//! moves it into the pod, where the VF has no attachment's settings yet. In the program:
//! host-shim/src/agent/{verbs/attach,verbs/guess,vfs/ahead,vfs/claims,dpu/vf_offers}.rs.

use super::{
    giving_up::fails_add,
    memory::{Agent, Step, Then},
    recovery::is_within_reach,
    side::AgentSide,
    tasks::{ends_hold, set, step},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Place},
    names::{Address, AttachmentId, BootId, Key, Netns, Offer, Phase, Record, Vf},
    protection::Protection,
    system::System,
};

impl AgentSide<'_> {
    /// `vfs/claims.rs::try_claim`, for a key's ADD: the offered VFs that are clean at home and in no record. A VF
    /// that another ADD has taken is not among them. The order makes no difference.
    pub(super) fn takeable(&self, system: &System, agent: &Agent, key: Key) -> Vec<Vf> {
        let host = system.host(key);
        let is_new = agent.hold_of(key).is_none() && host.by_key(key).is_none();
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
    agent.set_hold(key, Some(Offer { vf, number }));
}

/// Whether the record of a speculative move has to be written.
pub(super) fn is_to_be_written(system: &System, agent: &Agent, key: Key) -> bool {
    let is_beside = agent.task(key).is_some_and(|task| task.step.allows_speculation());
    is_beside && agent.hold_of(key).is_some() && system.host(key).by_key(key).is_none()
}

/// Whether a speculative move is due: a live namespace waits for the VF.
pub(super) fn is_to_be_moved(system: &System, key: Key) -> bool {
    let is_beside = step(system, key).is_some_and(|step| step.allows_speculation());
    let is_here = |speculative: &AgentRecord| {
        speculative.phase == AgentPhase::Attaching
            && system.is_alive(speculative.netns)
            && system.function(speculative.attachment.vf).place == Place::Home
    };
    is_beside && system.host(key).speculative(key).is_some_and(is_here)
}

impl AgentSide<'_> {
    /// `vfs/ahead.rs::begin`, the first half.
    pub(super) fn writes_speculative(&self, system: &mut System, key: Key) {
        let netns = Netns { key, sandbox: system.container(key).sandboxes };
        let host = system.host_mut(key);
        let hold = host.agent.as_ref().and_then(|agent| agent.hold_of(key));
        let Some(Offer { vf, .. }) = hold else { return };
        if host.by_vf(vf).is_some() && self.has(Protection::OneRecordPerVf) {
            return;
        }
        match self.has(Protection::SpeculativeRecordFirst) {
            true => host.put(record_of(host.boot_id, key, vf, netns)),
            false => move_speculatively(system, vf, netns),
        }
    }
}

/// The record of a speculative move.
fn record_of(boot_id: BootId, key: Key, vf: Vf, netns: Netns) -> AgentRecord {
    let (id, address) = (AttachmentId::speculative_id(key), Address(u8::MAX));
    let attachment = Record { id, key, vf, address, boot_id, phase: Phase::Held };
    AgentRecord::attaching(attachment, netns)
}

pub(super) fn moves_speculatively(system: &mut System, key: Key) {
    let Some(speculative) = system.host(key).speculative(key).copied() else { return };
    move_speculatively(system, speculative.attachment.vf, speculative.netns);
}

fn move_speculatively(system: &mut System, vf: Vf, netns: Netns) {
    *system.function_mut(vf) = Function { place: Place::Pod(netns), carries: None };
}

/// `verbs/guess.rs::take_home`: the DPU has refused the VF and knows that. The reconciler handles a VF that is not
/// back.
pub(super) fn moves_speculative_back(system: &mut System, key: Key) {
    let Some(Step::MoveSpeculativeBack(netns)) = step(system, key) else { return };
    if let Some(speculative) = system.host(key).speculative(key).copied() {
        if !is_within_reach(system, &speculative) {
            system.host_mut(key).put(AgentRecord { phase: AgentPhase::Releasing, ..speculative });
            return fails_add(system, key);
        }
        *system.function_mut(speculative.attachment.vf) = Function::CLEAN;
        system.host_mut(key).forget(speculative.attachment.id);
    }
    ends_hold(system, key);
    set(system, key, Step::AskAgain(netns), Then::AnswerAdd);
}
