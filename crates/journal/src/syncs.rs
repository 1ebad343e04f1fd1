//! What a commit outlives, and the syncs that this needs.

use std::{
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::storage::{BackendError, StorageBackend};

/// What a commit survives once it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlives {
    /// A crash of the machine: the commit is on the disk.
    Machine,
    /// The end of the process: the commit is in the operating system's cache. If the machine goes down before it is
    /// written back, the journal may lack commits or be damaged.
    Process,
}

/// Whether a backend syncs.
///
/// redb trusts a file that was closed, and checks every page of one that was not. An unsynced journal must not be
/// trusted wrongly after the machine went down. So it still syncs when it is opened and closed, and at its first
/// commit, which marks the file as not closed.
#[derive(Clone, Debug)]
pub(crate) struct Syncs(Arc<AtomicBool>);

impl Default for Syncs {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Syncs {
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Release);
    }

    fn are_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A backend that syncs only while `syncs` is set.
#[derive(Debug)]
pub(crate) struct Switched<B> {
    pub(crate) backend: B,
    pub(crate) syncs: Syncs,
}

impl<B: StorageBackend> StorageBackend for Switched<B> {
    fn sync_data(&self) -> io::Result<()> {
        if self.syncs.are_on() { self.backend.sync_data() } else { Ok(()) }
    }

    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.backend.set_len(length)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.backend.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    #[test]
    fn length_is_passed_on() {
        let backend = Switched { backend: InMemoryBackend::new(), syncs: Syncs::default() };
        backend.set_len(8192).unwrap();
        assert_eq!(backend.backend.len().unwrap(), 8192);
    }
}
