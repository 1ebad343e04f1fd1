//! Conversion between protocol messages and domain types.
//!
//! [`read`] checks the form of all fields that a peer sends: lengths, characters, numbers. The engine checks them
//! against networks and pools.

pub(crate) mod read;
pub(crate) mod show;
#[cfg(test)]
mod tests;
