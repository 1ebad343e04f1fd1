//! The log of the agent's own repairs.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use offload_proto::v1;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Why VFs could not be moved back or restored, by finding name.
pub(super) type Obstacles = HashMap<String, String>;

const KEPT: usize = 64;

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
    /// Whether the DPU received the report.
    is_reported: bool,
}

impl Repairs {
    /// Records a repair of `subject`: one sentence.
    pub(super) fn note(&self, subject: &str, message: String) {
        tracing::info!(subject, what = message, "the agent made a repair");
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.latest.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let (at, subject) = (Instant::now(), subject.to_owned());
        kept.push_back(Repair { at, subject, message, is_reported: false });
        self.noted.notify_one();
    }

    /// Waits for a repair that is not reported yet.
    pub(super) async fn noted(&self) {
        self.noted.notified().await;
    }

    /// Reports unreported repairs to the DPU, oldest first. `send` returns whether the report was sent; after a failure
    /// the rest waits for the next call.
    pub(super) fn report(&self, mut send: impl FnMut(v1::Repaired) -> bool) {
        for repair in self.latest.lock().iter_mut().filter(|repair| !repair.is_reported) {
            let (subject, message) = (repair.subject.clone(), repair.message.clone());
            repair.is_reported = send(v1::Repaired { subject, message });
            if !repair.is_reported {
                return;
            }
        }
    }

    /// The number of repairs since the agent's start.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The kept repairs, oldest first.
    pub(super) fn all(&self) -> Vec<v1::Repair> {
        let shown = |repair: &Repair| v1::Repair {
            ago_s: repair.at.elapsed().as_secs(),
            subject: repair.subject.clone(),
            message: repair.message.clone(),
            host: String::new(),
        };
        self.latest.lock().iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_repairs_are_kept() {
        let repairs = Repairs::default();
        (0..=KEPT).for_each(|number| repairs.note(&number.to_string(), "restored".into()));
        let all = repairs.all();
        assert_eq!((all.len(), all[0].subject.as_str()), (KEPT, "1"));
        assert_eq!(repairs.count(), KEPT as u64 + 1);
    }
    #[test]
    fn repairs_are_sent_once() {
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
