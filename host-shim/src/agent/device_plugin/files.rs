//! The identity of the file at a path.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Distinguishes a file from its replacement. The inode alone does not: it is reused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The identity of the file at the path. `None`: there is none.
pub(super) fn identity(path: &Path) -> Option<FileIdentity> {
    let found = fs::symlink_metadata(path).ok()?;
    let changed = (found.ctime(), found.ctime_nsec());
    Some(FileIdentity { device: found.dev(), inode: found.ino(), changed })
}
