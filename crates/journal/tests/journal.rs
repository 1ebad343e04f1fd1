//! The journal on real files, and on a disk that fails.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{error::Error, fs, os::unix::fs::PermissionsExt, path::PathBuf};

use futures::future::join_all;
use journal::{
    Change, Journal, OpenError,
    Outlives::{self, Machine, Process},
    ReadError, Rows, Schema, WriteError,
    faulty_disk::{BROKEN, FULL, Fate, FaultyDisk},
};

const PODS: &str = "pods";
const NETWORKS: &str = "networks";
const SCHEMA: Schema =
    Schema { name: "test", version: 2, tables: &[PODS, NETWORKS], migrations: &[|_| Ok(())] };

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

/// An empty journal on a disk that can be made to fail.
fn faulty(place: &Place) -> (Journal, FaultyDisk) {
    let disk = FaultyDisk::holding(empty_journal(place));
    (open_on(place, &disk).unwrap(), disk)
}

fn empty_journal(place: &Place) -> Vec<u8> {
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    fs::read(&place.path).unwrap()
}

fn open_on(place: &Place, disk: &FaultyDisk) -> Result<Journal, OpenError> {
    open_for(Machine, place, disk)
}

fn open_for(commits: Outlives, place: &Place, disk: &FaultyDisk) -> Result<Journal, OpenError> {
    let disk = disk.clone();
    Journal::open_with(&place.path, SCHEMA, commits, move |_| disk.clone())
}

#[tokio::test]
async fn what_was_committed_is_there_after_opening_again() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    journal.commit(vec![put("a", "1"), put("b", "2")]).await.unwrap();
    journal.commit(vec![Change::delete(PODS, "a"), put("c", "3")]).await.unwrap();
    drop(journal);
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    assert_eq!(rows(&journal), [row("b", "2"), row("c", "3")]);
    assert_eq!(journal.read_all(NETWORKS).unwrap(), []);
}

#[tokio::test]
async fn the_file_is_the_owners_only() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path), 0o600);
    assert_eq!(mode(place.path.parent().unwrap()), 0o700);
    let files = fs::read_dir(place.path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "the draft is gone");
}

#[tokio::test]
async fn dropping_lets_waiting_commits_finish() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    journal.commit_lazily(vec![put("lazy", "1")]);
    let waiting = journal.commit(vec![put("waiting", "1")]);
    drop(journal);
    waiting.await.unwrap();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    assert_eq!(rows(&journal).len(), 2);
}

#[tokio::test]
async fn waiting_commits_share_transactions() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
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
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    let error = Journal::open(&place.path, SCHEMA, Machine).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(journal);
    Journal::open(&place.path, SCHEMA, Machine).unwrap();
}

#[test]
fn files_of_others_are_refused_and_untouched() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    let before = fs::read(&place.path).unwrap();

    let other = Schema { name: "other", ..SCHEMA };
    let error = Journal::open(&place.path, other, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");

    let older = Schema { version: 1, migrations: &[], ..SCHEMA };
    let error = Journal::open(&place.path, older, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), before);
}

/// Leaves the file as a program does that is killed.
async fn kill_and_keep(place: &Place, schema: Schema, changes: Vec<Change>) -> Vec<u8> {
    let journal = Journal::open(&place.path, schema, Machine).unwrap();
    journal.commit(changes).await.unwrap();
    let bytes = fs::read(&place.path).unwrap();
    drop(journal);
    fs::write(&place.path, &bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_newer_journal_that_was_not_closed_is_refused_and_untouched() {
    let place = place();
    let before = kill_and_keep(&place, SCHEMA, vec![put("a", "1")]).await;
    let older = Schema { version: 1, migrations: &[], ..SCHEMA };
    let error = Journal::open(&place.path, older, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), before);
    assert_eq!(rows(&Journal::open(&place.path, SCHEMA, Machine).unwrap()), [row("a", "1")]);
}

const FIRST: Schema = Schema { name: "test", version: 1, tables: &[PODS], migrations: &[] };

/// Version 2 has longer values, version 3 a row of another table for each.
const THIRD: Schema = Schema {
    version: 3,
    tables: &[PODS, NETWORKS],
    migrations: &[
        |tables| {
            let pods = tables.entry(PODS).or_default();
            pods.iter_mut().for_each(|(_, value)| value.extend(b"+2"));
            Ok(())
        },
        |tables| {
            let pods = tables[PODS].clone();
            tables
                .insert(NETWORKS, pods.into_iter().map(|(key, _)| (key, b"3".to_vec())).collect());
            Ok(())
        },
    ],
    ..FIRST
};

#[tokio::test]
async fn what_an_older_version_wrote_is_migrated_once_in_order() {
    let place = place();
    kill_and_keep(&place, FIRST, vec![put("a", "1"), put("b", "1")]).await;
    for _ in 0..2 {
        let journal = Journal::open(&place.path, THIRD, Machine).unwrap();
        assert_eq!(rows(&journal), [row("a", "1+2"), row("b", "1+2")]);
        assert_eq!(journal.read_all(NETWORKS).unwrap(), [row("a", "3"), row("b", "3")]);
    }
    let error = Journal::open(&place.path, FIRST, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 3, known: 1, .. }), "{error}");
}

/// Of a key that a migration renames or leaves out nothing stays.
#[tokio::test]
async fn what_a_migration_leaves_out_is_gone() {
    const RENAMED: Schema = Schema {
        version: 2,
        migrations: &[|tables| {
            let pods = tables.entry(PODS).or_default();
            pods.retain(|(key, _)| key != b"b");
            pods.iter_mut().for_each(|(key, _)| key.insert(0, b'x'));
            Ok(())
        }],
        ..FIRST
    };
    let place = place();
    kill_and_keep(&place, FIRST, vec![put("a", "1"), put("b", "1")]).await;
    for _ in 0..2 {
        let journal = Journal::open(&place.path, RENAMED, Machine).unwrap();
        assert_eq!(rows(&journal), [row("xa", "1")]);
    }
}

#[tokio::test]
async fn a_migration_begins_where_the_journal_is() {
    let place = place();
    let second = Schema { version: 2, migrations: &THIRD.migrations[..1], ..FIRST };
    kill_and_keep(&place, second, vec![put("a", "2")]).await;
    assert_eq!(rows(&Journal::open(&place.path, THIRD, Machine).unwrap()), [row("a", "2")]);
}

#[tokio::test]
async fn what_can_not_be_migrated_stays_as_it_was() {
    let place = place();
    kill_and_keep(&place, FIRST, vec![put("a", "1")]).await;
    let failing = Schema { version: 2, migrations: &[|_| Err("no".into())], ..FIRST };
    let error = Journal::open(&place.path, failing, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Migration { found: 1, .. }), "{error}");
    let late = Schema { version: 3, migrations: &[|_| Ok(())], ..FIRST };
    let error = Journal::open(&place.path, late, Machine).unwrap_err();
    assert!(matches!(error, OpenError::TooOld { found: 1, oldest: 2, .. }), "{error}");
    assert_eq!(rows(&Journal::open(&place.path, FIRST, Machine).unwrap()), [row("a", "1")]);
}

/// A power cut at any write of a migration leaves what was before it, or all of it.
#[tokio::test]
async fn a_power_cut_does_not_leave_half_a_migration() {
    let place = place();
    let bytes = kill_and_keep(&place, FIRST, vec![put("a", "1"), put("b", "1")]).await;
    let mut writes = 0;
    loop {
        let disk = FaultyDisk::holding(bytes.clone());
        disk.cut_power_after(writes);
        let cut = disk.clone();
        let opened = Journal::open_with(&place.path, THIRD, Machine, move |_| cut.clone());
        let is_whole = opened.is_ok();
        drop(opened);
        disk.power_on(|| Fate::Lost);
        let journal = Journal::open_with(&place.path, THIRD, Machine, move |_| disk.clone());
        assert_eq!(rows(&journal.unwrap()), [row("a", "1+2"), row("b", "1+2")], "after {writes}");
        if is_whole {
            break;
        }
        writes += 1;
    }
    assert!(writes > 2);
}

#[test]
fn damaged_files_are_refused_and_untouched() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    let good = fs::read(&place.path).unwrap();
    let mut scribbled = good.clone();
    scribbled[..4096].fill(0xa5);
    for bytes in [b"[[network]]\nname = \"red\"\n".to_vec(), good[..1000].to_vec(), scribbled] {
        fs::write(&place.path, &bytes).unwrap();
        let error = Journal::open(&place.path, SCHEMA, Machine).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert_eq!(fs::read(&place.path).unwrap(), bytes);
    }
}

/// A disk that changes what was written, under a journal that was closed.
#[tokio::test]
async fn a_changed_byte_is_never_believed() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    let keys: Vec<_> = (0..200).map(|number| format!("10.1.0.{number}")).collect();
    journal.commit(keys.iter().map(|key| put(key, "held")).collect()).await.unwrap();
    drop(journal);
    let good = fs::read(&place.path).unwrap();
    let before = rows(&Journal::open(&place.path, SCHEMA, Machine).unwrap());
    let mut refused = 0;
    for block in (0..good.len()).step_by(1024) {
        let mut bytes = good.clone();
        bytes[block + 16] ^= 0x04;
        fs::write(&place.path, &bytes).unwrap();
        match Journal::open(&place.path, SCHEMA, Machine) {
            Ok(journal) => assert_eq!(rows(&journal), before, "byte {}", block + 16),
            Err(OpenError::Damaged { .. }) => {
                refused += 1;
                assert!(fs::read(&place.path).unwrap() == bytes, "byte {}", block + 16);
            }
            Err(error) => panic!("byte {}: {error}", block + 16),
        }
    }
    assert!(refused > 0);
    println!("figure: {refused} changed bytes of a closed journal found");
}

#[test]
fn a_directory_in_the_way_is_refused() {
    let place = place();
    fs::create_dir_all(&place.path).unwrap();
    let error = Journal::open(&place.path, SCHEMA, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[tokio::test]
async fn tables_that_the_schema_lacks_are_refused() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    let commit = journal.commit(vec![put("a", "1"), Change::put("foreign", "a", "1")]).await;
    assert!(matches!(commit, Err(WriteError::NoTable("foreign"))));
    assert!(matches!(journal.read_all("foreign"), Err(ReadError::NoTable("foreign"))));
    assert_eq!(rows(&journal), []);
}

/// Commits `a`, fails to commit over it, mends the disk, and commits again.
async fn fail_and_mend(fail: impl Fn(&FaultyDisk, Option<i32>), number: i32) {
    let place = place();
    let (journal, disk) = faulty(&place);
    journal.commit(vec![put("a", "1")]).await.unwrap();

    fail(&disk, Some(number));
    let failing = vec![put("a", "2"), Change::delete(PODS, "a"), put("b", "2")];
    for _ in 0..2 {
        assert!(matches!(journal.commit(failing.clone()).await, Err(WriteError::Failed(_))));
        assert!(journal.problem().is_some());
        assert!(journal.probe().await.is_err());
    }

    fail(&disk, None);
    journal.probe().await.unwrap();
    assert!(journal.problem().is_none());
    assert_eq!(rows(&journal), [row("a", "1")]);
    journal.commit(vec![put("c", "3")]).await.unwrap();
    drop(journal);
    let journal = open_on(&place, &disk).unwrap();
    assert_eq!(rows(&journal), [row("a", "1"), row("c", "3")]);
}

#[tokio::test]
async fn a_full_disk_is_told_and_survived() {
    fail_and_mend(FaultyDisk::fail_writes, FULL).await;
}

#[tokio::test]
async fn a_broken_disk_is_told_and_survived() {
    fail_and_mend(FaultyDisk::fail_writes, BROKEN).await;
}

#[tokio::test]
async fn a_commit_whose_sync_failed_has_not_happened() {
    fail_and_mend(FaultyDisk::fail_syncs, BROKEN).await;
}

#[tokio::test]
async fn all_members_of_a_failed_transaction_are_told() {
    let place = place();
    let (journal, disk) = faulty(&place);
    disk.fail_writes(Some(FULL));
    let commits = (0..32).map(|number| journal.commit(vec![put(&number.to_string(), "1")]));
    for result in join_all(commits.collect::<Vec<_>>()).await {
        let told = chain(&result.unwrap_err());
        assert!(told.contains("No space left"), "{told}");
    }
}

/// An error with its causes: a transaction that comes after a failed one tells of opening the file
/// again.
fn chain(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

#[tokio::test]
async fn what_was_answered_survives_a_power_cut() {
    let place = place();
    let (journal, disk) = faulty(&place);
    for number in 0..20 {
        journal.commit(vec![put(&format!("{number:02}"), "1")]).await.unwrap();
    }
    disk.cut_power_after(0);
    journal.commit(vec![put("late", "1")]).await.unwrap_err();
    drop(journal);
    disk.power_on(|| Fate::Lost);
    let journal = open_on(&place, &disk).unwrap();
    assert_eq!(rows(&journal).len(), 20);
    journal.commit(vec![put("after", "1")]).await.unwrap();
}

/// How many commits a power cut comes into the middle of.
const COMMITS: usize = 3;

/// How many different disks each power cut leaves behind: all, nothing, and mixtures of what was
/// not synced, by chance and with torn writes.
const REMAINS: u64 = 16;

#[tokio::test]
async fn a_power_cut_at_any_write_loses_nothing_that_was_answered() {
    let place = place();
    let empty = empty_journal(&place);
    let mut tried = 0;
    for remains in 0..REMAINS {
        let mut chance = Chance(remains);
        for cut in 0.. {
            tried += 1;
            let disk = FaultyDisk::holding(empty.clone());
            disk.cut_power_after(cut);
            let answered = commit_until_cut(&place, &disk).await;
            disk.power_on(|| match remains {
                0 => Fate::Lost,
                1 => Fate::Kept,
                _ => chance.fate(),
            });
            let journal = open_on(&place, &disk).unwrap();
            let found = rows(&journal);
            let (complete, rest) = found.split_at(answered);
            assert!(rest.len() <= 1, "cut at {cut}: {answered} answered, {} found", found.len());
            for (number, found) in complete.iter().chain(rest).enumerate() {
                assert_eq!(*found, row(&number.to_string(), VALUE), "cut at {cut}");
            }
            journal.commit(vec![put("after", "1")]).await.unwrap();
            if answered == COMMITS {
                break;
            }
        }
    }
    println!("figure: {tried} disks opened again after a power cut amid writing");
}

/// Longer than a page of the file, so that writing it takes several.
const VALUE: &str = include_str!("journal.rs");

/// How many commits were answered.
async fn commit_until_cut(place: &Place, disk: &FaultyDisk) -> usize {
    let Ok(journal) = open_on(place, disk) else { return 0 };
    for number in 0..COMMITS {
        if journal.commit(vec![put(&number.to_string(), VALUE)]).await.is_err() {
            return number;
        }
    }
    COMMITS
}

#[tokio::test]
async fn a_disk_that_fails_once_at_any_write_loses_nothing_that_was_answered() {
    let place = place();
    let empty = empty_journal(&place);
    let mut tried = 0;
    for number in [FULL, BROKEN] {
        for failing in 0.. {
            tried += 1;
            let disk = FaultyDisk::holding(empty.clone());
            let journal = open_on(&place, &disk).unwrap();
            disk.fail_once_after(failing, number);
            let mut expected = Vec::new();
            for key in ["0", "1", "2"] {
                if journal.commit(vec![put(key, VALUE)]).await.is_ok() {
                    expected.push(row(key, VALUE));
                }
            }
            assert_eq!(rows(&journal), expected, "failed at {failing}");
            drop(journal);
            disk.power_on(|| Fate::Lost);
            assert_eq!(rows(&open_on(&place, &disk).unwrap()), expected, "failed at {failing}");
            if expected.len() == COMMITS {
                break;
            }
        }
    }
    println!("figure: {tried} writes and syncs that failed, the disk full or broken");
}

#[tokio::test]
async fn without_syncs_what_was_answered_outlives_the_process() {
    let place = place();
    let disk = FaultyDisk::holding(empty_journal(&place));
    let journal = open_for(Process, &place, &disk).unwrap();
    for number in 0..20 {
        journal.commit(vec![put("last", &number.to_string()), put("long", VALUE)]).await.unwrap();
        // As the next process would find it, were this one killed now.
        let next = open_on(&place, &FaultyDisk::holding(disk.content())).unwrap();
        assert_eq!(rows(&next), [row("last", &number.to_string()), row("long", VALUE)]);
    }
}

#[tokio::test]
async fn without_syncs_a_second_process_is_told_that_it_is_in_use() {
    let place = place();
    let _first = Journal::open(&place.path, SCHEMA, Process).unwrap();
    let error = Journal::open(&place.path, SCHEMA, Process).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}

#[tokio::test]
async fn without_syncs_a_closed_journal_survives_a_power_cut() {
    let place = place();
    let disk = FaultyDisk::holding(empty_journal(&place));
    let journal = open_for(Process, &place, &disk).unwrap();
    journal.commit(vec![put("a", "1")]).await.unwrap();
    journal.commit(vec![put("b", "2")]).await.unwrap();
    drop(journal);
    disk.power_on(|| Fate::Lost);
    assert_eq!(rows(&open_on(&place, &disk).unwrap()), [row("a", "1"), row("b", "2")]);
}

/// It takes from the file the trust that redb has in one that was closed: were that not on the disk, a
/// torn file would be believed.
#[tokio::test]
async fn without_syncs_the_first_commit_after_opening_is_on_the_disk_all_the_same() {
    let place = place();
    let disk = FaultyDisk::holding(empty_journal(&place));
    for number in ["1", "2"] {
        let journal = open_for(Process, &place, &disk).unwrap();
        journal.commit(vec![put("first", number)]).await.unwrap();
        journal.commit(vec![put("second", number)]).await.unwrap();
        disk.cut_power_after(0);
        drop(journal);
        disk.power_on(|| Fate::Lost);
        assert_eq!(rows(&open_on(&place, &disk).unwrap()), [row("first", number)]);
    }
}

/// How many ways of losing and tearing what was not synced are tried.
const TEARS: u64 = 100;

/// Enough for pages of the file to be used again.
const UNSYNCED_COMMITS: usize = 12;

#[tokio::test]
async fn without_syncs_what_a_power_cut_leaves_is_an_earlier_state_or_refused() {
    let place = place();
    let empty = empty_journal(&place);
    let mut refused = 0;
    for seed in 0..TEARS {
        let mut chance = Chance(seed);
        let disk = FaultyDisk::holding(empty.clone());
        let journal = open_for(Process, &place, &disk).unwrap();
        for number in 0..UNSYNCED_COMMITS {
            let key = (number % 2).to_string();
            journal.commit(vec![put("last", &number.to_string()), put(&key, VALUE)]).await.unwrap();
        }
        disk.cut_power_after(0);
        drop(journal);
        disk.power_on(|| chance.fate());
        match open_on(&place, &disk) {
            Ok(journal) => assert!(is_a_state(&rows(&journal)), "seed {seed}"),
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!((1..TEARS).contains(&refused), "both happen: {refused} of {TEARS} refused");
    println!("figure: {TEARS} disks opened again after a power cut without syncs");
}

/// Whether it is what one of the commits left, all of it.
fn is_a_state(rows: &Rows) -> bool {
    let state = |number: usize| {
        let values = (0..=number.min(1)).map(|key| row(&key.to_string(), VALUE));
        values.chain([row("last", &number.to_string())]).collect::<Rows>()
    };
    (0..UNSYNCED_COMMITS).any(|number| *rows == state(number))
}

/// Chance that comes out the same each time.
struct Chance(u64);

impl Chance {
    fn fate(&mut self) -> Fate {
        // Knuth's constants for a linear congruential generator; its low bits are poor.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match self.0 >> 61 {
            0..=2 => Fate::Lost,
            3..=5 => Fate::Kept,
            sectors => Fate::Torn(usize::try_from(sectors).unwrap()),
        }
    }
}
