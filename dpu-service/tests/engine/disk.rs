//! A disk that can be full.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use journal::storage::{FileBackend, StorageBackend};

const ENOSPC: i32 = 28;

/// Whether the disk is full. Cloning it gives the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Full(Arc<AtomicBool>);

impl Full {
    pub(crate) fn set(&self, is_full: bool) {
        self.0.store(is_full, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) {
            Err(io::Error::from_raw_os_error(ENOSPC))
        } else {
            Ok(())
        }
    }
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) file: FileBackend,
    pub(crate) full: Full,
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.full.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.full.check()?;
        self.file.write(offset, data)
    }
}
