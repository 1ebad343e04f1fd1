//! Where the time of attaching and of giving back goes, by the names that the log has for it, too.

use std::time::Duration;

use metrics::Phases;

use crate::{agent::vfs::MovedAhead, mover::Durations};

/// How long the phases took of all that were attached and given back.
#[derive(Clone, Debug)]
pub(in crate::agent) struct VerbPhases {
    /// Of attachments that were made.
    pub attach: Phases,
    /// Phases of detaches by any cause, as far as they got.
    pub detach: Phases,
}

impl Default for VerbPhases {
    fn default() -> Self {
        let attach = AttachTimes::default().phases().map(|(phase, _)| phase);
        Self { attach: Phases::new(attach), detach: Phases::new([HOME, RPC, TOTAL, SETTLE]) }
    }
}

/// Until the VF was back in the host's namespace, and recorded as such.
pub(super) const HOME: &str = "move_back";

/// Until the DPU had answered.
pub(super) const RPC: &str = "rpc";

/// From the attachment's turn until the caller could be answered.
pub(super) const TOTAL: &str = "total";

/// After that, until the VF was verified and the DPU had the report of its return.
pub(super) const SETTLE: &str = "verify";

/// How long an attachment took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttachTimes {
    pub call: Duration,
    pub ahead: MovedAhead,
    pub recording: Duration,
    pub durations: Durations,
    pub total: Duration,
}

impl AttachTimes {
    /// Each by its name.
    pub(super) const fn phases(&self) -> [(&'static str, Duration); 8] {
        [
            (RPC, self.call),
            ("speculative_wait", self.ahead.before),
            ("speculative_move", self.ahead.moving),
            ("record", self.recording),
            ("move", self.durations.relocate),
            ("configure", self.durations.configure),
            ("carrier", self.durations.carrier),
            (TOTAL, self.total),
        ]
    }
}
