//! The latest calls that were refused or failed, for a person who asks the agent.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use jiff::Timestamp;
use offload_proto::Failure;

use super::defect::locked;
use crate::{cni::environment::Verb, protocol::CallFailure};

/// How many are remembered.
const KEPT: usize = 16;
/// Longest message and subject that are remembered, in bytes.
const LONGEST: usize = 1024;

/// The latest failures, oldest first.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<VecDeque<(Timestamp, CallFailure)>>);

impl Failures {
    /// A call of that verb about `subject` was refused or has failed. Runtimes ask for STATUS every few seconds: how that
    /// ends is said by what it is about.
    pub(super) fn note(&self, verb: Verb, subject: &str, failure: &Failure) {
        if verb == Verb::Status {
            return;
        }
        let now = Timestamp::now();
        let failure = CallFailure {
            time: now.to_string(),
            verb: verb.as_str().into(),
            subject: bootstrap::cut(subject.to_owned(), LONGEST),
            code: failure.reason.to_string(),
            message: bootstrap::cut(failure.message.clone(), LONGEST),
        };
        let mut kept = locked(&self.0);
        kept.push_back((now, failure));
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// All that are remembered, oldest first.
    pub(super) fn all(&self) -> Vec<CallFailure> {
        locked(&self.0).iter().map(|(_, failure)| failure.clone()).collect()
    }

    /// Those of ADDs of the last `age`, oldest first.
    pub(super) fn of_adds(&self, age: Duration) -> Vec<CallFailure> {
        let now = Timestamp::now();
        let is_recent = |at: Timestamp| now.duration_since(at).unsigned_abs() <= age;
        let kept = locked(&self.0);
        let recent = kept.iter().filter(|(at, failure)| is_recent(*at) && failure.verb == "ADD");
        recent.map(|(_, failure)| failure.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::Reason;

    use super::*;

    #[test]
    fn only_the_latest_failures_are_kept() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::VfsExhausted, "no VF is left");
        for number in 0..=KEPT {
            failures.note(Verb::Add, &number.to_string(), &failure);
            failures.note(Verb::Status, "", &failure);
        }
        let all = failures.all();
        assert_eq!((all.len(), all[0].subject.as_str()), (KEPT, "1"));
        assert_eq!(all[0].code, "VFS_EXHAUSTED");
        assert_eq!(failures.of_adds(Duration::from_secs(60)).len(), KEPT);
    }
}
