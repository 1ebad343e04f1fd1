//! Failing and hanging disks, and power cuts.

use std::{error::Error, time::Duration};

use futures::future::join_all;
use journal::{
    Change, Journal, WriteError,
    faulty_disk::{BROKEN, FULL, Fate, FaultyDisk},
};
use test_clock::wait_until;

use crate::support::{Chance, PODS, Place, VALUE, empty_journal, open_on, place, put, row, rows};

/// An empty journal on a faulty disk.
fn faulty(place: &Place) -> (Journal, FaultyDisk) {
    let disk = FaultyDisk::holding(empty_journal(place));
    (open_on(place, &disk).unwrap(), disk)
}

/// Number of commits before and after which the power is cut.
const COMMITS: usize = 3;

/// Commits `a`, fails to overwrite it, repairs the disk, and commits again.
async fn fail_and_recover(fail: impl Fn(&FaultyDisk, Option<i32>), number: i32) {
    let place = place();
    let (journal, disk) = faulty(&place);
    journal.commit(vec![put("a", "1")]).await.unwrap();

    fail(&disk, Some(number));
    let failing = vec![put("a", "2"), Change::delete(PODS, "a"), put("b", "2")];
    for _ in 0..2 {
        assert!(matches!(journal.commit(failing.clone()).await, Err(WriteError::Failed { .. })));
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
async fn full_disk_is_reported_and_survived() {
    fail_and_recover(FaultyDisk::fail_writes, FULL).await;
}

#[tokio::test]
async fn broken_disk_is_reported_and_survived() {
    fail_and_recover(FaultyDisk::fail_writes, BROKEN).await;
}

#[tokio::test]
async fn a_commit_whose_sync_failed_has_not_happened() {
    fail_and_recover(FaultyDisk::fail_syncs, BROKEN).await;
}

#[tokio::test]
async fn hung_writes_are_detected() {
    let place = place();
    let (journal, disk) = faulty(&place);
    journal.commit(vec![put("a", "1")]).await.unwrap();
    assert_eq!(journal.waiting(), None);
    let hang = disk.hang();
    let under_way = journal.commit(vec![put("b", "1")]);
    wait_until("the write waits", || journal.waiting().is_some());
    let queued = journal.probe();
    let longer = journal.waiting().unwrap() + Duration::from_millis(20);
    wait_until("the first write counts", || journal.waiting().unwrap() > longer);
    drop(hang);
    under_way.await.unwrap();
    queued.await.unwrap();
    assert_eq!(journal.waiting(), None);
    assert!(journal.problem().is_none());
}

#[tokio::test]
async fn failed_transaction_reports_to_all_members() {
    let place = place();
    let (journal, disk) = faulty(&place);
    disk.fail_writes(Some(FULL));
    let commits = (0..32).map(|number| journal.commit(vec![put(&number.to_string(), "1")]));
    for result in join_all(commits.collect::<Vec<_>>()).await {
        let shown = chain(&result.unwrap_err());
        assert!(shown.contains("No space left"), "{shown}");
    }
}

#[test]
fn blocking_caller_gets_the_result() {
    let place = place();
    let (journal, disk) = faulty(&place);
    journal.commit(vec![put("a", "1")]).wait().unwrap();
    disk.fail_writes(Some(FULL));
    let refused = journal.commit(vec![put("a", "2")]).wait();
    assert!(matches!(refused, Err(WriteError::Failed { .. })), "{refused:?}");
    let foreign = journal.commit(vec![Change::put("foreign", "a", "1")]).wait();
    assert!(matches!(foreign, Err(WriteError::NoTable("foreign"))), "{foreign:?}");
}

/// An error with its causes. A transaction after a failed one reports the reopening.
fn chain(error: &dyn Error) -> String {
    let mut shown = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        shown = format!("{shown}: {error}");
        cause = error.source();
    }
    shown
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

/// Number of disk states per power cut: everything, nothing, and random mixtures of unsynced writes, some of them torn.
const REMAINS: u64 = 16;

#[tokio::test]
async fn power_cut_loses_no_answered_commit() {
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

/// The number of answered commits.
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
async fn failed_write_loses_no_answered_commit() {
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
