//! What the agent has repaired by itself.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use offload_proto::v1;
use tokio::sync::Notify;

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
    noted: Notify,
}

#[derive(Debug)]
struct Repair {
    at: Instant,
    subject: String,
    message: String,
    /// Whether the DPU has it.
    is_reported: bool,
}

impl Repairs {
    /// Something of `subject` was repaired just now: one sentence.
    pub(super) fn note(&self, subject: &str, message: String) {
        tracing::info!(subject, what = message, "the agent has repaired something");
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut kept = locked(&self.latest);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let (at, subject) = (Instant::now(), subject.to_owned());
        kept.push_back(Repair { at, subject, message, is_reported: false });
        self.noted.notify_one();
    }

    /// Waits until there is one that is not reported yet.
    pub(super) async fn noted(&self) {
        self.noted.notified().await;
    }

    /// Has the DPU know of those that it does not know of, oldest first. `send` returns whether the report is on its way;
    /// after one that is not, the rest waits for the next call.
    pub(super) fn report(&self, mut send: impl FnMut(v1::Repaired) -> bool) {
        for repair in locked(&self.latest).iter_mut().filter(|repair| !repair.is_reported) {
            let (subject, message) = (repair.subject.clone(), repair.message.clone());
            repair.is_reported = send(v1::Repaired { subject, message });
            if !repair.is_reported {
                return;
            }
        }
    }

    /// How many there were since the agent started.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What is remembered, oldest first.
    pub(super) fn all(&self) -> Vec<v1::Repair> {
        let shown = |repair: &Repair| v1::Repair {
            ago_s: repair.at.elapsed().as_secs(),
            subject: repair.subject.clone(),
            message: repair.message.clone(),
            host: String::new(),
        };
        locked(&self.latest).iter().map(shown).collect()
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
    #[test]
    fn repairs_are_reported_once() {
        let repairs = Repairs::default();
        repairs.note("a", "restored".into());
        repairs.note("b", "restored".into());
        let mut reported = Vec::new();
        repairs.report(|_| false);
        repairs.report(|repaired| {
            reported.push(repaired.subject);
            reported.len() == 1
        });
        assert_eq!(reported, ["a", "b"]);
        let mut again = Vec::new();
        for _ in 0..2 {
            repairs.report(|repaired| {
                again.push(repaired.subject);
                true
            });
        }
        assert_eq!(again, ["b"]);
    }
}
