//! How much of a pool is in use.

use std::fmt;

/// How a pool's addresses are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many addresses there are to be handed out unasked.
    pub capacity: u128,
    /// How many are held, with those that were asked for by name and may lie outside the ranges.
    pub held: u64,
    /// How many have been given back and still rest.
    pub cooling: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, held, cooling } = self;
        write!(out, "of {capacity}, {held} are held and {cooling} are in cool-down")
    }
}
