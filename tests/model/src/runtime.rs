//! The container runtime of a host: what it asks, and when it is bound to.

use crate::{
    agent::Wish,
    protocol::wish,
    system::{Key, Life, Netns, System},
};

/// What a runtime does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeAction {
    /// Makes a sandbox and calls ADD.
    Adds(Key),
    /// Calls ADD again for the same sandbox, without DEL in between.
    AddsAgain(Key),
    /// Ends the call of ADD: its time is over.
    GivesUp(Key),
    /// Calls DEL of a pod that runs.
    Deletes(Key),
    /// Calls DEL because ADD or DEL has failed.
    CleansUp(Key),
}

impl RuntimeAction {
    /// Whether the runtime will do it sooner or later.
    #[must_use]
    pub fn is_owed(self) -> bool {
        matches!(self, Self::CleansUp(_))
    }
}

impl System {
    /// What the runtimes may do next.
    pub fn runtime_actions(&self, add: &mut impl FnMut(RuntimeAction)) {
        for key in self.keys().filter(|key| self.host(*key).agent.is_some()) {
            let container = self.container(key);
            match container.life {
                Life::Absent if self.budget.adds > 0 => add(RuntimeAction::Adds(key)),
                Life::Absent | Life::Adding | Life::Deleting => {}
                Life::Attached(_) => {
                    add(RuntimeAction::Deletes(key));
                    if self.budget.adds > 0 && container.has_netns {
                        add(RuntimeAction::AddsAgain(key));
                    }
                }
                Life::Failed => {
                    add(RuntimeAction::CleansUp(key));
                    if self.budget.adds > 0 && container.has_netns {
                        add(RuntimeAction::AddsAgain(key));
                    }
                }
            }
        }
    }

    /// Does what a runtime may do.
    pub fn runtime_does(&mut self, action: RuntimeAction) {
        match action {
            RuntimeAction::Adds(key) => {
                let container = self.container_mut(key);
                container.sandboxes += 1;
                container.has_netns = true;
                self.adds(key);
            }
            RuntimeAction::AddsAgain(key) => self.adds(key),
            RuntimeAction::GivesUp(key) => self.container_mut(key).life = Life::Failed,
            RuntimeAction::Deletes(key) | RuntimeAction::CleansUp(key) => {
                self.container_mut(key).life = Life::Deleting;
                wish(self, key, Wish::Del);
            }
        }
    }

    fn adds(&mut self, key: Key) {
        self.budget.adds -= 1;
        let container = self.container_mut(key);
        container.life = Life::Adding;
        let sandbox = container.sandboxes;
        wish(self, key, Wish::Add(Netns { key, sandbox }));
    }
}
