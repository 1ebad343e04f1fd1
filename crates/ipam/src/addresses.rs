//! Taken and free addresses of a subnet.
//!
//! Addresses are numbers. Open addresses, which are allocated without being requested, are counted in order: this
//! is their rank. The addresses of the first ranks, the window, have one bit each. Other taken addresses, requested
//! by name or restored from a journal, are in a set. Memory and search time depend on the window and not on the
//! subnet's size.

use std::{collections::HashSet, mem};

use crate::subnet::Subnet;

/// The size of the first window: 32 KiB of bits, four times what a DPU can hold. A full window grows.
const FIRST_WINDOW: u128 = 1 << 18;
const WORD: usize = u64::BITS as usize;

/// The addresses of a subnet. An address is *taken* while it is held and during its cool-down.
#[derive(Debug)]
pub(crate) struct Addresses {
    subnet: Subnet,
    /// The number of ranks in the window.
    window: usize,
    /// The bits of taken addresses. All addresses after the last word are free.
    taken: Vec<u64>,
    taken_others: HashSet<u128>,
    /// Where the next search starts: the rank after the last allocated one.
    cursor: usize,
}

impl Addresses {
    /// Returns a subnet's addresses, all free.
    pub(crate) fn new(subnet: Subnet) -> Self {
        Self {
            window: to_usize(FIRST_WINDOW.min(subnet.capacity())),
            subnet,
            taken: Vec::new(),
            taken_others: HashSet::new(),
            cursor: 0,
        }
    }

    /// Changes the subnet. `taken` are the taken addresses of the new one.
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

    /// Marks an address as taken, whether it is free or not.
    pub(crate) fn take(&mut self, number: u128) {
        let Some((word, mask)) = self.bit(number) else {
            self.taken_others.insert(number);
            return;
        };
        self.taken.resize(self.taken.len().max(word + 1), 0);
        self.taken[word] |= mask;
    }

    /// Marks a taken address, which is not in cool-down, as free.
    pub(crate) fn free(&mut self, number: u128) {
        match self.bit(number) {
            Some((word, mask)) => self.taken[word] &= !mask,
            None => drop(self.taken_others.remove(&number)),
        }
    }

    /// Takes the next free open address. `None`: all are taken.
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

    /// Doubles the window. `false`: it already covers the subnet.
    fn widen(&mut self) -> bool {
        let window = to_usize((self.window as u128 * 2).min(self.subnet.capacity()));
        let is_wider = mem::replace(&mut self.window, window) < window;
        mem::take(&mut self.taken_others).into_iter().for_each(|number| self.take(number));
        is_wider
    }

    /// The rank of the first free address in the window from `start` on.
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

    /// The word and bit of an address in the window.
    fn bit(&self, number: u128) -> Option<(usize, u64)> {
        let rank = to_usize(self.subnet.rank(number).ok()?);
        (rank < self.window).then_some((rank / WORD, 1 << (rank % WORD)))
    }
}

/// Converts a rank or a number of ranks. Values beyond `usize` exceed memory anyway.
fn to_usize(ranks: u128) -> usize {
    usize::try_from(ranks).unwrap_or(usize::MAX)
}
