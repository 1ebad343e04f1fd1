//! Files that are replaced at once and whole.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Puts a file with this content in the place of the one at `path`, if any, and waits for the disk.
/// Whatever happens meanwhile, the file has either its old content or the new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, None)
}

/// Does it likewise, with a file of that mode.
pub(crate) fn replace_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    put(path, content, Some(mode))
}

/// Puts one in its place likewise, without waiting for the disk: the new content outlives the program, and perhaps not
/// the host.
pub(crate) fn swap(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = unfinished(path);
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

/// Where the new content is before it takes the file's place. Whoever is killed meanwhile leaves it.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn put(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let new = unfinished(path);
    let mut file = File::create(&new)?;
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    // A program that is open for writing can't be executed, whatever it is called meanwhile.
    drop(file);
    fs::rename(&new, path)?;
    let folder = path.parent().unwrap_or(path);
    File::open(folder)?.sync_all()
}
