//! Visits every state that a model can get into, breadth first, so that the first counterexample is
//! a shortest one.
//!
//! Two kinds of promise are checked. What must *always* hold is looked at in every state. What must
//! hold *in the end* is looked at in the graph of all states: from each of them, the model's own
//! progress alone, without any further breakage, must be able to lead to a settled state; and where
//! there is no progress left to make, the state must be settled. Retries make cycles, which is why
//! the whole graph is looked at, and not single paths.
//!
//! States are told apart by a hash of 64 bits: of ten million states, two share theirs with a
//! probability of one in 300,000.

use std::{
    collections::{HashMap, VecDeque},
    fmt::{self, Debug},
    hash::{BuildHasherDefault, Hasher},
};

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
            let known = graph.visited.len();
            let to = graph.visit(&next, Some((from, action)));
            if model.is_progress(action) {
                graph.progress.push((to, from));
            }
            if graph.visited.len() > known && known < limit {
                frontier.push_back((to, next));
            }
        }
    }
    extent.states = graph.visited.len();
    extent.depth = graph.depth();
    if extent.states <= limit {
        graph.check_all_settle()?;
    }
    Ok(extent)
}

/// The states visited so far, by number.
struct Graph<'a, M: Model> {
    model: &'a M,
    numbers: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    visited: Vec<Visited<M::Action>>,
    /// Steps of progress, each as (to, from).
    progress: Vec<(u32, u32)>,
}

struct Visited<A> {
    /// The first way to it.
    from: Option<(u32, A)>,
    is_settled: bool,
}

impl<'a, M: Model> Graph<'a, M> {
    fn new(model: &'a M) -> Self {
        Self { model, numbers: HashMap::default(), visited: Vec::new(), progress: Vec::new() }
    }

    /// The number of a state, new or not.
    fn visit(&mut self, state: &M::State, from: Option<(u32, M::Action)>) -> u32 {
        let next = u32::try_from(self.visited.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(self.model.fingerprint(state)).or_insert(next);
        if number == next {
            self.visited.push(Visited { from, is_settled: self.model.is_settled(state) });
        }
        number
    }

    fn check(&self, number: u32, state: &M::State) -> Result<(), Box<Counterexample<M>>> {
        match self.model.broken_invariant(state) {
            Some(promise) => Err(self.counterexample(promise, number)),
            None => Ok(()),
        }
    }

    /// Goes back from the settled states along all steps of progress.
    fn check_all_settle(&self) -> Result<(), Box<Counterexample<M>>> {
        let mut settles: Vec<bool> = self.visited.iter().map(|state| state.is_settled).collect();
        let mut steps = self.progress.clone();
        steps.sort_unstable();
        let mut open: Vec<u32> =
            (0..).zip(&settles).filter(|(_, is)| **is).map(|(n, _)| n).collect();
        while let Some(to) = open.pop() {
            let first = steps.partition_point(|step| step.0 < to);
            for &(_, from) in steps[first..].iter().take_while(|step| step.0 == to) {
                if !std::mem::replace(&mut settles[from as usize], true) {
                    open.push(from);
                }
            }
        }
        match (0..).zip(&settles).find(|(_, settles)| !**settles) {
            Some((number, _)) => Err(self.counterexample(SETTLES, number)),
            None => Ok(()),
        }
    }

    fn way_to(&self, number: u32) -> Vec<M::Action> {
        let step = |(from, _): &(u32, M::Action)| self.visited[*from as usize].from;
        let back = std::iter::successors(self.visited[number as usize].from, step);
        let mut actions: Vec<_> = back.map(|(_, action)| action).collect();
        actions.reverse();
        actions
    }

    fn counterexample(&self, promise: &'static str, number: u32) -> Box<Counterexample<M>> {
        self.counterexample_of(promise, self.way_to(number))
    }

    fn counterexample_of_step(
        &self,
        promise: &'static str,
        from: u32,
        action: M::Action,
    ) -> Box<Counterexample<M>> {
        let mut actions = self.way_to(from);
        actions.push(action);
        self.counterexample_of(promise, actions)
    }

    fn counterexample_of(
        &self,
        promise: &'static str,
        actions: Vec<M::Action>,
    ) -> Box<Counterexample<M>> {
        let follow = |state: M::State, action: &M::Action| self.model.next(&state, *action);
        let state = actions.iter().fold(self.model.initial(), follow);
        Box::new(Counterexample { promise, actions, state })
    }

    /// Breadth first, the last state visited is one of the deepest.
    fn depth(&self) -> usize {
        let last = u32::try_from(self.visited.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.way_to(last).len()
    }
}

/// What is hashed already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
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
