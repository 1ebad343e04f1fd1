//! The latest calls that were refused or failed, for a person who asks the agent.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use jiff::Timestamp;
use offload_proto::{ConditionReason, Failure, Reason};

use super::defect::locked;
use crate::{cni::environment::Verb, protocol::CallFailure};

/// How many are remembered.
const KEPT: usize = 16;
/// Longest message and subject that are remembered, in bytes.
const LONGEST: usize = 1024;

/// An ADD that succeeds clears a failure once none follows for so long: where some ADDs fail, others succeed.
const QUIET: Duration = Duration::from_secs(20);

/// The latest failures.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// Oldest first.
    kept: VecDeque<Noted>,
    /// When an ADD succeeded last.
    served: Option<Timestamp>,
}

#[derive(Debug)]
struct Noted {
    at: Timestamp,
    /// Why, if it is an ADD that failed through no fault of its caller.
    problem: Option<Reason>,
    failure: CallFailure,
}

impl Latest {
    /// Failures that usually pass are problems once enough of them follow each other.
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

/// Whether an ADD that fails for this reason has met a problem of the DPU, of this host, or between them. An unreachable
/// DPU cannot report it as a condition.
fn is_problem(reason: Reason) -> bool {
    reason == Reason::DpuUnreachable || ConditionReason::of_refusal(reason).is_some()
}

impl Failures {
    /// A call of that verb about `subject` was refused or has failed. Runtimes ask for STATUS every few seconds: how that
    /// ends is said by what it is about.
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
        let mut latest = locked(&self.0);
        latest.kept.push_back(Noted { at, problem, failure });
        if latest.kept.len() > KEPT {
            latest.kept.pop_front();
        }
    }

    /// An ADD has succeeded.
    pub(super) fn note_add(&self) {
        locked(&self.0).served = Some(Timestamp::now());
    }

    /// All that are remembered, oldest first.
    pub(super) fn all(&self) -> Vec<CallFailure> {
        locked(&self.0).kept.iter().map(|noted| noted.failure.clone()).collect()
    }

    /// ADDs of the last `age` that failed through no fault of their callers. Empty once one has succeeded since and none
    /// has failed for [`QUIET`]. Oldest first.
    pub(super) fn problems(&self, age: Duration) -> Vec<CallFailure> {
        let now = Timestamp::now();
        let latest = locked(&self.0);
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
    fn failures_that_usually_pass_are_problems_in_a_row() {
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
    fn a_later_add_that_succeeds_ends_a_problem() {
        let failures = Failures::default();
        let failure = Failure::new(Reason::VfsExhausted, "no VF is left");
        failures.note(Verb::Add, "web/shop eth0", &failure);
        failures.note_add();
        let age = Duration::from_secs(60);
        assert_eq!(failures.problems(age).len(), 1, "others may fail still");
        locked(&failures.0).kept[0].at -= QUIET;
        assert_eq!(failures.problems(age), []);
    }
}
