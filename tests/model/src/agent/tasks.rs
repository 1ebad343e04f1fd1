//! The task that holds a key's lock.

use super::memory::{Step, Then};
use crate::{
    host::{Function, Place},
    names::{CallId, Key, Netns, Record},
    system::System,
    wire::HostMessage,
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
    ends_hold(system, key);
    if let Some(agent) = system.agent_mut(key) {
        agent.end(key);
    }
}

/// `verbs/guess.rs::tell`, or `verbs/release.rs::forget` after a speculative record: declines the offer of a VF
/// that is at home unused. Offers of an ended session are not declined.
pub(super) fn ends_hold(system: &mut System, key: Key) {
    let host = system.host_mut(key);
    if host.speculative(key).is_some() {
        return;
    }
    let Some(agent) = &mut host.agent else { return };
    let Some(offer) = agent.hold_of(key) else { return };
    agent.set_hold(key, None);
    let session = agent.session().filter(|_| offer.number > 0);
    let stream = session.and_then(|session| host.wire.stream_mut(session));
    if let Some(stream) = stream.filter(|stream| !stream.is_ended) {
        stream.up.push(HostMessage::Declined(offer));
    }
}

pub(super) fn move_vf(system: &mut System, attachment: Record, netns: Netns) {
    let carries = Some(attachment.id);
    *system.function_mut(attachment.vf) = Function { place: Place::Pod(netns), carries };
}

/// The call of ADD that a key's task belongs to.
pub(super) fn call(system: &System, key: Key) -> CallId {
    let agent = system.host(key).agent.as_ref();
    agent.map_or(0, |agent| agent.calls[usize::from(key.container)])
}

/// `caller.rs::is_waiting`, for the ADD that a key's task belongs to.
pub(super) fn is_awaited(system: &System, key: Key) -> bool {
    system.is_awaited(key, call(system, key))
}
