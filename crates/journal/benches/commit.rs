//! Durable commits per second: one caller compared with many that share transactions.
//!
//! `cargo bench -p journal`. The ratio matters; the absolute figures depend on the disk.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use journal::{Change, Journal, Outlives, Schema};

const TABLE: &str = "records";
const LASTS: Duration = Duration::from_secs(2);

const SCHEMA: Schema = Schema { name: "bench", version: 1, tables: &[TABLE], migrations: &[] };

#[tokio::main]
async fn main() {
    let before = resident();
    // /tmp may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = |name: &str, commits| {
        Arc::new(Journal::open(&directory.path().join(name), SCHEMA, commits).unwrap())
    };
    let journal = open("journal", Outlives::Machine);
    let one = rate(&journal, 1).await;
    let many = rate(&journal, 64).await;
    println!("1 caller:   {one:8.0} commits/s");
    println!("64 callers: {many:8.0} commits/s, {:.1} times as many", many / one);
    println!("memory:     {:8} KiB more than before it was opened", resident() - before);
    let unsynced = rate(&open("unsynced", Outlives::Process), 1).await;
    println!("not synced: {unsynced:8.0} commits/s of 1 caller");
}

async fn rate(journal: &Arc<Journal>, callers: usize) -> f64 {
    let begin = Instant::now();
    let callers: Vec<_> = (0..callers).map(|n| tokio::spawn(call(journal.clone(), n))).collect();
    let mut commits = 0;
    for caller in callers {
        commits += caller.await.unwrap();
    }
    f64::from(commits) / begin.elapsed().as_secs_f64()
}

/// Commits 300 bytes at a time to recurring keys until the time is over.
async fn call(journal: Arc<Journal>, caller: usize) -> u32 {
    let end = Instant::now() + LASTS;
    let mut commits = 0;
    while Instant::now() < end {
        let key = format!("{caller}/{}", commits % 16);
        journal.commit(vec![Change::put(TABLE, key, vec![7; 300])]).await.unwrap();
        commits += 1;
    }
    commits
}

/// The process's resident memory in KiB.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
