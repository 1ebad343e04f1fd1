//! A failed or abandoned ADD: what it has made without an answer is undone. In the program:
//! host-shim/src/agent/{verbs/attach,dpu/calls}.rs.

use super::{
    memory::{DetachReason, Step, Then},
    side::AgentSide,
    tasks::{ends, is_awaited, set, step},
};
use crate::{
    host::{AgentPhase, Life},
    names::{AttachmentId, Key, Record},
    protection::Protection,
    system::System,
    wire::Detach,
};

impl AgentSide<'_> {
    /// `dpu/calls.rs::detach_by_key`: abandons an attach whose answer never came.
    pub fn disowns(&self, system: &mut System, key: Key) {
        let was_asked = !matches!(step(system, key), Some(Step::CallAttach(_, None)));
        if !was_asked || system.host(key).by_key(key).is_some() {
            return fails_add(system, key);
        }
        let detach = detach_request(system, key, None, !self.has(Protection::DisownClaimsNothing));
        if is_left_to_repeat(system, key) {
            return leaves_to_repeat(system, key, detach);
        }
        set(system, key, Step::CallDetach(DetachReason::Disowned, detach), Then::FailAdd);
    }
}

/// Fails an ADD, if its caller waits. Undoes what it has made unless a repeated ADD waits:
/// `verbs/release.rs::take_back_unanswered`.
pub(super) fn fails_add(system: &mut System, key: Key) {
    if is_awaited(system, key) {
        let container = system.container_mut(key);
        (container.life, container.confirmed) = (Life::Failed, None);
    }
    if let Some(agent) = system.agent_mut(key) {
        agent.calls[usize::from(key.container)] = 0;
    }
    match unanswered(system, key) {
        Some(id) => set(system, key, Step::BeginRelease(id), Then::Nothing),
        None => ends(system, key),
    }
}

/// The attachment of an ADD that was not answered, if no repeated ADD waits.
pub(super) fn unanswered(system: &System, key: Key) -> Option<AttachmentId> {
    let host = system.host(key);
    let record = host.by_key(key).filter(|record| record.phase == AgentPhase::Attaching)?;
    let is_repeated = host.agent.as_ref().is_some_and(|agent| agent.is_repeated(key));
    (!is_repeated).then_some(record.attachment.id)
}

/// `verbs/take_in.rs::give_back_unused`.
pub fn gives_back_unused(system: &mut System, key: Key, attachment: Record, found_vf: bool) {
    let detach = detach_request(system, key, Some(attachment.id), found_vf);
    if is_left_to_repeat(system, key) {
        return leaves_to_repeat(system, key, detach);
    }
    set(system, key, Step::CallDetach(DetachReason::Unused, detach), Then::FailAdd);
}

/// Whether the caller of an ADD is gone, and a repeated ADD waits.
pub(super) fn is_left_to_repeat(system: &System, key: Key) -> bool {
    let agent = system.host(key).agent.as_ref();
    !is_awaited(system, key) && agent.is_some_and(|agent| agent.is_repeated(key))
}

/// `dpu/calls.rs::leave_to_repeat`.
pub(super) fn leaves_to_repeat(system: &mut System, key: Key, detach: Detach) {
    if let Some(agent) = system.agent_mut(key) {
        agent.note(detach);
    }
    fails_add(system, key);
}

/// `dpu/calls.rs::detach_request`, with the current time.
pub(super) fn detach_request(
    system: &mut System,
    key: Key,
    id: Option<AttachmentId>,
    returned: bool,
) -> Detach {
    let as_of = system.host_mut(key).tick();
    Detach { key, id, returned, returned_vf: None, as_of }
}
