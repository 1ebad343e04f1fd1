//! How calls are answered, by whichever door they come: each in its turn, no longer than its caller waits, and counted.

use std::{sync::Arc, time::Instant};

use metrics::{Calls, OK};
use offload_proto::{ConditionReason, Failure, Reason};
use tokio::{sync::Semaphore, task::JoinError, time::sleep_until};
use tokio_util::task::TaskTracker;

use super::{
    caller::{Answer, Caller},
    defect::defect,
    dpu::Dpu,
    failures::Failures,
};
use crate::cni::environment::Verb;

/// Where calls are answered.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    tasks: TaskTracker,
    turns: Arc<Semaphore>,
    calls: Arc<Calls>,
    failures: Arc<Failures>,
    dpu: Arc<Dpu>,
}

/// Where the outcome of one call is noted, and what it is about.
#[derive(Clone, Debug)]
struct CallNotes {
    verb: Verb,
    /// Whom it is about.
    subject: String,
    failures: Arc<Failures>,
    /// Whom ADDs that fail on this host are reported to.
    dpu: Arc<Dpu>,
}

impl Desk {
    /// One that answers at most `limit` calls at a time, and counts them among `calls`. Their work is among `tasks`.
    pub(super) fn new(tasks: TaskTracker, limit: usize, calls: Arc<Calls>, dpu: Arc<Dpu>) -> Self {
        let (turns, failures) = (Arc::new(Semaphore::new(limit)), Arc::default());
        Self { tasks, turns, calls, failures, dpu }
    }

    /// The latest calls that were refused or failed.
    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Has the work done that a call about `subject` asks for, and tells its caller what comes of it. Work that ends
    /// without an answer has answered. Returns once the caller was told, and the work may go on.
    ///
    /// A call that nobody waits for any more is not begun: its caller may have made another since.
    pub(super) async fn attend(
        &self,
        verb: Verb,
        subject: String,
        caller: &Arc<Caller>,
        work: impl Future<Output = Option<Answer>> + Send + 'static,
    ) {
        let begun = Instant::now();
        let (turns, asker) = (Arc::clone(&self.turns), Arc::clone(caller));
        let (failures, dpu) = (Arc::clone(&self.failures), Arc::clone(&self.dpu));
        let call = CallNotes { verb, subject, failures, dpu };
        let named = call.clone();
        // A task of its own: a caller that ends does not stop the work in the middle.
        let mut work = self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            match asker.is_waiting() {
                Ok(()) => match work.await {
                    Some(answer) => tell(&named, &asker, answer).await,
                    None => {
                        named.note_answered();
                        None
                    }
                },
                Err(failure) => tell(&named, &asker, refused(failure)).await,
            }
        });
        let refusal = tokio::select! {
            biased;
            ended = &mut work => of_ended(&call, caller, ended).await,
            never = caller.keep_company() => match never {},
            () = sleep_until(caller.deadline().into()) => {
                let late = refused(late());
                let refusal = late.refusal();
                // The work goes on, and its end is noted.
                match caller.give_up(late).await {
                    Ok(()) => refusal,
                    // It was answered just now, or has ended.
                    Err(_) => of_ended(&call, caller, work.await).await,
                }
            }
        };
        self.calls.note(verb.as_str(), refusal.map_or(OK, Reason::as_str), begun.elapsed());
    }
}

impl CallNotes {
    fn note(&self, answer: &Answer) {
        let Answer::Refused { failure, .. } = answer else { return };
        self.failures.note(self.verb, &self.subject, failure);
        let reason = ConditionReason::of_refusal(failure.reason);
        if self.verb == Verb::Add && reason.is_some_and(ConditionReason::is_of_host) {
            self.dpu.report_failed_add(&self.subject, failure);
        }
    }

    /// The work has answered its caller: an ADD has succeeded.
    fn note_answered(&self) {
        if self.verb == Verb::Add {
            self.failures.note_add();
        }
    }
}

/// What came of the work, for whom also its own failure is an answer.
async fn of_ended(
    call: &CallNotes,
    caller: &Caller,
    ended: Result<Option<Reason>, JoinError>,
) -> Option<Reason> {
    match ended {
        Ok(refusal) => refusal,
        Err(error) => tell(call, caller, refused(defect(&error))).await,
    }
}

/// Answers, if somebody still waits, and returns why it was refused.
async fn tell(call: &CallNotes, caller: &Caller, answer: Answer) -> Option<Reason> {
    call.note(&answer);
    let refusal = answer.refusal();
    if let Err(failure) = caller.answer(answer).await {
        tracing::debug!("nobody was answered: {failure}");
    }
    refusal
}

fn late() -> Failure {
    Failure::new(Reason::DeadlineExceeded, "the agent is still at work on the call")
}

/// What is told of a failure, which the log has, too.
pub(super) fn refused(failure: Failure) -> Answer {
    tracing::info!(reason = %failure.reason, "refused: {failure}");
    failure.into()
}
