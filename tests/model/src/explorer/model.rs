//! The trait of models, and counterexamples.

use std::fmt::{self, Debug};

/// A model to explore.
pub trait Model {
    /// A state.
    type State: Clone + Debug;
    /// A step.
    type Action: Copy + Debug;

    /// The initial state.
    fn initial(&self) -> Self::State;
    /// Appends the possible actions.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    /// The state after `action`, which is one of [`Self::actions`].
    fn next(&self, state: &Self::State, action: Self::Action) -> Self::State;
    /// Whether the action happens eventually without any fault.
    fn is_progress(&self, action: Self::Action) -> bool;
    /// Identifies states. States that are equal up to renaming may have the same fingerprint.
    fn fingerprint(&self, state: &Self::State) -> u64;
    /// The name of the property that this step breaks, if any.
    fn broken_by_step(
        &self,
        before: &Self::State,
        action: Self::Action,
        after: &Self::State,
    ) -> Option<&'static str>;
    /// The name of an invariant that the state breaks, if any.
    fn broken_invariant(&self, state: &Self::State) -> Option<&'static str>;
    /// Whether nothing is left to do.
    fn is_settled(&self, state: &Self::State) -> bool;
}

/// A path to a state that breaks a property.
#[derive(Clone, Debug)]
pub struct Counterexample<M: Model> {
    /// The broken property.
    pub property: &'static str,
    /// The actions from the initial state.
    pub actions: Vec<M::Action>,
    /// The last state.
    pub state: M::State,
}

/// The property that is broken if a state cannot settle.
pub const SETTLES: &str = "without further faults, everything settles and nothing is left over";

impl<M: Model> fmt::Display for Counterexample<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "broken: {}", self.property)?;
        for (number, action) in self.actions.iter().enumerate() {
            writeln!(out, "{:4}  {action:?}", number + 1)?;
        }
        write!(out, "{:?}", self.state)
    }
}
