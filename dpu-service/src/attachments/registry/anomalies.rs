//! VFs that are unavailable because records and kernel disagree.

use std::collections::BTreeSet;

use vf_alloc::FunctionId;

/// VFs with a known anomaly, by kind.
#[derive(Debug, Default)]
pub(crate) struct Anomalies {
    /// Quarantined because their host holds them for attachments that the journal does not have.
    unaccounted: BTreeSet<FunctionId>,
    /// Unprogramming their representors failed in part. They may have left the fabric, so a survey of its ports may not
    /// show them.
    unclean: BTreeSet<FunctionId>,
    /// Their representors have no attachment and cannot be unprogrammed; already reported.
    undo_failed: BTreeSet<FunctionId>,
}

impl Anomalies {
    pub(super) fn note_unaccounted(&mut self, vfs: &[FunctionId]) {
        self.unaccounted.extend(vfs);
    }

    /// VFs that their host holds for attachments that the journal does not have.
    pub(super) fn unaccounted(&self) -> impl Iterator<Item = FunctionId> {
        self.unaccounted.iter().copied()
    }

    pub(crate) fn is_unaccounted(&self, vf: FunctionId) -> bool {
        self.unaccounted.contains(&vf)
    }

    /// The host has the VF back, clean. Returns whether it was unaccounted.
    pub(super) fn end_unaccounted(&mut self, vf: FunctionId) -> bool {
        self.unaccounted.remove(&vf)
    }

    pub(super) fn note_unclean(&mut self, vf: FunctionId) {
        self.unclean.insert(vf);
    }

    pub(crate) fn is_unclean(&self, vf: FunctionId) -> bool {
        self.unclean.contains(&vf)
    }

    /// Returns whether to report it: the leftover of an unclean VF was reported before.
    pub(crate) fn note_undo_failed(&mut self, vf: FunctionId) -> bool {
        self.undo_failed.insert(vf) && !self.is_unclean(vf)
    }

    pub(crate) fn has_undo_failed(&self, vf: FunctionId) -> bool {
        self.undo_failed.contains(&vf)
    }

    pub(super) fn note_unprogrammed(&mut self, vf: FunctionId) {
        self.unclean.remove(&vf);
        self.undo_failed.remove(&vf);
    }
}
