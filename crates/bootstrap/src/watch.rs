//! Noticing that files changed, by comparing what they hold.
//!
//! Polling sees what inotify would need several watches for: a file written in place, one renamed
//! over it, and a symlinked folder swapped as Kubernetes does.

use std::{
    fs::Metadata,
    hash::{DefaultHasher, Hasher},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::open_regular_file;

/// The content of one or several small files, and who may read them, as it was at the last look.
#[derive(Debug)]
pub struct FileWatch {
    paths: Vec<PathBuf>,
    seen: Vec<Fingerprint>,
}

/// A hash of a file's content, owner and mode. `None`: it can't be read.
type Fingerprint = Option<u64>;

impl FileWatch {
    /// Looks at the files at `paths`.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut watch = Self { paths: paths.into_iter().collect(), seen: Vec::new() };
        let _first = watch.look();
        watch
    }

    /// Looks again. Returns whether content, owner or mode of a file differ from the last look, or a file appeared or
    /// vanished. Look before you read the files for use, for whatever reason: a change in between is seen by the
    /// next look, and so is a change back.
    pub fn look(&mut self) -> bool {
        let now: Vec<_> = self.paths.iter().map(|path| fingerprint(path)).collect();
        let has_changed = now != self.seen;
        self.seen = now;
        has_changed
    }
}

/// Reads the file on the calling thread: it is small and nearly always in the page cache, so that
/// handing it to another thread would cost more.
fn fingerprint(path: &Path) -> Fingerprint {
    let (content, metadata) = read(path).ok()?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&content);
    // A private key that others could read is closed by a `chmod` that leaves the content alone.
    for number in [metadata.uid(), metadata.gid(), metadata.mode()] {
        hasher.write_u32(number);
    }
    Some(hasher.finish())
}

fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let mut file = open_regular_file(path)?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok((content, file.metadata()?))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn writes_renames_and_removals_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::new([path.clone()]);

        fs::write(&path, "two").unwrap();
        assert!(watch.look());

        let next = folder.path().join("next");
        fs::write(&next, "six").unwrap();
        fs::rename(&next, &path).unwrap();
        assert!(watch.look());

        fs::remove_file(&path).unwrap();
        assert!(watch.look());

        fs::write(&path, "one").unwrap();
        assert!(watch.look());
    }

    #[test]
    fn a_change_of_mode_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut watch = FileWatch::new([path.clone()]);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(watch.look());
    }

    #[test]
    fn a_swapped_symlink_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["v1", "v2"] {
            fs::create_dir(folder.path().join(version)).unwrap();
            fs::write(folder.path().join(version).join("file"), version).unwrap();
        }
        let data = folder.path().join("data");
        symlink("v1", &data).unwrap();
        let mut watch = FileWatch::new([data.join("file")]);

        let next = folder.path().join("next");
        symlink("v2", &next).unwrap();
        fs::rename(&next, &data).unwrap();
        assert!(watch.look());
    }

    #[test]
    fn untouched_files_do_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::new([path.clone()]);
        fs::write(&path, "one").unwrap();
        assert!(!watch.look());
    }
}
