//! Which file a path leads to.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// A file, told from one that takes its place. Its number alone does not tell it: it is given again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The file at a path. `None`: there is none.
pub(super) fn identity(path: &Path) -> Option<FileIdentity> {
    let found = fs::symlink_metadata(path).ok()?;
    let changed = (found.ctime(), found.ctime_nsec());
    Some(FileIdentity { device: found.dev(), inode: found.ino(), changed })
}
