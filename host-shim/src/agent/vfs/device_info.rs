//! The device-info file of the Network Plumbing Working Group's specification, version 1.1.0: tells
//! a pod's applications which device it got.
//!
//! Its path comes with the pod. So what is there already is left alone: whatever a symbolic link
//! leads to, and every file that says anything else than ours would.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use bootstrap::private_file;
use nix::{
    fcntl::{AT_FDCWD, AtFlags, OFlag},
    unistd::linkat,
};
use serde_json::json;

use super::records::Record;

/// Writes the file that a record asks for, with its folders.
///
/// # Errors
/// When it can't be written, or something else is there.
pub(super) fn write(record: &Record) -> io::Result<()> {
    let Some(path) = record.device_info_file.as_deref().map(Path::new) else { return Ok(()) };
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let text = text_for(record);
    match publish(folder, path, &text) {
        Err(error) if is_existing(&error) && says(path, &text).unwrap_or(false) => Ok(()),
        outcome => outcome,
    }
}

/// Removes the file of a record. That it is gone, not ours or can't be removed is no reason to stop.
pub(super) fn remove(record: &Record) {
    let Some(path) = record.device_info_file.as_deref() else { return };
    match remove_if_ours(Path::new(path), &text_for(record)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path, %error, "cannot remove the device-info file");
        }
        _ => {}
    }
}

fn remove_if_ours(path: &Path, text: &str) -> io::Result<()> {
    if says(path, text)? {
        return fs::remove_file(path);
    }
    Err(io::Error::other("it is not the one that was written"))
}

fn text_for(record: &Record) -> String {
    let info = json!({
        "type": "pci",
        "version": "1.1.0",
        "pci": { "pci-address": record.device() },
    });
    info.to_string()
}

/// Makes the file appear at once and whole. It is written without a name, and a link that gives it
/// one never replaces what has the name already.
fn publish(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlag::O_TMPFILE.bits();
    let mut options = OpenOptions::new();
    let mut file = private_file(folder, options.write(true).custom_flags(flags))?;
    file.write_all(text.as_bytes())?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let following = AtFlags::AT_SYMLINK_FOLLOW;
    Ok(linkat(AT_FDCWD, nameless.as_str(), AT_FDCWD, path, following)?)
}

fn is_existing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

/// Whether there is a regular file with this text. Follows no link and waits for no pipe.
fn says(path: &Path, text: &str) -> io::Result<bool> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != text.len() as u64 {
        return Ok(false);
    }
    let mut present = Vec::new();
    file.take(metadata.len()).read_to_end(&mut present)?;
    Ok(present == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::agent::vfs::records::tests::record;

    const OURS: &str = r#"{"pci":{"pci-address":"pci-a"},"type":"pci","version":"1.1.0"}"#;

    fn record_with(path: &Path) -> Record {
        Record { device_info_file: Some(path.to_str().unwrap().into()), ..record("a", "c") }
    }

    fn assert_refused(record: &Record) {
        assert_eq!(write(record).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        remove(record);
    }

    #[test]
    fn device_info_file_is_written_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/a.json");
        let record = record_with(&path);
        write(&record).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), OURS);
        write(&record).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "and nothing else");
        remove(&record);
        assert!(!path.exists());
        remove(&record);
    }

    #[test]
    fn symlink_target_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let target = folder.path().join("target");
        symlink(&target, &path).unwrap();
        assert_refused(&record_with(&path));
        assert!(!target.exists(), "nothing is made where the link leads");
        fs::write(&target, OURS).unwrap();
        assert_refused(&record_with(&path));
        assert!(path.is_symlink() && target.exists());
    }

    #[test]
    fn device_info_of_others_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for text in
            [String::new(), "precious".into(), OURS.replace("pci-a", "pci-b"), "x".repeat(9000)]
        {
            fs::write(&path, &text).unwrap();
            assert_refused(&record_with(&path));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn special_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_refused(&record_with(&pipe));
        assert!(pipe.exists());
        assert_refused(&record_with(folder.path()));
        assert!(folder.path().exists());
    }
}
