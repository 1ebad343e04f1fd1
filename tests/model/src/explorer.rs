//! Visits every reachable state of a model, breadth first, so that the first counterexample is a shortest one.
//!
//! The explorer checks three kinds of property. An invariant is checked in every state, and a property of steps at
//! every step. A property of the end is checked in the graph of all states: from each state, progress without
//! further faults must be able to reach a settled state, and a state without progress must be settled. Retries form
//! cycles, so the check needs the whole graph and not single paths. The explorer assumes fairness: what can happen
//! happens eventually, so no cycle repeats for ever.
//!
//! A fingerprint of 64 bits identifies a state. Among ten million states, two share one with a probability of one
//! in 300,000; then one of them is not visited.

mod graph;
mod model;

use std::collections::VecDeque;

use graph::Graph;
pub use model::{Counterexample, Model, SETTLES};

/// The size of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The number of different states.
    pub states: usize,
    /// The number of steps between them.
    pub transitions: usize,
    /// The length of the longest shortest path to a state.
    pub depth: usize,
}

/// Explores all of `model`, up to `limit` states.
///
/// # Errors
/// The shortest path to a broken property.
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
            if let Some(property) = model.broken_by_step(&state, action, &next) {
                return Err(graph.counterexample_of_step(property, from, action));
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

    /// Counts up to 3, where it may fall into a hole, and from 3 to 0 again.
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
    fn path_to_a_broken_invariant_is_reported() {
        let counter = Counter { hole: Some(9), forbidden: Some(9), ..Counter::default() };
        let found = explore(&counter, 100).unwrap_err();
        assert_eq!((found.property, found.actions), ("forbidden", vec![1, 2, 9]));
    }

    #[test]
    fn path_ends_with_the_forbidden_step() {
        let counter = Counter { forbidden_step: Some((2, 3)), ..Counter::default() };
        let found = explore(&counter, 100).unwrap_err();
        assert_eq!((found.property, found.actions), ("forbidden step", vec![1, 2, 3]));
    }

    #[test]
    fn a_cycle_that_never_settles_is_found() {
        let found = explore(&Counter { hole: Some(9), ..Counter::default() }, 100).unwrap_err();
        assert_eq!((found.property, found.actions), (SETTLES, vec![1, 2, 9]));
    }
}
