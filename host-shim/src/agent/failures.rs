//! The last calls that were refused or failed, for the report.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;
use offload_proto::{ConditionReason, Failure, Reason};
use parking_lot::Mutex;

use crate::{cni::environment::Verb, protocol::CallFailure};

const KEPT: usize = 16;
/// The longest kept message and subject, in bytes.
const LONGEST: usize = 1024;

/// A successful ADD clears a problem if no failure follows for this time: some ADDs may fail while others succeed.
const QUIET: Duration = Duration::from_secs(20);

/// The last failures. One mutex, held only for memory operations.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// Oldest first.
    kept: VecDeque<Noted>,
    /// When an ADD last succeeded.
    served: Option<Timestamp>,
}

#[derive(Debug)]
struct Noted {
    at: Timestamp,
    /// The reason, if this was an ADD that failed through no fault of its caller.
    problem: Option<Reason>,
    failure: CallFailure,
}

impl Latest {
    /// Whether a failure counts as a problem. Transient reasons count once enough failures follow each other.
    fn is_problem(&self, noted: &Noted) -> bool {
        let is_unserved = |at: Timestamp| self.served.is_none_or(|served| served < at);
        noted.problem.is_some_and(|reason| {
            let same = |it: &&Noted| it.problem == Some(reason) && is_unserved(it.at);
            let condition = ConditionReason::of_refusal(reason).filter(|it| it.usually_passes());
            condition.is_none_or(|condition| {
                self.kept.iter().filter(same).count() >= condition.failures_in_a_row()
            })
        })
    }
}

/// Whether the reason is a problem of the DPU, of this host or of their connection. The DPU cannot report its own
/// unreachability as a condition.
fn is_problem(reason: Reason) -> bool {
    reason == Reason::DpuUnreachable || ConditionReason::of_refusal(reason).is_some()
}

impl Failures {
    /// Records a refused or failed call about `subject`. STATUS is ignored: runtimes call it every few seconds, and the
    /// report shows its cause.
    pub(super) fn note(&self, verb: Verb, subject: &str, failure: &Failure) {
        if verb == Verb::Status {
            return;
        }
        let at = Timestamp::now();
        let problem = (verb == Verb::Add && is_problem(failure.reason)).then_some(failure.reason);
        let failure = CallFailure {
            time: at.to_string(),
            verb: verb.as_str().into(),
            subject: bootstrap::cut(subject.to_owned(), LONGEST),
            code: failure.reason.to_string(),
            message: bootstrap::cut(failure.message.clone(), LONGEST),
        };
        let mut latest = self.0.lock();
        latest.kept.push_back(Noted { at, problem, failure });
        if latest.kept.len() > KEPT {
            latest.kept.pop_front();
        }
    }

    pub(super) fn note_add(&self) {
        self.0.lock().served = Some(Timestamp::now());
    }

    /// All kept failures, oldest first.
    pub(super) fn all(&self) -> Vec<CallFailure> {
        self.0.lock().kept.iter().map(|noted| noted.failure.clone()).collect()
    }

    /// ADDs of the last `age` that failed through no fault of their callers, oldest first. Empty once an ADD has
    /// succeeded since and none failed for [`QUIET`].
    pub(super) fn problems(&self, age: Duration) -> Vec<CallFailure> {
        let now = Timestamp::now();
        let latest = self.0.lock();
        let problems = || latest.kept.iter().filter(|noted| latest.is_problem(noted));
        let passed = |at: Timestamp| now.duration_since(at).unsigned_abs();
        let is_over = |last: &Noted| {
            passed(last.at) >= QUIET && latest.served.is_some_and(|served| served > last.at)
        };
        if problems().next_back().is_some_and(is_over) {
            return Vec::new();
        }
        let recent = problems().filter(|noted| passed(noted.at) <= age);
        recent.map(|noted| noted.failure.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_failures_are_kept() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::VfsExhausted, "no VF is left");
        for number in 0..=KEPT {
            failures.note(Verb::Add, &number.to_string(), &failure);
            failures.note(Verb::Status, "", &failure);
        }
        let all = failures.all();
        assert_eq!((all.len(), all[0].subject.as_str()), (KEPT, "1"));
        assert_eq!(all[0].code, "VFS_EXHAUSTED");
        assert_eq!(failures.problems(Duration::from_secs(60)).len(), KEPT);
    }

    #[test]
    fn mistakes_of_callers_are_no_problem() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::NetworkUnknown, "no network is named so");
        failures.note(Verb::Add, "web/shop eth0", &failure);
        assert_eq!(failures.all().len(), 1);
        assert_eq!(failures.problems(Duration::from_secs(60)), []);
    }

    #[test]
    fn unreachable_dpu_is_a_problem() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::DpuUnreachable, "the session has ended");
        failures.note(Verb::Add, "web/shop eth0", &failure);
        assert_eq!(failures.problems(Duration::from_secs(60)).len(), 1);
    }

    #[test]
    fn transient_failures_in_a_row_are_problems() {
        let failures = Failures::default();
        let fail = || {
            let failure = Failure::new(Reason::Overloaded, "no file descriptors are left");
            failures.note(Verb::Add, "web/shop eth0", &failure);
            failures.problems(Duration::from_secs(60)).len()
        };
        assert_eq!([fail(), fail()], [0, 0]);
        failures.note_add();
        assert_eq!([fail(), fail()], [0, 0]);
        assert!(fail() >= 3);
    }

    #[test]
    fn later_successful_add_ends_a_problem() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::VfsExhausted, "no VF is left");
        failures.note(Verb::Add, "web/shop eth0", &failure);
        failures.note_add();
        let age = Duration::from_secs(60);
        assert_eq!(failures.problems(age).len(), 1, "others may fail still");
        failures.0.lock().kept[0].at -= QUIET;
        assert_eq!(failures.problems(age), []);
    }
}
