//! Shared by the tests.

use std::{fs, path::PathBuf};

use journal::{
    Change, Journal, OpenError,
    Outlives::{self, Machine},
    Rows, Schema,
    faulty_disk::{Fate, FaultyDisk},
};

pub(crate) const PODS: &str = "pods";
pub(crate) const NETWORKS: &str = "networks";
pub(crate) const SCHEMA: Schema =
    Schema { name: "test", version: 2, tables: &[PODS, NETWORKS], migrations: &[|_| Ok(())] };

pub(crate) struct Place {
    _directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.redb");
    Place { _directory: directory, path }
}

pub(crate) fn put(key: &str, value: &str) -> Change {
    Change::put(PODS, key, value)
}

pub(crate) fn row(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

pub(crate) fn rows(journal: &Journal) -> Rows {
    journal.read_all(PODS).unwrap()
}

/// Leaves the file like a killed program.
pub(crate) async fn kill_and_keep(place: &Place, schema: Schema, changes: Vec<Change>) -> Vec<u8> {
    let journal = Journal::open(&place.path, schema, Machine).unwrap();
    journal.commit(changes).await.unwrap();
    let bytes = fs::read(&place.path).unwrap();
    drop(journal);
    fs::write(&place.path, &bytes).unwrap();
    bytes
}

pub(crate) fn empty_journal(place: &Place) -> Vec<u8> {
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    fs::read(&place.path).unwrap()
}

pub(crate) fn open_on(place: &Place, disk: &FaultyDisk) -> Result<Journal, OpenError> {
    open_for(Machine, place, disk)
}

pub(crate) fn open_for(
    commits: Outlives,
    place: &Place,
    disk: &FaultyDisk,
) -> Result<Journal, OpenError> {
    let disk = disk.clone();
    Journal::open_with(&place.path, SCHEMA, commits, move |_| disk.clone())
}

/// A text longer than a page of the file, so that it takes several writes.
pub(crate) const VALUE: &str = concat!(
    include_str!("commits.rs"),
    include_str!("failures.rs"),
    include_str!("migrations.rs"),
    include_str!("opening.rs"),
    include_str!("unsynced.rs"),
);

/// Deterministic random numbers.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn fate(&mut self) -> Fate {
        // Knuth's constants for a linear congruential generator. Its low bits are poor, so that only high bits are
        // used.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match self.0 >> 61 {
            0..=2 => Fate::Lost,
            3..=5 => Fate::Kept,
            sectors => Fate::Torn(usize::try_from(sectors).unwrap()),
        }
    }
}
