//! Which addresses are taken, and which is the next free one.
//!
//! Addresses are numbers. Those that are handed out unasked are counted off in their order: that is their
//! rank. The ones of the first ranks, the window, have a bit each; the others that are taken, asked for by
//! name or found in a journal, are a set. So the size of the subnet does not matter, and a search reads no
//! more than the window.

use std::{collections::HashSet, mem};

use crate::subnet::Subnet;

/// The window to begin with, in 32 KiB: four times what a DPU can hold. It grows when it is full.
const FIRST_WINDOW: u128 = 1 << 18;
const WORD: usize = u64::BITS as usize;

/// The addresses of a subnet. One is *taken* while it is held, by whomever, and while it rests.
#[derive(Debug)]
pub(crate) struct Addresses {
    subnet: Subnet,
    /// How many ranks have a bit.
    window: usize,
    /// The bits of the taken ones; beyond the last word all are free.
    taken: Vec<u64>,
    taken_others: HashSet<u128>,
    /// Where to look for the next free one: the rank after the last one handed out.
    cursor: usize,
}

impl Addresses {
    /// All are free.
    pub(crate) fn new(subnet: Subnet) -> Self {
        Self {
            window: to_usize(FIRST_WINDOW.min(subnet.capacity())),
            subnet,
            taken: Vec::new(),
            taken_others: HashSet::new(),
            cursor: 0,
        }
    }

    /// Becomes those of another subnet, of which `taken` are taken.
    pub(crate) fn move_to(&mut self, subnet: Subnet, taken: impl Iterator<Item = u128>) {
        let old = mem::replace(self, Self::new(subnet));
        let (Ok(next) | Err(next)) = self.subnet.rank(old.subnet.nth_open(old.cursor as u128));
        self.cursor = to_usize(next);
        taken.for_each(|number| self.take(number));
    }

    pub(crate) const fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    pub(crate) fn is_taken(&self, number: u128) -> bool {
        match self.bit(number) {
            Some((word, mask)) => self.taken.get(word).is_some_and(|taken| taken & mask != 0),
            None => self.taken_others.contains(&number),
        }
    }

    /// Takes an address, free or not.
    pub(crate) fn take(&mut self, number: u128) {
        let Some((word, mask)) = self.bit(number) else {
            self.taken_others.insert(number);
            return;
        };
        self.taken.resize(self.taken.len().max(word + 1), 0);
        self.taken[word] |= mask;
    }

    /// Makes a taken address free that does not rest.
    pub(crate) fn free(&mut self, number: u128) {
        match self.bit(number) {
            Some((word, mask)) => self.taken[word] &= !mask,
            None => drop(self.taken_others.remove(&number)),
        }
    }

    /// Takes the next free address of those that are handed out unasked. `None`: none is free.
    pub(crate) fn take_next(&mut self) -> Option<u128> {
        let rank = loop {
            match self.free_from(self.cursor).or_else(|| self.free_from(0)) {
                Some(rank) => break rank,
                None if !self.widen() => return None,
                None => {}
            }
        };
        self.cursor = rank + 1;
        let number = self.subnet.nth_open(rank as u128);
        self.take(number);
        Some(number)
    }

    /// Doubles the window, if there is more to hand out.
    fn widen(&mut self) -> bool {
        let window = to_usize((self.window as u128 * 2).min(self.subnet.capacity()));
        let is_wider = mem::replace(&mut self.window, window) < window;
        mem::take(&mut self.taken_others).into_iter().for_each(|number| self.take(number));
        is_wider
    }

    /// The rank of the first free one of the window from `start` on.
    fn free_from(&self, start: usize) -> Option<usize> {
        let free = |word: usize| self.taken.get(word).map_or(u64::MAX, |taken| !taken);
        let mut word = start / WORD;
        let mut bits = free(word) & u64::MAX << (start % WORD);
        while bits == 0 {
            word += 1;
            bits = free(word);
        }
        let rank = word * WORD + bits.trailing_zeros() as usize;
        (rank < self.window).then_some(rank)
    }

    /// The word and the bit of an address of the window.
    fn bit(&self, number: u128) -> Option<(usize, u64)> {
        let rank = to_usize(self.subnet.rank(number).ok()?);
        (rank < self.window).then_some((rank / WORD, 1 << (rank % WORD)))
    }
}

/// A rank, or a number of ranks; more of them than there is room for anyway are too many.
fn to_usize(ranks: u128) -> usize {
    usize::try_from(ranks).unwrap_or(usize::MAX)
}
