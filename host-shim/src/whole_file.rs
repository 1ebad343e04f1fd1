//! Atomic replacement of files.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Only the owner may read and write the file.
const PRIVATE: u32 = 0o600;

/// Replaces or creates the file at `path`, with mode 0600, and waits for the disk. After a crash the file has either
/// its old content or the new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, content, PRIVATE)
}

/// Replaces or creates the file at `path` without waiting for the disk: the new content survives the program, but
/// perhaps not a power failure.
pub(crate) fn swap(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = unfinished(path);
    write(&new, content, PRIVATE)?;
    fs::rename(&new, path)
}

/// Replaces or creates the file as [`replace`] does, with another mode.
pub(crate) fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let new = unfinished(path);
    let file = write(&new, content, mode)?;
    file.sync_all()?;
    // A program that is open for writing cannot be executed (`ETXTBSY`), even after a rename.
    drop(file);
    fs::rename(&new, path)?;
    let folder = path.parent().unwrap_or(path);
    File::open(folder)?.sync_all()
}

/// The temporary file that is renamed to `path`. A killed program leaves it behind.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(path)?;
    // The umask may have cleared bits, and a temporary file that a killed program left keeps its mode.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    Ok(file)
}
