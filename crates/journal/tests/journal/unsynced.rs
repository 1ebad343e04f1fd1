//! Journals whose commits need not survive the machine.

use journal::{
    Journal, OpenError,
    Outlives::Process,
    Rows,
    faulty_disk::{Fate, FaultyDisk},
};

use crate::support::{
    Chance, SCHEMA, VALUE, empty_journal, open_for, open_on, place, put, row, rows,
};

#[tokio::test]
async fn without_syncs_what_was_answered_outlives_the_process() {
    let place = place();
    let disk = FaultyDisk::holding(empty_journal(&place));
    let journal = open_for(Process, &place, &disk).unwrap();
    for number in 0..20 {
        journal.commit(vec![put("last", &number.to_string()), put("long", VALUE)]).await.unwrap();
        // The state that the next process would find after a kill.
        let next = open_on(&place, &FaultyDisk::holding(disk.content())).unwrap();
        assert_eq!(rows(&next), [row("last", &number.to_string()), row("long", VALUE)]);
    }
}

#[tokio::test]
async fn unsynced_journal_refuses_second_process() {
    let place = place();
    let _first = Journal::open(&place.path, SCHEMA, Process).unwrap();
    let error = Journal::open(&place.path, SCHEMA, Process).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}

#[tokio::test]
async fn closed_unsynced_journal_survives_power_cut() {
    let place = place();
    let disk = FaultyDisk::holding(empty_journal(&place));
    let journal = open_for(Process, &place, &disk).unwrap();
    journal.commit(vec![put("a", "1")]).await.unwrap();
    journal.commit(vec![put("b", "2")]).await.unwrap();
    drop(journal);
    disk.power_on(|| Fate::Lost);
    assert_eq!(rows(&open_on(&place, &disk).unwrap()), [row("a", "1"), row("b", "2")]);
}

/// The first commit marks the file as not closed. If that were not on the disk, redb would trust a torn file.
#[tokio::test]
async fn unsynced_journal_syncs_first_commit() {
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

/// Number of ways to lose and tear unsynced writes.
const TEARS: u64 = 100;

/// Enough commits for pages of the file to be reused.
const UNSYNCED_COMMITS: usize = 12;

#[tokio::test]
async fn unsynced_journal_recovers_earlier_state_or_refuses() {
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

/// Whether the rows are the complete result of one of the commits.
fn is_a_state(rows: &Rows) -> bool {
    let state = |number: usize| {
        let values = (0..=number.min(1)).map(|key| row(&key.to_string(), VALUE));
        values.chain([row("last", &number.to_string())]).collect::<Rows>()
    };
    (0..UNSYNCED_COMMITS).any(|number| *rows == state(number))
}
