//! The move first: an ADD claims a VF, names it to the DPU, and meanwhile records it as a guess and moves it into
//! the pod, where it carries nothing of an attachment yet. Where the DPU might give the VF to another, or have it for
//! one, it is named all the same, but not moved before the answer.
//! In the program: host-shim/src/agent/{verbs/attach,verbs/guess,vfs/ahead,vfs/claims}.rs.

use super::{
    giving_up::fails_add,
    memory::{Agent, Kept, Step, Then},
    recovery::is_within_reach,
    side::AgentSide,
    tasks::{set, step},
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Host, Place},
    names::{Address, AttachmentId, BootId, Key, Netns, Phase, Record, Vf},
    protection::Protection,
    system::System,
};

impl AgentSide<'_> {
    /// `vfs/claims.rs::claim`, for a key's ADD: a VF that is clean at home, and that nobody has. Whose turn it is makes
    /// no difference.
    pub(super) fn claimable(&self, system: &System, agent: &Agent, key: Key) -> Vec<Vf> {
        let host = system.host(key);
        let is_claimed = |vf: Vf| agent.kept.iter().any(|kept| kept.claim() == Some(vf));
        let is_free = |vf: &Vf| {
            *system.function(*vf) == Function::CLEAN
                && host.by_vf(*vf).is_none()
                && !(is_claimed(*vf) && self.has(Protection::OneClaimPerVf))
                && !(agent.unclaimed.has(*vf) && self.has(Protection::UnclaimedIsNotClaimed))
        };
        let is_new = host.by_key(key).is_none();
        system.vfs_of(key.host).filter(|vf| is_new && is_free(vf)).collect()
    }

    /// `verbs/guess.rs::keep_vfs`, and the call.
    pub(super) fn asks_ahead(&self, system: &mut System, key: Key, vf: Vf) {
        let may_move = self.may_move(system, key);
        let Some(agent) = system.agent_mut(key) else { return };
        agent.keep(key, Kept::Claim { vf, may_move });
        self.asks(system, key);
    }

    /// `vfs/claims.rs::claimed` and `verbs/guess.rs::guesses`: whether the DPU can neither give what is claimed now to
    /// another, nor have it for one.
    fn may_move(&self, system: &System, key: Key) -> bool {
        let host = system.host(key);
        let Some(agent) = &host.agent else { return false };
        let is_unnamed = |kept: &Kept| matches!(kept, Kept::Unnamed(_));
        let is_rivalled =
            agent.kept.iter().any(is_unnamed) && self.has(Protection::NoMoveBesideUnnamed);
        let is_owed = is_owed(host, agent) && self.has(Protection::NoMoveWhileUndelivered);
        !is_rivalled && !is_owed
    }
}

/// `verbs/guess.rs::is_owed`.
fn is_owed(host: &Host, agent: &Agent) -> bool {
    let is_releasing =
        |record: &AgentRecord| record.is_guess() && record.phase == AgentPhase::Releasing;
    !agent.undelivered.is_empty() || host.records().any(is_releasing)
}

/// `vfs/claims.rs::begin_unnamed`.
pub(super) fn begins_unnamed(system: &mut System, key: Key) {
    let host = system.host_mut(key);
    let guessed: Vec<_> = host
        .records()
        .filter(|record| record.is_guess())
        .map(|record| record.attachment.vf)
        .collect();
    let Some(agent) = &mut host.agent else { return };
    agent.keep(key, Kept::Nothing);
    let claimed = agent.kept.iter().filter_map(|kept| kept.claim());
    let others = claimed.chain(guessed).collect();
    agent.keep(key, Kept::Unnamed(others));
}

/// Whether the record of a guess is to be written.
pub(super) fn is_to_be_written(system: &System, agent: &Agent, key: Key) -> bool {
    let is_beside = agent.task(key).is_some_and(|task| task.step.is_beside_guess());
    let may_move = matches!(agent.kept(key), Kept::Claim { may_move: true, .. });
    is_beside && may_move && system.host(key).by_key(key).is_none()
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
        let Some(vf) = host.agent.as_ref().and_then(|agent| agent.kept(key).claim()) else {
            return;
        };
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
        None => {
            begins_unnamed(system, key);
            Step::AskAgain(netns)
        }
    };
    set(system, key, next, Then::AnswerAdd);
}
