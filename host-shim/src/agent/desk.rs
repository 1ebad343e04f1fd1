//! How calls are answered, by whichever door they come: each in its turn, no longer than its caller waits, and counted.

use std::{sync::Arc, time::Instant};

use metrics::{Calls, OK};
use offload_proto::{Failure, Reason};
use tokio::{sync::Semaphore, task::JoinError, time::sleep_until};
use tokio_util::task::TaskTracker;

use super::{
    caller::{Answer, Caller},
    defect::defect,
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
}

/// A call, as a person is told of it.
#[derive(Clone, Debug)]
struct Named {
    verb: Verb,
    /// Whom it is about.
    subject: String,
    failures: Arc<Failures>,
}

impl Desk {
    /// One that answers at most `limit` calls at a time, and counts them among `calls`. Their work is among `tasks`.
    pub(super) fn new(tasks: TaskTracker, limit: usize, calls: Arc<Calls>) -> Self {
        Self { tasks, turns: Arc::new(Semaphore::new(limit)), calls, failures: Arc::default() }
    }

    /// The latest calls that were refused or failed.
    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Has the work done that a call about `subject` asks for, and tells its caller what comes of it. Work that ends without an answer
    /// has answered. Returns once the caller was told, and the work may go on.
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
        let call = Named { verb, subject, failures: Arc::clone(&self.failures) };
        let named = call.clone();
        // A task of its own: a caller that ends does not stop the work in the middle.
        let mut work = self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            match asker.is_waiting() {
                Ok(()) => tell(&named, &asker, work.await?).await,
                Err(failure) => tell(&named, &asker, refused(failure)).await,
            }
        });
        let refusal = tokio::select! {
            biased;
            ended = &mut work => of_ended(&call, caller, ended).await,
            never = caller.keep_company() => match never {},
            () = sleep_until(caller.deadline().into()) => {
                let late = refused(late());
                call.note(&late);
                let refusal = late.refusal();
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

impl Named {
    fn note(&self, answer: &Answer) {
        if let Answer::Refused { failure, .. } = answer {
            self.failures.note(self.verb, &self.subject, failure);
        }
    }
}

/// What came of the work, for whom also its own failure is an answer.
async fn of_ended(
    call: &Named,
    caller: &Caller,
    ended: Result<Option<Reason>, JoinError>,
) -> Option<Reason> {
    match ended {
        Ok(refusal) => refusal,
        Err(error) => tell(call, caller, refused(defect(&error))).await,
    }
}

/// Answers, if somebody still waits, and returns why it was refused.
async fn tell(call: &Named, caller: &Caller, answer: Answer) -> Option<Reason> {
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
