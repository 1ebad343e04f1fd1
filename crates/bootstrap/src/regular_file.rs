//! Opens regular files only.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::fcntl::OFlag;

/// Opens a regular file for reading. Refuses FIFOs, folders and devices at once: opening a FIFO would block.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for anything but a regular file; otherwise the error of opening.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_fifo_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        for path in [path.as_path(), folder.path()] {
            let error = open_regular_file(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
