//! Timings of attach and detach by phase.

use metrics::Phases;

/// Waiting for the locks of the keys.
pub(super) const LOCKS: &str = "locks";

/// Reserving, including the wait for the locks of the VFs.
pub(super) const RESERVE: &str = "reserve";

/// Waiting until the journal is on the disk. Concurrent commits share a write.
pub(super) const JOURNAL: &str = "journal";

/// Programming the representors and mapping ports; concurrent with [`JOURNAL`].
pub(super) const PROGRAM: &str = "program";

/// Unprogramming the representor; concurrent with [`JOURNAL`].
pub(super) const UNPROGRAM: &str = "unprogram";

/// The whole call, without transport.
pub(super) const TOTAL: &str = "total";

/// Timings of all attaches and detaches.
#[derive(Clone, Debug)]
pub(crate) struct EnginePhases {
    /// Attach calls, successful or not.
    pub attach: Phases,
    /// Everything that detaches. [`LOCKS`] and [`TOTAL`] only count the hosts' Detach calls.
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
