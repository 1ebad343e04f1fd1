//! Files that are replaced at once and whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Puts a file with this content in the place of the one at `path`, if any, and waits for the disk.
/// Whatever happens meanwhile, the file has either its old content or the new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().unwrap_or(path);
    File::open(folder)?.sync_all()
}
