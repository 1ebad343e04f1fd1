//! What the agent has mended by itself, for whoever asks.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use offload_proto::v1;

use super::locked;

/// How many repairs are remembered.
const KEPT: usize = 64;

/// The latest repairs.
#[derive(Debug, Default)]
pub(super) struct Repairs(Mutex<VecDeque<Repair>>);

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
        let mut kept = locked(&self.0);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Repair { at: Instant::now(), subject: subject.to_owned(), message });
    }

    /// What is remembered, oldest first.
    pub(super) fn all(&self) -> Vec<v1::Repair> {
        let told = |repair: &Repair| v1::Repair {
            ago_s: repair.at.elapsed().as_secs(),
            subject: repair.subject.clone(),
            message: repair.message.clone(),
            host: String::new(),
        };
        locked(&self.0).iter().map(told).collect()
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
    }
}
