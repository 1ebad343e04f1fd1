//! The version of a network, by which a change that was made on an older one is noticed.

use std::fmt;

use bootstrap::sha256;

use super::Network;

/// Hexadecimal digits of a version. Two contents share one by chance once in 2^64 pairs.
const DIGITS: usize = 16;

/// The version of a network's content: the beginning of the SHA-256 of the form in which the journal has it. Nothing
/// needs to be stored or counted, and a network that is changed back has its former version again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// The version that a caller has read. `None`: the text is empty, so that any version may be replaced.
    #[must_use]
    pub fn read(text: String) -> Option<Self> {
        (!text.is_empty()).then_some(Self(text))
    }

    /// The version of that network.
    #[must_use]
    pub fn of(network: &Network) -> Self {
        // Every network can be written as JSON: the journal does the same.
        let content = serde_json::to_vec(network).unwrap_or_default();
        let mut digest = sha256(&content);
        digest.truncate(DIGITS);
        Self(digest)
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
