//! What is explored, and what comes of it where a promise is broken.

use std::fmt::{self, Debug};

/// What is explored.
pub trait Model {
    /// All there is at one moment.
    type State: Clone + Debug;
    /// One thing that can happen.
    type Action: Copy + Debug;

    /// Where it begins.
    fn initial(&self) -> Self::State;
    /// Appends what can happen next.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    /// The state after `action`, which is one of [`Self::actions`].
    fn next(&self, state: &Self::State, action: Self::Action) -> Self::State;
    /// Whether the action happens by itself, sooner or later, if nothing breaks.
    fn is_progress(&self, action: Self::Action) -> bool;
    /// What tells states apart. Those that differ only in the names of what is alike may have the same.
    fn fingerprint(&self, state: &Self::State) -> u64;
    /// The name of a promise about steps that this one breaks, if any.
    fn broken_by_step(
        &self,
        before: &Self::State,
        action: Self::Action,
        after: &Self::State,
    ) -> Option<&'static str>;
    /// The name of an invariant that the state breaks, if any.
    fn broken_invariant(&self, state: &Self::State) -> Option<&'static str>;
    /// Whether all is in order, and nothing is left over.
    fn is_settled(&self, state: &Self::State) -> bool;
}

/// A way to a state that breaks a promise.
#[derive(Clone, Debug)]
pub struct Counterexample<M: Model> {
    /// The promise.
    pub promise: &'static str,
    /// What happened, from the beginning.
    pub actions: Vec<M::Action>,
    /// Where it ended.
    pub state: M::State,
}

/// The promise that is broken where a state can't settle.
pub const SETTLES: &str = "once nothing breaks any more, all is in order and nothing is left over";

impl<M: Model> fmt::Display for Counterexample<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "broken: {}", self.promise)?;
        for (number, action) in self.actions.iter().enumerate() {
            writeln!(out, "{:4}  {action:?}", number + 1)?;
        }
        write!(out, "{:?}", self.state)
    }
}
