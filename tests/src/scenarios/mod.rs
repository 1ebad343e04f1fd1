//! What holds on every kind of card: each function is a test, given what to set up.

pub mod faults;
pub mod load;
pub mod outages;
pub mod pods;
