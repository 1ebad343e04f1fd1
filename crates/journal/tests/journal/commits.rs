//! Commits and reads.

use futures::future::join_all;
use journal::{Change, Journal, Outlives::Machine, ReadError, WriteError};

use crate::support::{NETWORKS, PODS, SCHEMA, place, put, row, rows};

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
async fn dropping_lets_waiting_commits_finish() {
    let place = place();
    let journal = Journal::open(&place.path, SCHEMA, Machine).unwrap();
    drop(journal.commit(vec![put("lazy", "1")]));
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
    assert!((1..64).contains(&statistics.transactions), "{statistics:?}");
    assert_eq!(rows(&journal).len(), 256);
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
