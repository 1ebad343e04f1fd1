//! Optional behaviour of the session: either side names what it can do in its first message, and only
//! what both can do is used. So programs of different versions work together.

/// An agent that answers `Examine`.
pub const EXAMINE: &str = "examine";

/// An agent that understands `Attachment.host_keeps_port`: where the DPU has no port of a VF to program,
/// it has the PF keep the pod to what the network says, or refuses.
pub const KEEPS_PORT: &str = "keeps-port";

/// An agent that is told `Promises`.
pub const PROMISES: &str = "promises";

/// An agent that understands `Route.kind` and `Route.scope`.
pub const ROUTE_KINDS: &str = "route-kinds";

/// An agent that understands `Attachment.sysctls`.
pub const SYSCTLS: &str = "sysctls";

/// An agent that is told `VfPools`.
pub const VF_POOLS: &str = "vf-pools";

/// What this build can do.
pub const ALL: &[&str] = &[EXAMINE, KEEPS_PORT, PROMISES, ROUTE_KINDS, SYSCTLS, VF_POOLS];

/// Most capabilities of a peer that are read.
const MOST: usize = 256;

/// Of a peer's capabilities those that this build has too. Others are a newer version's, and ignored.
#[must_use]
pub fn common(theirs: &[String]) -> Vec<&'static str> {
    let theirs = theirs.get(..MOST).unwrap_or(theirs);
    ALL.iter().copied().filter(|ours| theirs.iter().any(|named| named == ours)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_sides_can_do_counts() {
        let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(common(&named(&["teleport", EXAMINE, EXAMINE])), [EXAMINE]);
        assert!(common(&named(&["teleport"])).is_empty());
        assert!(common(&[]).is_empty());
    }
}
