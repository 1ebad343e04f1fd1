//! Capabilities of the session, by which programs of different versions work together. Each side lists its own in its
//! first message, and only common ones are used.

/// The agent answers `Examine`.
pub const EXAMINE: &str = "examine";

/// The agent accepts VF offers (`VfOffers`).
pub const VF_OFFERS: &str = "vf-offers";

/// The agent accepts `VfPools`.
pub const VF_POOLS: &str = "vf-pools";

/// The capabilities of this build.
pub const ALL: &[&str] = &[EXAMINE, VF_OFFERS, VF_POOLS];

/// Upper bound of a peer's capabilities that are compared.
const MOST: usize = 256;

/// The capabilities of a peer that this build has, too. Unknown ones belong to a newer version and are ignored.
#[must_use]
pub fn common(theirs: &[String]) -> Vec<&'static str> {
    let theirs = theirs.get(..MOST).unwrap_or(theirs);
    ALL.iter().copied().filter(|ours| theirs.iter().any(|named| named == ours)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_capabilities_are_used() {
        let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(common(&named(&["teleport", EXAMINE, EXAMINE])), [EXAMINE]);
        assert!(common(&named(&["teleport"])).is_empty());
        assert!(common(&[]).is_empty());
    }
}
