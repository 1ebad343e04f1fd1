//! VFs with which something is wrong that was told once and is to be set right.

use std::collections::BTreeSet;

use vf_alloc::FunctionId;

/// VFs that are not as their records, or the lack of any, want them.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// In quarantine because their host holds them for attachments that the journal does not know.
    unaccounted: BTreeSet<FunctionId>,
    /// Their representors kept some of their programming when it was taken back. They may have left
    /// the fabric, so that no look at its ports finds them.
    unclean: BTreeSet<FunctionId>,
    /// Their representors serve nobody and can't be unprogrammed; that was told.
    stuck: BTreeSet<FunctionId>,
}

impl Doubts {
    pub(super) fn note_unaccounted(&mut self, vfs: &[FunctionId]) {
        self.unaccounted.extend(vfs);
    }

    /// Those that their host holds for attachments that the journal does not know.
    pub(super) fn unaccounted(&self) -> impl Iterator<Item = FunctionId> {
        self.unaccounted.iter().copied()
    }

    /// Whether its host holds the VF for an attachment that the journal does not know.
    pub(crate) fn is_unaccounted(&self, vf: FunctionId) -> bool {
        self.unaccounted.contains(&vf)
    }

    /// The host has the VF back, clean. Tells whether it was unaccounted.
    pub(super) fn end_unaccounted(&mut self, vf: FunctionId) -> bool {
        self.unaccounted.remove(&vf)
    }

    pub(super) fn note_unclean(&mut self, vf: FunctionId) {
        self.unclean.insert(vf);
    }

    pub(crate) fn is_unclean(&self, vf: FunctionId) -> bool {
        self.unclean.contains(&vf)
    }

    /// Tells whether that is news: what an unclean one has kept was told.
    pub(crate) fn note_stuck(&mut self, vf: FunctionId) -> bool {
        self.stuck.insert(vf) && !self.is_unclean(vf)
    }

    pub(crate) fn is_stuck(&self, vf: FunctionId) -> bool {
        self.stuck.contains(&vf)
    }

    pub(super) fn note_unprogrammed(&mut self, vf: FunctionId) {
        self.unclean.remove(&vf);
        self.stuck.remove(&vf);
    }
}
