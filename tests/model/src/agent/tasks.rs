//! The task that holds a key's lock: where it is, and where it goes on.

use super::memory::{Step, Then};
use crate::{
    host::{Function, Place},
    names::{CallId, Key, Netns, Record},
    system::System,
};

pub(super) fn step(system: &System, key: Key) -> Option<Step> {
    Some(system.host(key).agent.as_ref()?.task(key)?.step)
}

pub(super) fn then(system: &System, key: Key) -> Option<Then> {
    Some(system.host(key).agent.as_ref()?.task(key)?.then)
}

pub(super) fn set(system: &mut System, key: Key, step: Step, then: Then) {
    if let Some(agent) = system.agent_mut(key) {
        agent.set(key, step, then);
    }
}

pub(super) fn ends(system: &mut System, key: Key) {
    if let Some(agent) = system.agent_mut(key) {
        agent.end(key);
    }
}

pub(super) fn move_vf(system: &mut System, attachment: Record, netns: Netns) {
    let carries = Some(attachment.id);
    *system.function_mut(attachment.vf) = Function { place: Place::Pod(netns), carries };
}

/// The call of ADD that a key's task is of.
pub(super) fn call(system: &System, key: Key) -> CallId {
    let agent = system.host(key).agent.as_ref();
    agent.map_or(0, |agent| agent.calls[usize::from(key.container)])
}

/// `caller.rs::is_waiting`, of the ADD that a key's task is of.
pub(super) fn is_awaited(system: &System, key: Key) -> bool {
    system.is_awaited(key, call(system, key))
}
