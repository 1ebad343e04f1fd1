//! Who waits for the answer to a call, and whether still.
//!
//! There are two lines to callers: the plugin has a [connection](plugin) for each call, and who is no plugin has a
//! [task](task) of the agent wait for it.

mod answer;
mod form;
mod plugin;
mod task;

use std::{
    convert::Infallible,
    future::pending,
    io,
    time::{Duration, Instant},
};

use offload_proto::{Failure, Reason};
use tokio::{
    net::UnixStream,
    sync::Mutex,
    time::{MissedTickBehavior, interval, timeout},
};

use super::defect::defect;
use crate::protocol::HEARTBEAT_INTERVAL;

pub(super) use answer::Answer;
pub(super) use form::Form;
use plugin::PluginLine;
pub(super) use task::Ear;
use task::TaskLine;

/// How long an answer may take to be taken by the kernel: one that fits into the socket takes no time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long a caller may take to end once it was answered. One that takes longer lives, and will read it.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Who waits for the answer to a call.
#[derive(Debug)]
pub(super) struct Caller {
    line: Line,
    deadline: Instant,
    /// Whether it was answered, well or not. Held while something is said.
    answered: Mutex<bool>,
}

/// How a caller is reached.
#[derive(Debug)]
enum Line {
    Plugin(PluginLine),
    Task(TaskLine),
}

impl Caller {
    /// A plugin, or a program in its place, that has called by `stream`, and waits until `deadline`.
    ///
    /// # Errors
    /// When the connection can't be watched.
    pub(super) fn plugin(stream: UnixStream, form: Form, deadline: Instant) -> io::Result<Self> {
        Ok(Self::new(Line::Plugin(PluginLine::new(stream, form)?), deadline))
    }

    /// A task that waits until `deadline`, and what it hears the answer by.
    pub(super) fn task(deadline: Instant) -> (Self, Ear) {
        let (line, ear) = task::line();
        (Self::new(Line::Task(line), deadline), ear)
    }

    fn new(line: Line, deadline: Instant) -> Self {
        Self { line, deadline, answered: Mutex::new(false) }
    }

    /// When it is told that there is no answer yet.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether an answer would be heard.
    ///
    /// # Errors
    /// Why nobody waits for it any more.
    pub(super) fn is_waiting(&self) -> Result<(), Failure> {
        if self.line.has_ended().map_err(|error| defect(&error))? {
            return Err(hung_up());
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(too_late()),
        }
    }

    /// Waits until the caller has ended, and tells that.
    pub(super) async fn hangup(&self) -> Failure {
        match self.line.ended().await {
            Ok(()) => hung_up(),
            Err(error) => defect(&error),
        }
    }

    /// Tells a plugin that the work goes on, again and again.
    pub(super) async fn keep_company(&self) -> Infallible {
        let Line::Plugin(line) = &self.line else { return pending().await };
        let mut beats = interval(HEARTBEAT_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let answered = self.answered.lock().await;
            if !*answered && let Err(error) = line.beat().await {
                tracing::debug!(%error, "a caller has gone");
            }
        }
    }

    /// Answers, if somebody waits. Once it has, the caller can have heard it.
    ///
    /// # Errors
    /// Nobody has heard it.
    pub(super) async fn answer(&self, answer: Answer) -> Result<(), Failure> {
        self.answer_if(answer, Self::is_waiting).await
    }

    /// Tells that there is no answer, and none to come, unless it was answered just now. The work goes
    /// on, and holds the connection: so its end is told.
    ///
    /// # Errors
    /// Nobody has heard it.
    pub(super) async fn give_up(&self, answer: Answer) -> Result<(), Failure> {
        self.answer_if(answer, |_| Ok(())).await?;
        match &self.line {
            Line::Plugin(line) => line.close().map_err(|_| hung_up()),
            Line::Task(_) => Ok(()),
        }
    }

    /// Whether a caller that was answered has heard it, as far as that can be known; waited for it to end.
    ///
    /// # Errors
    /// It ended, as by being killed, without having heard the answer.
    pub(super) async fn has_heard(&self) -> Result<(), Failure> {
        let heard = match &self.line {
            Line::Plugin(line) => line.has_heard().await.map_err(|error| defect(&error))?,
            Line::Task(_) => true,
        };
        if heard { Ok(()) } else { Err(hung_up()) }
    }

    async fn answer_if(
        &self,
        answer: Answer,
        is_allowed: impl Fn(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut answered = self.answered.lock().await;
        if *answered {
            return Err(too_late());
        }
        is_allowed(self)?;
        *answered = true;
        match timeout(WRITE_LIMIT, self.line.tell(answer)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(hung_up()),
        }
    }
}

impl Line {
    fn has_ended(&self) -> io::Result<bool> {
        match self {
            Self::Plugin(line) => line.has_ended(),
            Self::Task(line) => Ok(line.has_ended()),
        }
    }

    async fn ended(&self) -> io::Result<()> {
        match self {
            Self::Plugin(line) => line.ended().await,
            Self::Task(line) => {
                line.ended().await;
                Ok(())
            }
        }
    }

    async fn tell(&self, answer: Answer) -> io::Result<()> {
        match self {
            Self::Plugin(line) => line.tell(answer).await,
            Self::Task(line) => line.tell(answer).await,
        }
    }
}

fn hung_up() -> Failure {
    Failure::new(Reason::DeadlineExceeded, "whoever called has ended, and waits for no answer")
}

fn too_late() -> Failure {
    let message = "the time that the caller gave is over, and it waits for no answer";
    Failure::new(Reason::DeadlineExceeded, message)
}

#[cfg(test)]
pub(super) mod tests {
    use std::pin::pin;

    use test_clock::within;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A caller that waits for `patience`, and its own end of the connection.
    pub(in crate::agent) fn caller(patience: Duration) -> (Caller, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (Caller::plugin(ours, Form::Plain, Instant::now() + patience).unwrap(), theirs)
    }

    #[tokio::test]
    async fn a_caller_that_has_asked_is_there_until_it_ends() {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        assert!(within(Duration::from_millis(100), caller.hangup()).await.is_none());
        caller.is_waiting().unwrap();
        drop(plugin);
        let failure = within(LIMIT, caller.hangup()).await.unwrap();
        assert_eq!(failure.reason, Reason::DeadlineExceeded);
        assert_eq!(caller.is_waiting().unwrap_err().message, failure.message);
        assert!(caller.answer(Answer::Done).await.is_err());
    }

    #[tokio::test]
    async fn who_ends_without_having_heard_the_signs_of_life_has_ended() {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        assert!(within(Duration::from_millis(100), caller.keep_company()).await.is_none());
        drop(plugin);
        within(LIMIT, caller.hangup()).await.unwrap();
        assert!(caller.is_waiting().is_err());
    }

    #[tokio::test]
    async fn a_call_is_answered_once_and_the_first_answer_counts() {
        let (caller, mut plugin) = caller(LIMIT);
        assert!(within(Duration::from_millis(100), caller.keep_company()).await.is_none());
        caller.give_up(Answer::Done).await.unwrap();
        assert!(caller.answer(Answer::Done).await.is_err());
        assert!(within(Duration::from_millis(100), caller.keep_company()).await.is_none());
        let mut heard = String::new();
        plugin.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, " {\"outcome\":\"done\"}\n");
    }

    /// What becomes known of a caller that ends while that is waited for, having read so much.
    async fn heard(count: usize) -> Result<(), Failure> {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        caller.answer(Answer::Done).await.unwrap();
        plugin.read_exact(&mut vec![0; count]).await.unwrap();
        let mut hearing = pin!(caller.has_heard());
        assert!(within(Duration::from_millis(50), &mut hearing).await.is_none(), "it lives");
        drop(plugin);
        hearing.await
    }

    #[tokio::test]
    async fn who_ends_with_its_answer_unread_has_not_heard_it() {
        let whole = r#"{"outcome":"done"}"#.len() + 1;
        for unread in [whole, 1] {
            assert_eq!(heard(whole - unread).await.unwrap_err().reason, Reason::DeadlineExceeded);
        }
        heard(whole).await.unwrap();
    }

    #[tokio::test]
    async fn who_lives_on_has_heard_its_answer() {
        let (caller, _plugin) = caller(LIMIT);
        caller.answer(Answer::Done).await.unwrap();
        caller.has_heard().await.unwrap();
    }

    #[tokio::test]
    async fn nobody_is_answered_past_the_deadline() {
        let (caller, _plugin) = caller(Duration::ZERO);
        assert!(caller.is_waiting().is_err());
        assert!(caller.answer(Answer::Done).await.is_err());
        caller.give_up(Answer::Done).await.unwrap();
    }

    #[tokio::test]
    async fn a_task_waits_until_it_ends_and_has_heard_what_it_took() {
        let (caller, ear) = Caller::task(Instant::now() + LIMIT);
        caller.is_waiting().unwrap();
        let (answered, heard) = tokio::join!(caller.answer(Answer::Done), ear.hear());
        answered.unwrap();
        caller.has_heard().await.unwrap();
        assert!(matches!(heard, Some(Answer::Done)));
        assert!(within(LIMIT, caller.hangup()).await.is_some());
    }

    #[tokio::test]
    async fn a_task_that_ends_with_its_answer_untaken_has_not_heard_it() {
        let (caller, ear) = Caller::task(Instant::now() + LIMIT);
        let mut answering = pin!(caller.answer(Answer::Done));
        assert!(within(Duration::from_millis(50), &mut answering).await.is_none(), "it lives");
        drop(ear);
        assert_eq!(answering.await.unwrap_err().reason, Reason::DeadlineExceeded);
        assert!(caller.is_waiting().is_err());
    }

    #[tokio::test]
    async fn a_task_whose_caller_is_gone_waits_no_more() {
        let (caller, ear) = Caller::task(Instant::now() + LIMIT);
        drop(caller);
        assert!(ear.hear().await.is_none());
    }
}
