//! The version of a network, which detects a change that was based on an older one.

use std::fmt;

use bootstrap::sha256;

use super::Network;

/// The length of a version in hexadecimal digits. Two contents share a version by chance once in 2^64 pairs.
const DIGITS: usize = 16;

/// The version of a network's content: the beginning of the SHA-256 of its journal form. It needs no counter and no
/// storage, and a network that is changed back has its former version again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// The version that a caller sent. `None`: the text is empty, so any version may be replaced.
    #[must_use]
    pub fn read(text: String) -> Option<Self> {
        (!text.is_empty()).then_some(Self(text))
    }

    /// The network's version.
    #[must_use]
    pub fn of(network: &Network) -> Self {
        // Serialisation cannot fail: the journal does the same.
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
