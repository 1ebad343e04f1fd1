//! A failing disk for tests: it refuses operations, hangs, or loses power. After a power cut it has lost or torn
//! anything that was not synced.

use std::{io, ops::Range, sync::Arc};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::storage::StorageBackend;

/// The error number of a broken disk, `EIO`.
pub const BROKEN: i32 = 5;
/// The error number of a full disk, `ENOSPC`.
pub const FULL: i32 = 28;

/// The unit of atomic writes in bytes. A torn write ends at such a boundary.
const SECTOR: usize = 512;

/// A disk in memory. Clones share it, so that a test can control it while the journal writes: `Journal::open_with(path,
/// schema, commits, move |_| disk.clone())`.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Disk>);

#[derive(Debug, Default)]
struct Disk {
    state: Mutex<State>,
    /// Notified when the disk stops hanging.
    answers: Condvar,
}

/// Keeps the disk hanging until it is dropped.
#[derive(Debug)]
pub struct Hang(FaultyDisk);

impl Drop for Hang {
    fn drop(&mut self) {
        self.0.state().is_hanging = false;
        self.0.0.answers.notify_all();
    }
}

#[derive(Debug, Default)]
struct State {
    /// The content after a power cut.
    synced: Vec<u8>,
    /// The content that a reader sees.
    current: Vec<u8>,
    /// Operations since the last sync, in order.
    unsynced: Vec<Work>,
    /// Number of writes, syncs and changes of length so far.
    done: usize,
    is_hanging: bool,
    /// The power is cut when `done` reaches this number.
    power_until: Option<usize>,
    failing_writes: Option<i32>,
    failing_syncs: Option<i32>,
    /// The number of the operation that fails once, and its error number.
    failing_once: Option<(usize, i32)>,
}

#[derive(Clone, Debug)]
enum Work {
    SetLength(usize),
    Write { at: usize, bytes: Vec<u8> },
}

/// The outcome of an unsynced write after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The disk has it.
    Kept,
    /// The disk does not have it.
    Lost,
    /// The disk has only so many of its first sectors.
    Torn(usize),
}

impl FaultyDisk {
    /// A disk with this content, all of it synced.
    #[must_use]
    pub fn holding(content: Vec<u8>) -> Self {
        let state = State { synced: content.clone(), current: content, ..State::default() };
        Self(Arc::new(Disk { state: Mutex::new(state), answers: Condvar::new() }))
    }

    /// The content that a reader sees.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.state().current.clone()
    }

    /// Makes all writes, syncs and changes of length wait until the result is dropped.
    #[must_use]
    pub fn hang(&self) -> Hang {
        self.state().is_hanging = true;
        Hang(self.clone())
    }

    /// Makes all writes and changes of length fail with that error number. `None`: they succeed.
    pub fn fail_writes(&self, number: Option<i32>) {
        self.state().failing_writes = number;
    }

    /// Makes all syncs fail with that error number. `None`: they succeed.
    pub fn fail_syncs(&self, number: Option<i32>) {
        self.state().failing_syncs = number;
    }

    /// Makes one write, sync or change of length fail with that error number, after `count` more.
    pub fn fail_once_after(&self, count: usize, number: i32) {
        let mut state = self.state();
        state.failing_once = Some((state.done.saturating_add(count), number));
    }

    /// Cuts the power after `count` more writes, syncs and changes of length. All later ones fail.
    pub fn cut_power_after(&self, count: usize) {
        let mut state = self.state();
        state.power_until = Some(state.done.saturating_add(count));
    }

    /// Restores the power. `fate` decides the outcome of each unsynced operation, in order.
    pub fn power_on(&self, mut fate: impl FnMut() -> Fate) {
        let mut state = self.state();
        for work in std::mem::take(&mut state.unsynced) {
            match (work, fate()) {
                (_, Fate::Lost) => {}
                (work, Fate::Kept) => work.apply(&mut state.synced),
                (Work::Write { at, mut bytes }, Fate::Torn(sectors)) => {
                    bytes.truncate(sectors.saturating_mul(SECTOR));
                    Work::Write { at, bytes }.apply(&mut state.synced);
                }
                (Work::SetLength(_), Fate::Torn(_)) => {}
            }
        }
        state.current = state.synced.clone();
        state.power_until = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// The state. Blocks while the disk hangs.
    fn answering(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.0.answers.wait_while(&mut state, |state| state.is_hanging);
        state
    }

    fn work(&self, work: Work) -> io::Result<()> {
        let mut state = self.answering();
        state.count()?;
        refuse(state.failing_writes)?;
        work.apply(&mut state.current);
        state.unsynced.push(work);
        Ok(())
    }
}

impl State {
    fn count(&mut self) -> io::Result<()> {
        if self.power_until.is_some_and(|until| self.done >= until) {
            return Err(io::Error::other("the power is off"));
        }
        let this = self.done;
        self.done += 1;
        match self.failing_once {
            Some((failing, number)) if failing == this => refuse(Some(number)),
            _ => Ok(()),
        }
    }
}

impl Work {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::SetLength(length) => content.resize(*length, 0),
            Self::Write { at, bytes } => {
                let end = at + bytes.len();
                // An earlier change of length may have been lost.
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*at..end].copy_from_slice(bytes);
            }
        }
    }
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        u64::try_from(self.state().current.len()).map_err(io::Error::other)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let found = state.current.get(range(offset, out.len())?);
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.work(Work::SetLength(usize::try_from(length).map_err(io::Error::other)?))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.answering();
        state.count()?;
        refuse(state.failing_syncs)?;
        for work in std::mem::take(&mut state.unsynced) {
            work.apply(&mut state.synced);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Range { start, .. } = range(offset, data.len())?;
        self.work(Work::Write { at: start, bytes: data.to_vec() })
    }
}

fn refuse(number: Option<i32>) -> io::Result<()> {
    number.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
}

fn range(offset: u64, length: usize) -> io::Result<Range<usize>> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(length).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(start..end)
}
