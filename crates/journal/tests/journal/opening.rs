//! Files that are opened or refused.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use journal::{Journal, OpenError, Outlives::Machine, Schema};

use crate::support::{SCHEMA, kill_and_keep, place, put, row, rows};

#[tokio::test]
async fn the_file_is_the_owners_only() {
    let place = place();
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    let mode = || fs::metadata(&place.path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&place.path, Permissions::from_mode(0o644)).unwrap();
    drop(Journal::open(&place.path, SCHEMA, Machine).unwrap());
    assert_eq!(mode(), 0o600, "a copy that was put back");
    let files = fs::read_dir(place.path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "the draft is gone");
}

#[tokio::test]
async fn second_process_is_refused() {
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

#[tokio::test]
async fn unclosed_newer_journal_is_refused_untouched() {
    let place = place();
    let before = kill_and_keep(&place, SCHEMA, vec![put("a", "1")]).await;
    let older = Schema { version: 1, migrations: &[], ..SCHEMA };
    let error = Journal::open(&place.path, older, Machine).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), before);
    assert_eq!(rows(&Journal::open(&place.path, SCHEMA, Machine).unwrap()), [row("a", "1")]);
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

/// A disk that changes written data of a closed journal.
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
