//! Runs calls of all entrances: at most a number of them at a time, no longer than the caller waits, and counts them.
//!
//! A semaphore holds the turns. Each call's work is a task of its own, so that a caller that exits does not stop it
//! halfway.

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

/// Runs calls. Clones share turns and counters.
#[derive(Clone, Debug)]
pub(super) struct Dispatcher {
    tasks: TaskTracker,
    turns: Arc<Semaphore>,
    calls: Arc<Calls>,
    failures: Arc<Failures>,
    dpu: Arc<Dpu>,
}

/// Where a call's outcome is recorded, and the call's subject.
#[derive(Clone, Debug)]
struct CallNotes {
    verb: Verb,
    /// The pod or attachment of the call.
    subject: String,
    failures: Arc<Failures>,
    /// Receives reports of ADDs that failed on this host.
    dpu: Arc<Dpu>,
}

impl Dispatcher {
    /// Creates a dispatcher that runs at most `limit` calls at a time and counts them in `calls`. Their work is tracked
    /// in `tasks`.
    pub(super) fn new(tasks: TaskTracker, limit: usize, calls: Arc<Calls>, dpu: Arc<Dpu>) -> Self {
        let (turns, failures) = (Arc::new(Semaphore::new(limit)), Arc::default());
        Self { tasks, turns, calls, failures, dpu }
    }

    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Runs the work of a call about `subject` and answers its caller. Work without a result has answered the caller
    /// itself. Returns once the caller was answered; the work may go on.
    ///
    /// A call whose caller stopped waiting in the queue is not started: the caller may have called again.
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
        // A task of its own: a caller that exits does not stop the work halfway.
        let mut work = self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            match asker.is_waiting() {
                Ok(()) => match work.await {
                    Some(answer) => answer_caller(&named, &asker, answer).await,
                    None => {
                        named.note_answered();
                        None
                    }
                },
                Err(failure) => answer_caller(&named, &asker, refused(failure)).await,
            }
        });
        let refusal = tokio::select! {
            biased;
            // First, because of `biased`: a result that arrives at the deadline is delivered.
            ended = &mut work => of_ended(&call, caller, ended).await,
            never = caller.send_heartbeats() => match never {},
            () = sleep_until(caller.deadline().into()) => {
                let why = "the agent still works on the call";
                let late = refused(Failure::new(Reason::DeadlineExceeded, why));
                let refusal = late.refusal();
                // The work goes on; its task records the outcome.
                match caller.give_up(late).await {
                    Ok(()) => refusal,
                    // The work has answered the caller already, or the caller has exited.
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

    /// The work has answered the caller, so an ADD has succeeded.
    fn note_answered(&self) {
        if self.verb == Verb::Add {
            self.failures.note_add();
        }
    }
}

/// The outcome of the work. A panic is answered as a failure.
async fn of_ended(
    call: &CallNotes,
    caller: &Caller,
    ended: Result<Option<Reason>, JoinError>,
) -> Option<Reason> {
    match ended {
        Ok(refusal) => refusal,
        Err(error) => answer_caller(call, caller, refused(defect(&error))).await,
    }
}

/// Answers the caller if it still waits, and returns the reason of a refusal.
async fn answer_caller(call: &CallNotes, caller: &Caller, answer: Answer) -> Option<Reason> {
    call.note(&answer);
    let refusal = answer.refusal();
    if let Err(failure) = caller.answer(answer).await {
        tracing::debug!(%failure, "the answer did not reach the caller");
    }
    refusal
}

/// Logs a failure and returns it as the answer.
pub(super) fn refused(failure: Failure) -> Answer {
    tracing::info!(reason = %failure.reason, %failure, "a call was refused");
    failure.into()
}
