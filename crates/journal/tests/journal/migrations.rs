//! Journals of older versions.

use journal::{
    Journal, OpenError,
    Outlives::Machine,
    Schema,
    faulty_disk::{Fate, FaultyDisk},
};

use crate::support::{NETWORKS, PODS, kill_and_keep, place, put, row, rows};

const FIRST: Schema = Schema { name: "test", version: 1, tables: &[PODS], migrations: &[] };

/// Version 2 has longer values; version 3 adds a row to another table for each.
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
async fn older_journal_is_migrated_in_order() {
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

/// A key that a migration renames or omits is deleted.
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
async fn failed_migration_leaves_journal_unchanged() {
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

/// A power cut at any write of a migration leaves the old tables or all of the new ones.
#[tokio::test]
async fn power_cut_leaves_no_half_migration() {
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
