//! The caller of a call: where the answer goes, and whether the caller still waits.
//!
//! There are two kinds: the [plugin](plugin), with a connection for each call, and a [task](task) of the agent. The
//! mutex `answered` is held while something is written, so that heartbeats and the answer do not interleave.

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
use plugin::PluginCall;
pub(super) use task::AnswerReceiver;
use task::TaskCall;

/// How long writing an answer may take. An answer that fits into the socket's buffer takes no time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Caller {
    call: CallKind,
    deadline: Instant,
    /// Whether the call was answered. Locked while something is written.
    answered: Mutex<bool>,
}

#[derive(Debug)]
enum CallKind {
    Plugin(PluginCall),
    Task(TaskCall),
}

impl Caller {
    /// A plugin, or another program on the agent's socket, that waits until `deadline`.
    ///
    /// # Errors
    /// The connection cannot be watched.
    pub(super) fn plugin(stream: UnixStream, form: Form, deadline: Instant) -> io::Result<Self> {
        Ok(Self::new(CallKind::Plugin(PluginCall::new(stream, form)?), deadline))
    }

    /// A task that waits until `deadline`, and the receiver of its answer.
    pub(super) fn task(deadline: Instant) -> (Self, AnswerReceiver) {
        let (call, receiver) = task::call();
        (Self::new(CallKind::Task(call), deadline), receiver)
    }

    fn new(call: CallKind, deadline: Instant) -> Self {
        Self { call, deadline, answered: Mutex::new(false) }
    }

    /// When the caller gets the answer that there is no result yet.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the caller still waits.
    ///
    /// # Errors
    /// The caller exited, or its deadline has passed.
    pub(super) fn is_waiting(&self) -> Result<(), Failure> {
        if self.call.has_ended().map_err(|error| defect(&error))? {
            return Err(hung_up());
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(too_late()),
        }
    }

    /// Waits until the caller exits.
    pub(super) async fn hangup(&self) -> Failure {
        match self.call.ended().await {
            Ok(()) => hung_up(),
            Err(error) => defect(&error),
        }
    }

    /// Writes a heartbeat every second to a plugin, so that it does not time out.
    pub(super) async fn send_heartbeats(&self) -> Infallible {
        let CallKind::Plugin(call) = &self.call else { return pending().await };
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        // After a suspend one heartbeat is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Held during the write, so that a heartbeat never gets into the answer.
            let answered = self.answered.lock().await;
            if !*answered && let Err(error) = call.send_heartbeat().await {
                tracing::debug!(%error, "cannot send a heartbeat: the caller is gone");
            }
        }
    }

    /// Answers the caller if it still waits.
    ///
    /// # Errors
    /// The caller did not get the answer.
    pub(super) async fn answer(&self, answer: Answer) -> Result<(), Failure> {
        self.answer_if(answer, Self::is_waiting).await
    }

    /// Answers that there is no result yet, unless the call was answered already. The work goes on and keeps the
    /// connection open, so the connection is shut down here.
    ///
    /// # Errors
    /// The caller did not get the answer.
    pub(super) async fn give_up(&self, answer: Answer) -> Result<(), Failure> {
        self.answer_if(answer, |_| Ok(())).await?;
        match &self.call {
            CallKind::Plugin(call) => call.close().map_err(|_| hung_up()),
            CallKind::Task(_) => Ok(()),
        }
    }

    /// Waits until an answered caller exits, and reports whether it received the answer, as far as that can be known.
    ///
    /// # Errors
    /// The caller exited, for example by being killed, without the answer.
    pub(super) async fn has_received(&self) -> Result<(), Failure> {
        let received = match &self.call {
            CallKind::Plugin(call) => call.has_received().await.map_err(|error| defect(&error))?,
            CallKind::Task(_) => true,
        };
        if received { Ok(()) } else { Err(hung_up()) }
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
        // Before the write: after a partial one, another answer must not follow.
        *answered = true;
        match timeout(WRITE_LIMIT, self.call.send(answer)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(hung_up()),
        }
    }
}

impl CallKind {
    fn has_ended(&self) -> io::Result<bool> {
        match self {
            Self::Plugin(call) => call.has_ended(),
            Self::Task(call) => Ok(call.has_ended()),
        }
    }

    async fn ended(&self) -> io::Result<()> {
        match self {
            Self::Plugin(call) => call.ended().await,
            Self::Task(call) => {
                call.ended().await;
                Ok(())
            }
        }
    }

    async fn send(&self, answer: Answer) -> io::Result<()> {
        match self {
            Self::Plugin(call) => call.send(answer).await,
            Self::Task(call) => call.send(answer).await,
        }
    }
}

fn hung_up() -> Failure {
    Failure::new(Reason::DeadlineExceeded, "the caller has exited and does not wait for an answer")
}

fn too_late() -> Failure {
    let message = "the caller's deadline has passed, and it does not wait for an answer";
    Failure::new(Reason::DeadlineExceeded, message)
}

#[cfg(test)]
pub(super) mod tests {
    use std::pin::pin;

    use test_clock::within;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A caller that waits for `timeout`, and its end of the connection.
    pub(in crate::agent) fn caller(timeout: Duration) -> (Caller, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (Caller::plugin(ours, Form::Plain, Instant::now() + timeout).unwrap(), theirs)
    }

    #[tokio::test]
    async fn caller_waits_until_it_exits() {
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
    async fn exited_caller_with_unread_heartbeats_is_noticed() {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        assert!(within(Duration::from_millis(100), caller.send_heartbeats()).await.is_none());
        drop(plugin);
        within(LIMIT, caller.hangup()).await.unwrap();
        assert!(caller.is_waiting().is_err());
    }

    #[tokio::test]
    async fn call_is_answered_once() {
        let (caller, mut plugin) = caller(LIMIT);
        assert!(within(Duration::from_millis(100), caller.send_heartbeats()).await.is_none());
        caller.give_up(Answer::Done).await.unwrap();
        assert!(caller.answer(Answer::Done).await.is_err());
        assert!(within(Duration::from_millis(100), caller.send_heartbeats()).await.is_none());
        let mut received = String::new();
        plugin.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, " {\"outcome\":\"done\"}\n");
    }

    /// What is known of a caller that reads `count` bytes of its answer and exits.
    async fn after_reading(count: usize) -> Result<(), Failure> {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        caller.answer(Answer::Done).await.unwrap();
        plugin.read_exact(&mut vec![0; count]).await.unwrap();
        let mut hearing = pin!(caller.has_received());
        assert!(within(Duration::from_millis(50), &mut hearing).await.is_none(), "it lives");
        drop(plugin);
        hearing.await
    }

    #[tokio::test]
    async fn exit_with_unread_answer_is_a_failure() {
        let whole = r#"{"outcome":"done"}"#.len() + 1;
        for unread in [whole, 1] {
            assert_eq!(
                after_reading(whole - unread).await.unwrap_err().reason,
                Reason::DeadlineExceeded
            );
        }
        after_reading(whole).await.unwrap();
    }

    #[tokio::test]
    async fn living_caller_received_its_answer() {
        let (caller, _plugin) = caller(LIMIT);
        caller.answer(Answer::Done).await.unwrap();
        caller.has_received().await.unwrap();
    }

    #[tokio::test]
    async fn no_answer_after_the_deadline() {
        let (caller, _plugin) = caller(Duration::ZERO);
        assert!(caller.is_waiting().is_err());
        assert!(caller.answer(Answer::Done).await.is_err());
        caller.give_up(Answer::Done).await.unwrap();
    }

    #[tokio::test]
    async fn task_receives_its_answer() {
        let (caller, receiver) = Caller::task(Instant::now() + LIMIT);
        caller.is_waiting().unwrap();
        let (answered, received) = tokio::join!(caller.answer(Answer::Done), receiver.receive());
        answered.unwrap();
        caller.has_received().await.unwrap();
        assert!(matches!(received, Some(Answer::Done)));
        assert!(within(LIMIT, caller.hangup()).await.is_some());
    }

    #[tokio::test]
    async fn task_that_ends_misses_its_answer() {
        let (caller, receiver) = Caller::task(Instant::now() + LIMIT);
        let mut answering = pin!(caller.answer(Answer::Done));
        assert!(within(Duration::from_millis(50), &mut answering).await.is_none(), "it lives");
        drop(receiver);
        assert_eq!(answering.await.unwrap_err().reason, Reason::DeadlineExceeded);
        assert!(caller.is_waiting().is_err());
    }

    #[tokio::test]
    async fn task_without_caller_gets_no_answer() {
        let (caller, receiver) = Caller::task(Instant::now() + LIMIT);
        drop(caller);
        assert!(receiver.receive().await.is_none());
    }
}
