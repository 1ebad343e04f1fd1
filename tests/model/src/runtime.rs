//! A host's container runtime: its calls, and those that it owes.
//!
//! The runtime may repeat an ADD, and reuse a container's id. After a failure it owes a DEL, unless it died with
//! its call. While the agent is dead the runtime calls nothing: its calls wait in the agent's socket.

use crate::{
    agent::memory::{LockRequest, Step},
    host::{AgentPhase, Life},
    names::{Key, Netns},
    system::System,
};

/// An action of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeAction {
    /// Creates a sandbox and calls ADD.
    Adds(Key),
    /// Calls ADD again for the same sandbox, without a DEL in between.
    AddsAgain(Key),
    /// Calls DEL for a running pod.
    Deletes(Key),
    /// Calls DEL after a failed ADD or DEL.
    CleansUp(Key),
}

impl RuntimeAction {
    /// The key of its container.
    #[must_use]
    pub fn key(self) -> Key {
        match self {
            Self::Adds(key) | Self::AddsAgain(key) | Self::Deletes(key) | Self::CleansUp(key) => {
                key
            }
        }
    }

    /// Whether the runtime will do it eventually.
    #[must_use]
    pub fn is_owed(self) -> bool {
        matches!(self, Self::CleansUp(_))
    }
}

impl System {
    /// The possible actions of all runtimes.
    pub fn runtime_actions(&self, add: &mut impl FnMut(RuntimeAction)) {
        for key in self.keys().filter(|key| self.host(*key).agent.is_some()) {
            let container = self.container(key);
            let can_add = self.budget(Some(key.host)).adds > 0;
            match container.life {
                Life::Absent if can_add => add(RuntimeAction::Adds(key)),
                Life::Absent | Life::Adding | Life::Deleting | Life::Abandoned => {}
                Life::Attached(_) => {
                    add(RuntimeAction::Deletes(key));
                    if can_add && container.has_netns {
                        add(RuntimeAction::AddsAgain(key));
                    }
                }
                Life::Failed => {
                    add(RuntimeAction::CleansUp(key));
                    if can_add && container.has_netns {
                        add(RuntimeAction::AddsAgain(key));
                    }
                }
            }
        }
    }

    /// Carries out an action of a runtime.
    pub fn runtime_does(&mut self, action: RuntimeAction) {
        match action {
            RuntimeAction::Adds(key) => {
                let container = self.container_mut(key);
                container.sandboxes += 1;
                container.has_netns = true;
                adds(self, key);
            }
            RuntimeAction::AddsAgain(key) => adds(self, key),
            RuntimeAction::Deletes(key) | RuntimeAction::CleansUp(key) => {
                self.container_mut(key).life = Life::Deleting;
                self.enqueue(key, LockRequest::Del);
            }
        }
    }

    /// The runtime abandons a call of ADD.
    pub fn gives_up(&mut self, key: Key) {
        let container = self.container_mut(key);
        (container.life, container.confirmed) = (Life::Failed, None);
    }

    /// The caller of an ADD dies, and the runtime with it.
    pub fn caller_dies(&mut self, key: Key) {
        let container = self.container(key);
        // If the record says "kept" and the ADD was not answered, only a DEL can follow, which is owed.
        let is_kept = is_kept(self, key) && container.confirmed.is_none();
        let is_lost = container.confirmed.is_some_and(|id| self.lost.contains(&id));
        let life = match container.confirmed {
            // Without records the agent can't tell the two calls apart: the ADD may have cut the pod off.
            Some(_) if is_lost => Life::Failed,
            None if is_kept => Life::Failed,
            Some(id) => Life::Attached(id),
            None => Life::Abandoned,
        };
        let container = self.container_mut(key);
        (container.life, container.confirmed) = (life, None);
    }
}

fn adds(system: &mut System, key: Key) {
    system.budget_mut(Some(key.host)).adds -= 1;
    let container = system.container_mut(key);
    container.confirmed = match container.life {
        Life::Attached(id) => Some(id),
        _ => None,
    };
    container.life = Life::Adding;
    container.call += 1;
    let (sandbox, call) = (container.sandboxes, container.call);
    system.enqueue(key, LockRequest::Add(Netns { key, sandbox }, call));
}

/// Whether the pod keeps its VF, other than by an ADD that is about to be answered.
fn is_kept(system: &System, key: Key) -> bool {
    let host = system.host(key);
    let task = host.agent.as_ref().and_then(|agent| agent.task(key));
    let is_answering = task.is_some_and(|task| matches!(task.step, Step::Answer(_, _, false)));
    !is_answering && host.by_key(key).is_some_and(|record| record.phase == AgentPhase::Live)
}
