//! The graph of all visited states, and paths through it.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::model::{Counterexample, Model, SETTLES};

/// The states visited so far, by number.
pub(super) struct Graph<'a, M: Model> {
    model: &'a M,
    numbers: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    visited: Vec<Visited<M::Action>>,
    /// Progress steps as (to, from).
    progress: Vec<(u32, u32)>,
}

struct Visited<A> {
    /// The first step that reached it.
    from: Option<(u32, A)>,
    is_settled: bool,
}

impl<'a, M: Model> Graph<'a, M> {
    pub(super) fn new(model: &'a M) -> Self {
        Self { model, numbers: HashMap::default(), visited: Vec::new(), progress: Vec::new() }
    }

    /// The number of a state. Adds the state if it is new.
    pub(super) fn visit(&mut self, state: &M::State, from: Option<(u32, M::Action)>) -> u32 {
        let next = u32::try_from(self.visited.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(self.model.fingerprint(state)).or_insert(next);
        if number == next {
            self.visited.push(Visited { from, is_settled: self.model.is_settled(state) });
        }
        number
    }

    pub(super) fn check(
        &self,
        number: u32,
        state: &M::State,
    ) -> Result<(), Box<Counterexample<M>>> {
        match self.model.broken_invariant(state) {
            Some(property) => Err(self.counterexample(property, number)),
            None => Ok(()),
        }
    }

    /// Marks the states from which progress leads to a settled one. Fails if a state is not marked.
    pub(super) fn check_all_settle(&self) -> Result<(), Box<Counterexample<M>>> {
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

    /// The number of visited states.
    pub(super) fn len(&self) -> usize {
        self.visited.len()
    }

    /// Adds a progress step.
    pub(super) fn note_progress(&mut self, from: u32, to: u32) {
        self.progress.push((to, from));
    }

    fn way_to(&self, number: u32) -> Vec<M::Action> {
        let step = |(from, _): &(u32, M::Action)| self.visited[*from as usize].from;
        let back = std::iter::successors(self.visited[number as usize].from, step);
        let mut actions: Vec<_> = back.map(|(_, action)| action).collect();
        actions.reverse();
        actions
    }

    pub(super) fn counterexample(
        &self,
        property: &'static str,
        number: u32,
    ) -> Box<Counterexample<M>> {
        self.counterexample_of(property, self.way_to(number))
    }

    pub(super) fn counterexample_of_step(
        &self,
        property: &'static str,
        from: u32,
        action: M::Action,
    ) -> Box<Counterexample<M>> {
        let mut actions = self.way_to(from);
        actions.push(action);
        self.counterexample_of(property, actions)
    }

    fn counterexample_of(
        &self,
        property: &'static str,
        actions: Vec<M::Action>,
    ) -> Box<Counterexample<M>> {
        let follow = |state: M::State, action: &M::Action| self.model.next(&state, *action);
        let state = actions.iter().fold(self.model.initial(), follow);
        Box::new(Counterexample { property, actions, state })
    }

    /// The depth of the last state visited, which is one of the deepest in breadth-first order.
    pub(super) fn depth(&self) -> usize {
        let last = u32::try_from(self.visited.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.way_to(last).len()
    }
}

/// A hasher for fingerprints, which are already hashes.
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
