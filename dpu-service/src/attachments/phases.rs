//! Where the time of attaching and of giving back goes.

use metrics::Phases;

/// Until the locks of the keys were held.
pub(super) const LOCKS: &str = "locks";

/// Until all was reserved, or found, and the locks of the VFs were held.
pub(super) const RESERVE: &str = "reserve";

/// Until the journal had it on the disk, with what came at the same time.
pub(super) const JOURNAL: &str = "journal";

/// Until the representors were programmed, and mapped ports led to their pods; meanwhile the journal is written.
pub(super) const PROGRAM: &str = "program";

/// Until the representor was unprogrammed, likewise.
pub(super) const UNPROGRAM: &str = "unprogram";

/// All of a call, but for its way.
pub(super) const TOTAL: &str = "total";

/// How long the phases took of all that was attached and given back.
#[derive(Clone, Debug)]
pub(crate) struct EnginePhases {
    /// Of calls that attach, whatever came of them.
    pub attach: Phases,
    /// Of all that gives attachments back; the first and the last of the host's calls alone.
    pub detach: Phases,
}

impl Default for EnginePhases {
    fn default() -> Self {
        Self {
            attach: Phases::new([LOCKS, RESERVE, JOURNAL, PROGRAM, TOTAL]),
            detach: Phases::new([LOCKS, JOURNAL, UNPROGRAM, TOTAL]),
        }
    }
}
