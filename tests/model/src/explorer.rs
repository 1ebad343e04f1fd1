//! Visits every state that a model can get into, breadth first, so that the first counterexample is
//! a shortest one.
//!
//! Three kinds of promise are checked. What must *always* hold is looked at in every state, and what a
//! *step* must not do at every step. What must hold *in the end* is looked at in the graph of all states:
//! from each of them, the model's own progress alone, without any further fault, must be able to lead to
//! a settled state; and where there is no progress left to make, the state must be settled. Retries make
//! cycles, which is why the whole graph is looked at, and not single paths. That a cycle is not gone
//! round for ever is not checked: it is taken for granted that what can happen does, sooner or later.
//!
//! States are told apart by a fingerprint of 64 bits: of ten million states, two share theirs with a
//! probability of one in 300,000, and then one of them is not looked at.

mod graph;

use std::{
    collections::VecDeque,
    fmt::{self, Debug},
};

use graph::Graph;

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

/// How far an exploration got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
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

/// Explores all of `model`, up to `limit` states.
///
/// # Errors
/// The shortest way to a broken promise.
pub fn explore<M: Model>(model: &M, limit: usize) -> Result<Extent, Box<Counterexample<M>>> {
    let mut graph = Graph::new(model);
    let mut frontier = VecDeque::new();
    frontier.push_back((graph.visit(&model.initial(), None), model.initial()));
    let mut extent = Extent::default();
    let mut actions = Vec::new();
    while let Some((from, state)) = frontier.pop_front() {
        graph.check(from, &state)?;
        actions.clear();
        model.actions(&state, &mut actions);
        if !actions.iter().any(|action| model.is_progress(*action)) && !model.is_settled(&state) {
            return Err(graph.counterexample(SETTLES, from));
        }
        for &action in &actions {
            extent.transitions += 1;
            let next = model.next(&state, action);
            if let Some(promise) = model.broken_by_step(&state, action, &next) {
                return Err(graph.counterexample_of_step(promise, from, action));
            }
            let known = graph.len();
            let to = graph.visit(&next, Some((from, action)));
            if model.is_progress(action) {
                graph.note_progress(from, to);
            }
            if graph.len() > known && known < limit {
                frontier.push_back((to, next));
            }
        }
    }
    extent.states = graph.len();
    extent.depth = graph.depth();
    if extent.states <= limit {
        graph.check_all_settle()?;
    }
    Ok(extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to 3, where it may fall into a hole, and from 3 round to 0 again.
    #[derive(Debug, Default)]
    struct Counter {
        hole: Option<u8>,
        forbidden: Option<u8>,
        forbidden_step: Option<(u8, u8)>,
    }

    impl Model for Counter {
        type State = u8;
        type Action = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn actions(&self, state: &u8, actions: &mut Vec<u8>) {
            if *state < 8 {
                actions.push((state + 1) % 4);
            }
            if *state == 2 {
                actions.extend(self.hole);
            }
            if *state >= 8 {
                actions.push(8 + (state + 1) % 2);
            }
        }

        fn next(&self, _: &u8, action: u8) -> u8 {
            action
        }

        fn is_progress(&self, _: u8) -> bool {
            true
        }

        fn fingerprint(&self, state: &u8) -> u64 {
            u64::from(*state)
        }

        fn broken_by_step(&self, before: &u8, _: u8, after: &u8) -> Option<&'static str> {
            (Some((*before, *after)) == self.forbidden_step).then_some("forbidden step")
        }

        fn broken_invariant(&self, state: &u8) -> Option<&'static str> {
            (Some(*state) == self.forbidden).then_some("forbidden")
        }

        fn is_settled(&self, state: &u8) -> bool {
            *state == 3
        }
    }

    #[test]
    fn all_states_are_visited_once() {
        let extent = explore(&Counter::default(), 100).unwrap();
        assert_eq!(extent, Extent { states: 4, transitions: 4, depth: 3 });
    }

    #[test]
    fn the_way_to_a_broken_invariant_is_told() {
        let counter = Counter { hole: Some(9), forbidden: Some(9), ..Counter::default() };
        let found = explore(&counter, 100).unwrap_err();
        assert_eq!((found.promise, found.actions), ("forbidden", vec![1, 2, 9]));
    }

    #[test]
    fn the_way_to_a_forbidden_step_ends_with_it() {
        let counter = Counter { forbidden_step: Some((2, 3)), ..Counter::default() };
        let found = explore(&counter, 100).unwrap_err();
        assert_eq!((found.promise, found.actions), ("forbidden step", vec![1, 2, 3]));
    }

    #[test]
    fn a_cycle_that_never_settles_is_found() {
        let found = explore(&Counter { hole: Some(9), ..Counter::default() }, 100).unwrap_err();
        assert_eq!((found.promise, found.actions), (SETTLES, vec![1, 2, 9]));
    }
}
