//! Between the protocol's messages and the service's own words.
//!
//! [`read`] checks the form of everything that a peer sends: lengths, characters, numbers. Whether it
//! fits networks and pools is the engine's to say.

pub(crate) mod read;
pub(crate) mod show;
#[cfg(test)]
mod tests;
