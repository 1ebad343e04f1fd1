//! Noticing that files changed, by reading them now and then.
//!
//! Polling sees what inotify would need several watches for: a file written in place, one renamed
//! over it, and a symlinked folder swapped as Kubernetes does.

use std::{
    fs::Metadata,
    hash::{DefaultHasher, Hasher},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::open_regular_file;

/// Watches the content of one or several small files, and who may read them.
#[derive(Debug)]
pub struct FileWatch {
    paths: Vec<PathBuf>,
    ticks: Interval,
    seen: Vec<Fingerprint>,
}

/// A hash of a file's content, owner and mode. `None`: it can't be read.
type Fingerprint = Option<u64>;

/// Watches the file at `path`, looking every `period`.
#[must_use]
pub fn watch_file(path: &Path, period: Duration) -> FileWatch {
    FileWatch::new([path.to_owned()], period)
}

impl FileWatch {
    /// Watches the files at `paths` together, looking every `period` (at least a millisecond).
    /// Changes are counted from this call on: make it before the files are read for use. Must be
    /// called within a tokio runtime.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>, period: Duration) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let seen = paths.iter().map(|path| fingerprint(path)).collect();
        let mut ticks = interval(period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { paths, ticks, seen }
    }

    /// Waits until the content, owner or mode of a file differs from when it was last looked at, or the file
    /// appears or vanishes. May be cancelled and called again without missing a change.
    pub async fn changed(&mut self) {
        loop {
            self.ticks.tick().await;
            let now = self.paths.iter().map(|path| fingerprint(path)).collect();
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
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

    use test_clock::within;
    use tokio::time::timeout;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(2);
    const BOUND: Duration = Duration::from_secs(10);

    async fn expect_change(watch: &mut FileWatch) {
        within(BOUND, watch.changed()).await.expect("no change was seen");
    }

    #[tokio::test]
    async fn writes_renames_and_removals_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        let mut watch = watch_file(&path, PERIOD);

        fs::write(&path, "two").unwrap();
        expect_change(&mut watch).await;

        let next = folder.path().join("next");
        fs::write(&next, "six").unwrap();
        fs::rename(&next, &path).unwrap();
        expect_change(&mut watch).await;

        fs::remove_file(&path).unwrap();
        expect_change(&mut watch).await;

        fs::write(&path, "one").unwrap();
        expect_change(&mut watch).await;
    }

    #[tokio::test]
    async fn a_change_of_mode_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut watch = watch_file(&path, PERIOD);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        expect_change(&mut watch).await;
    }

    #[tokio::test]
    async fn a_swapped_symlink_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["v1", "v2"] {
            fs::create_dir(folder.path().join(version)).unwrap();
            fs::write(folder.path().join(version).join("file"), version).unwrap();
        }
        let data = folder.path().join("data");
        symlink("v1", &data).unwrap();
        let mut watch = watch_file(&data.join("file"), PERIOD);

        let next = folder.path().join("next");
        symlink("v2", &next).unwrap();
        fs::rename(&next, &data).unwrap();
        expect_change(&mut watch).await;
    }

    #[tokio::test(start_paused = true)]
    async fn untouched_files_do_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one").unwrap();
        let mut watch = watch_file(&path, PERIOD);
        fs::write(&path, "one").unwrap();
        assert!(timeout(Duration::from_secs(1), watch.changed()).await.is_err());
    }
}
