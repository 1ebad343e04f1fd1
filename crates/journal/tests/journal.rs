//! The journal on real files, and on disks that fail.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use futures::future::join_all;
use journal::{
    Change, Journal, OpenError, ReadError, Rows, Schema, WriteError,
    storage::{FileBackend, StorageBackend},
};

const PODS: &str = "pods";
const NETWORKS: &str = "networks";
const SCHEMA: Schema = Schema { name: "test", version: 2, tables: &[PODS, NETWORKS] };

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/journal.redb");
    Place { _directory: directory, path }
}

fn put(key: &str, value: &str) -> Change {
    Change::put(PODS, key, value)
}

fn row(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

fn rows(journal: &Journal) -> Rows {
    journal.read_all(PODS).unwrap()
}

/// A disk that can be made to fail.
#[derive(Clone, Debug, Default)]
struct Knobs {
    /// The error number that writes fail with. 0: they don't.
    write: Arc<AtomicI32>,
    /// Likewise for syncs, which have written everything all the same.
    sync: Arc<AtomicI32>,
    /// Whether the power is off: nothing reaches the disk any more.
    off: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Disk {
    file: FileBackend,
    knobs: Knobs,
}

fn fail(knob: &AtomicI32) -> io::Result<()> {
    match knob.load(Ordering::SeqCst) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

impl Knobs {
    fn is_off(&self) -> io::Result<()> {
        if self.off.load(Ordering::SeqCst) { Err(ErrorKind::Other.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.knobs.is_off()?;
        fail(&self.knobs.write)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.knobs.is_off()?;
        fail(&self.knobs.sync)?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.knobs.is_off()?;
        fail(&self.knobs.write)?;
        self.file.write(offset, data)
    }
}

fn faulty(place: &Place) -> (Journal, Knobs) {
    let knobs = Knobs::default();
    let wrapped = knobs.clone();
    let wrap = move |file| Disk { file, knobs: wrapped.clone() };
    (Journal::open_with(&place.path, SCHEMA, wrap).unwrap(), knobs)
}

#[tokio::test]
async fn what_was_committed_is_there_after_opening_again() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    journal.commit(vec![put("a", "1"), put("b", "2")]).await.unwrap();
    journal.commit(vec![Change::delete(PODS, "a"), put("c", "3")]).await.unwrap();
    drop(journal);
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    assert_eq!(rows(&journal), [row("b", "2"), row("c", "3")]);
    assert_eq!(journal.read_all(NETWORKS).unwrap(), []);
}

#[tokio::test]
async fn the_file_is_the_owners_only() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA).unwrap());
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path), 0o600);
    assert_eq!(mode(place.path.parent().unwrap()), 0o700);
    let files = fs::read_dir(place.path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "the draft is gone");
}

#[tokio::test]
async fn dropping_lets_waiting_commits_finish() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    journal.commit_lazily(vec![put("lazy", "1")]);
    let waiting = journal.commit(vec![put("waiting", "1")]);
    drop(journal);
    waiting.await.unwrap();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    assert_eq!(rows(&journal).len(), 2);
}

#[tokio::test]
async fn waiting_commits_share_transactions() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    let commits = (0..256).map(|number| journal.commit(vec![put(&number.to_string(), "1")]));
    for result in join_all(commits.collect::<Vec<_>>()).await {
        result.unwrap();
    }
    let statistics = journal.statistics();
    assert_eq!(statistics.commits, 256);
    assert!(statistics.transactions < 64, "{statistics:?}");
    assert_eq!(rows(&journal).len(), 256);
}

#[tokio::test]
async fn a_second_process_is_told_that_it_is_in_use() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    let error = Journal::open(&place.path, SCHEMA).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(journal);
    Journal::open(&place.path, SCHEMA).unwrap();
}

#[test]
fn files_of_others_are_refused_and_untouched() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA).unwrap());
    let before = fs::read(&place.path).unwrap();

    let other = Schema { name: "other", ..SCHEMA };
    let error = Journal::open(&place.path, other).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");

    let older = Schema { version: 1, ..SCHEMA };
    let error = Journal::open(&place.path, older).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), before);
}

#[test]
fn damaged_files_are_refused_and_untouched() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA).unwrap());
    let good = fs::read(&place.path).unwrap();
    let mut scribbled = good.clone();
    scribbled[..4096].fill(0xa5);
    for bytes in [b"[[network]]\nname = \"red\"\n".to_vec(), good[..1000].to_vec(), scribbled] {
        fs::write(&place.path, &bytes).unwrap();
        let error = Journal::open(&place.path, SCHEMA).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert_eq!(fs::read(&place.path).unwrap(), bytes);
    }
}

#[test]
fn a_directory_in_the_way_is_refused() {
    let place = place();
    fs::create_dir_all(&place.path).unwrap();
    let error = Journal::open(&place.path, SCHEMA).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[tokio::test]
async fn tables_that_the_schema_lacks_are_refused() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    let commit = journal.commit(vec![put("a", "1"), Change::put("foreign", "a", "1")]).await;
    assert!(matches!(commit, Err(WriteError::NoTable("foreign"))));
    assert!(matches!(journal.read_all("foreign"), Err(ReadError::NoTable("foreign"))));
    assert_eq!(rows(&journal), []);
}

/// Commits `a`, fails to commit over it, mends the disk, and commits again.
async fn fail_and_mend(knob: impl Fn(&Knobs) -> &AtomicI32, number: i32) {
    let place = place();
    let (journal, knobs) = faulty(&place);
    journal.commit(vec![put("a", "1")]).await.unwrap();

    knob(&knobs).store(number, Ordering::SeqCst);
    let failing = vec![put("a", "2"), Change::delete(PODS, "a"), put("b", "2")];
    for _ in 0..2 {
        assert!(matches!(journal.commit(failing.clone()).await, Err(WriteError::Failed(_))));
        assert!(journal.problem().is_some());
        assert!(journal.probe().await.is_err());
    }

    knob(&knobs).store(0, Ordering::SeqCst);
    journal.probe().await.unwrap();
    assert!(journal.problem().is_none());
    assert_eq!(rows(&journal), [row("a", "1")]);
    journal.commit(vec![put("c", "3")]).await.unwrap();
    drop(journal);
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    assert_eq!(rows(&journal), [row("a", "1"), row("c", "3")]);
}

#[tokio::test]
async fn a_full_disk_is_told_and_survived() {
    fail_and_mend(|knobs| &knobs.write, errno::ENOSPC).await;
}

#[tokio::test]
async fn a_broken_disk_is_told_and_survived() {
    fail_and_mend(|knobs| &knobs.write, errno::EIO).await;
}

#[tokio::test]
async fn a_commit_whose_sync_failed_has_not_happened() {
    fail_and_mend(|knobs| &knobs.sync, errno::EIO).await;
}

#[tokio::test]
async fn all_members_of_a_failed_transaction_are_told() {
    let place = place();
    let (journal, knobs) = faulty(&place);
    knobs.write.store(errno::ENOSPC, Ordering::SeqCst);
    let commits = (0..32).map(|number| journal.commit(vec![put(&number.to_string(), "1")]));
    for result in join_all(commits.collect::<Vec<_>>()).await {
        let error = result.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("No space left"), "{cause}");
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_power_cut() {
    let place = place();
    let (journal, knobs) = faulty(&place);
    for number in 0..20 {
        journal.commit(vec![put(&format!("{number:02}"), "1")]).await.unwrap();
    }
    knobs.off.store(true, Ordering::SeqCst);
    journal.commit(vec![put("late", "1")]).await.unwrap_err();
    drop(journal);
    let journal = Journal::open(&place.path, SCHEMA).unwrap();
    assert_eq!(rows(&journal).len(), 20);
    journal.commit(vec![put("after", "1")]).await.unwrap();
}

/// A disk whose power is cut at some write: what was not synced may be lost, or not.
#[derive(Clone, Debug, Default)]
struct Image(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    synced: Vec<u8>,
    current: Vec<u8>,
    /// Writes until the power is cut.
    writes_left: usize,
}

impl Image {
    fn write(&self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        bytes.writes_left = bytes.writes_left.checked_sub(1).ok_or(ErrorKind::Other)?;
        write(&mut bytes.current);
        Ok(())
    }
}

fn range(offset: u64, length: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap();
    start..start + length
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.0.lock().unwrap().current.len()).unwrap())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&self.0.lock().unwrap().current[range(offset, out.len())]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(|current| current.resize(usize::try_from(len).unwrap(), 0))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write(|_| {})?;
        let bytes = &mut *self.0.lock().unwrap();
        bytes.synced.clone_from(&bytes.current);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(|current| current[range(offset, data.len())].copy_from_slice(data))
    }
}

#[tokio::test]
async fn a_power_cut_at_any_write_loses_nothing_that_was_answered() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA).unwrap());
    let empty = fs::read(&place.path).unwrap();
    let mut cut = 0;
    loop {
        let image = Image::default();
        *image.0.lock().unwrap() =
            Bytes { synced: empty.clone(), current: empty.clone(), writes_left: cut };
        fs::write(&place.path, &empty).unwrap();
        let answered = commit_until_cut(&place, &image).await;
        let Bytes { synced, current, .. } = std::mem::take(&mut *image.0.lock().unwrap());
        for left in [synced, current] {
            fs::write(&place.path, left).unwrap();
            let journal = Journal::open(&place.path, SCHEMA).unwrap();
            let found = rows(&journal).len();
            assert!(found == answered || found == answered + 1, "cut at write {cut}");
            journal.commit(vec![put("after", "1")]).await.unwrap();
        }
        if answered == COMMITS {
            break;
        }
        cut += 1;
    }
}

const COMMITS: usize = 3;

/// How many commits were answered.
async fn commit_until_cut(place: &Place, image: &Image) -> usize {
    let wrapped = image.clone();
    let Ok(journal) = Journal::open_with(&place.path, SCHEMA, move |_| wrapped.clone()) else {
        return 0;
    };
    for number in 0..COMMITS {
        if journal.commit(vec![put(&number.to_string(), "1")]).await.is_err() {
            return number;
        }
    }
    COMMITS
}

mod errno {
    pub(crate) const EIO: i32 = 5;
    pub(crate) const ENOSPC: i32 = 28;
}
