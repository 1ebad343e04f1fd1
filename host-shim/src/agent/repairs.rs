//! What the agent has mended by itself, for whoever asks.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use offload_proto::v1;

use super::defect::locked;

/// Why VFs could not be brought home or restored, by what findings call them.
pub(super) type Obstacles = HashMap<String, String>;

/// How many repairs are remembered.
const KEPT: usize = 64;

/// The latest repairs.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    latest: Mutex<VecDeque<Repair>>,
    count: AtomicU64,
}

#[derive(Debug)]
struct Repair {
    at: Instant,
    subject: String,
    message: String,
}

impl Repairs {
    /// Something of `subject` was mended just now: one sentence.
    pub(super) fn note(&self, subject: &str, message: String) {
        tracing::info!(subject, "mended: {message}");
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut kept = locked(&self.latest);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Repair { at: Instant::now(), subject: subject.to_owned(), message });
    }

    /// How many there were since the agent started.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What is remembered, oldest first.
    pub(super) fn all(&self) -> Vec<v1::Repair> {
        let told = |repair: &Repair| v1::Repair {
            ago_s: repair.at.elapsed().as_secs(),
            subject: repair.subject.clone(),
            message: repair.message.clone(),
            host: String::new(),
        };
        locked(&self.latest).iter().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_are_remembered() {
        let repairs = Repairs::default();
        (0..=KEPT).for_each(|number| repairs.note(&number.to_string(), "restored".into()));
        let all = repairs.all();
        assert_eq!((all.len(), all[0].subject.as_str()), (KEPT, "1"));
        assert_eq!(repairs.count(), KEPT as u64 + 1);
    }
}
