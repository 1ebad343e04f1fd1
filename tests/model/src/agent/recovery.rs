//! What the agent does on its own initiative: at its start, in its reconciler, and with pending detaches. In the
//! program: host-shim/src/agent/{run,upkeep/keeper,dpu/calls}.rs.

use super::{
    giving_up::unanswered,
    memory::{Agent, DetachReason, Step, Then},
    side::AgentSide,
    tasks::set,
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Place},
    names::{HostId, Key},
    protection::Protection,
    system::System,
};

/// Whether `vfs/homecoming.rs::bring` would find the VF of a record.
pub(super) fn is_within_reach(system: &System, record: &AgentRecord) -> bool {
    match system.function(record.attachment.vf).place {
        Place::Home => true,
        Place::Pod(netns) => netns == record.netns,
        Place::Nowhere => false,
    }
}

/// The work of `upkeep/keeper.rs::reconcile_locked` for a key, if there is any.
pub(super) fn upkeep(system: &System, key: Key) -> Option<Step> {
    let host = system.host(key);
    let record = host.by_key(key)?;
    let id = record.attachment.id;
    let function = system.function(record.attachment.vf);
    if record.phase == AgentPhase::Attaching {
        return unanswered(system, key).map(Step::BeginRelease);
    }
    if record.phase == AgentPhase::Releasing || record.attachment.boot_id != host.boot_id {
        let is_home = *function == Function::CLEAN;
        let can_report = host.agent.as_ref().is_some_and(|agent| agent.session().is_some());
        let has_work = is_within_reach(system, record)
            && (!is_home || can_report || record.phase == AgentPhase::Live);
        return has_work.then_some(match record.phase {
            AgentPhase::Releasing => Step::MoveBack(id),
            AgentPhase::Attaching | AgentPhase::Live => Step::BeginRelease(id),
        });
    }
    match (function.place, system.is_alive(record.netns)) {
        (Place::Home, true) => Some(Step::MoveIn(record.netns, record.attachment)),
        (Place::Home, false) => Some(Step::BeginRelease(id)),
        _ => None,
    }
}

pub(super) fn reconciles(system: &mut System, key: Key) {
    if let Some(step) = upkeep(system, key) {
        set(system, key, step, Then::Nothing);
    }
}

impl AgentSide<'_> {
    /// `run.rs::keep`: records of an earlier boot, and of ADDs that were not answered, are marked as releasing
    /// before the agent serves calls.
    pub fn starts(&self, system: &mut System, host: HostId) {
        let host = &mut system.hosts[usize::from(host)];
        let boot_id = host.boot_id;
        for record in &mut host.disk {
            let is_over = record.attachment.boot_id != boot_id;
            record.phase = match record.phase {
                _ if is_over => AgentPhase::Releasing,
                AgentPhase::Attaching if self.has(Protection::UnansweredUndone) => {
                    AgentPhase::Releasing
                }
                AgentPhase::Attaching => AgentPhase::Live,
                phase => phase,
            };
        }
        host.disk.sort_unstable();
        host.agent = Some(Agent::new(host.containers.len()));
    }
}

pub(super) fn delivers_detach(system: &mut System, key: Key) {
    let has_record = system.host(key).by_key(key).is_some();
    let Some(agent) = system.agent_mut(key) else { return };
    let Some(place) = agent.undelivered.iter().position(|detach| detach.key == key) else { return };
    let detach = agent.undelivered[place];
    match has_record {
        // The same attach was repeated.
        true => drop(agent.undelivered.remove(place)),
        false => set(system, key, Step::CallDetach(DetachReason::Disowned, detach), Then::Nothing),
    }
}
