//! The usage of a pool.

use std::fmt;

/// The usage of a pool's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of open addresses, which are allocated without a request.
    pub capacity: u128,
    /// The number of held addresses, including requested ones outside the ranges.
    pub held: u64,
    /// The number of addresses in cool-down.
    pub cooling: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, held, cooling } = self;
        write!(out, "of {capacity}, {held} are held and {cooling} are in cool-down")
    }
}
