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

/// Until the VF was home, and that recorded.
pub(super) const HOME: &str = "home";

/// Until the DPU had answered.
pub(super) const RPC: &str = "rpc";

/// From the attachment's turn until the caller could be answered.
pub(super) const TOTAL: &str = "total";

/// After that: the VF was looked at, and the DPU told that it is back.
pub(super) const SETTLE: &str = "settle";

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
            ("before_ahead", self.ahead.before),
            ("ahead", self.ahead.moving),
            ("record", self.recording),
            ("move", self.durations.relocate),
            ("configure", self.durations.configure),
            ("carrier", self.durations.carrier),
            (TOTAL, self.total),
        ]
    }
}
