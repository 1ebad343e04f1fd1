//! Who waits for the answer to a call, and whether still.
//!
//! The plugin shuts its half of the connection down as soon as it has asked, so that the end of its
//! words says nothing. Once it has ended, be it killed, the other half is shut as well, which the
//! kernel tells as a hangup.

use std::{
    convert::Infallible,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{Shutdown, shutdown},
};
use offload_proto::{Failure, Reason};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
    sync::Mutex,
    time::{MissedTickBehavior, interval, timeout},
};

use super::defect::defect;
use crate::protocol::{BEAT, END_OF_ANSWER, Reply, SIGN_OF_LIFE};

/// How long an answer may take to be taken by the kernel: one that fits into the socket takes no time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long a caller may take to end once it was answered. One that takes longer lives, and will read it.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Who waits for the answer to a call.
#[derive(Debug)]
pub(super) struct Caller {
    stream: UnixStream,
    /// The same connection, watched for its end alone.
    end: AsyncFd<OwnedFd>,
    deadline: Instant,
    /// Whether it was answered, well or not. Held while something is written.
    answered: Mutex<bool>,
}

impl Caller {
    /// Who has called by `stream`, and waits until `deadline`.
    ///
    /// # Errors
    /// When the connection can't be watched.
    pub(super) fn new(stream: UnixStream, deadline: Instant) -> io::Result<Self> {
        let end = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { stream, end: watch(end)?, deadline, answered: Mutex::new(false) })
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
        if self.has_hung_up()? {
            return Err(hung_up());
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(too_late()),
        }
    }

    fn has_hung_up(&self) -> Result<bool, Failure> {
        let mut look = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        poll(&mut look, PollTimeout::ZERO).map_err(|error| defect(&error))?;
        let found = look[0].revents().unwrap_or(PollFlags::empty());
        Ok(found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    /// Waits until the caller has ended, and tells that.
    pub(super) async fn hangup(&self) -> Failure {
        match self.end.ready(Interest::PRIORITY).await {
            Ok(_) => hung_up(),
            Err(error) => defect(&error),
        }
    }

    /// Tells the caller that the work goes on, again and again.
    pub(super) async fn keep_company(&self) -> Infallible {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let answered = self.answered.lock().await;
            if !*answered && let Err(error) = self.write(SIGN_OF_LIFE).await {
                tracing::debug!(%error, "a caller has gone");
            }
        }
    }

    /// Answers, if somebody waits. Once it has, the caller can have heard it.
    ///
    /// # Errors
    /// Nobody has heard it.
    pub(super) async fn answer(&self, reply: &Reply) -> Result<(), Failure> {
        self.answer_if(reply, Self::is_waiting).await
    }

    /// Tells that there is no answer, and none to come, unless it was answered just now. The work goes
    /// on, and holds the connection: so its end is told.
    ///
    /// # Errors
    /// Nobody has heard it.
    pub(super) async fn give_up(&self, reply: &Reply) -> Result<(), Failure> {
        self.answer_if(reply, |_| Ok(())).await?;
        shutdown(self.stream.as_raw_fd(), Shutdown::Write).map_err(|_| hung_up())
    }

    /// Waits until a caller that was answered ends, and tells whether it had read the answer: the kernel
    /// resets the connection of one that ends with something unread. Our half stays open until then:
    /// with both halves shut, its end would be told at once.
    ///
    /// # Errors
    /// It ended, as by being killed, without having read the answer.
    pub(super) async fn has_heard(&self) -> Result<(), Failure> {
        if timeout(END_LIMIT, self.end.ready(Interest::PRIORITY)).await.is_err() {
            return Ok(());
        }
        match self.stream.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(hung_up()),
            Err(error) => Err(defect(&error)),
        }
    }

    async fn answer_if(
        &self,
        reply: &Reply,
        is_allowed: impl Fn(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut document = serde_json::to_vec(reply).map_err(|error| defect(&error))?;
        document.push(END_OF_ANSWER);
        let mut answered = self.answered.lock().await;
        if *answered {
            return Err(too_late());
        }
        is_allowed(self)?;
        *answered = true;
        match timeout(WRITE_LIMIT, self.write(&document)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(hung_up()),
        }
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Watches a socket for its hangup: such a one has nothing of priority, so that this is all that is left
/// to be told of it.
#[expect(deprecated, reason = "sound with an owned descriptor, and what replaces it is unsafe")]
fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, Interest::PRIORITY)
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

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A caller that waits for `patience`, and its own end of the connection.
    pub(in crate::agent) fn caller(patience: Duration) -> (Caller, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (Caller::new(ours, Instant::now() + patience).unwrap(), theirs)
    }

    #[tokio::test]
    async fn a_caller_that_has_asked_is_there_until_it_ends() {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        assert!(timeout(Duration::from_millis(100), caller.hangup()).await.is_err());
        caller.is_waiting().unwrap();
        drop(plugin);
        let failure = timeout(LIMIT, caller.hangup()).await.unwrap();
        assert_eq!(failure.reason, Reason::DeadlineExceeded);
        assert_eq!(caller.is_waiting().unwrap_err().message, failure.message);
        assert!(caller.answer(&Reply::Done).await.is_err());
    }

    #[tokio::test]
    async fn who_ends_without_having_heard_the_signs_of_life_has_ended() {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        assert!(timeout(Duration::from_millis(100), caller.keep_company()).await.is_err());
        drop(plugin);
        timeout(LIMIT, caller.hangup()).await.unwrap();
        assert!(caller.is_waiting().is_err());
    }

    #[tokio::test]
    async fn a_call_is_answered_once_and_the_first_answer_counts() {
        let (caller, mut plugin) = caller(LIMIT);
        assert!(timeout(Duration::from_millis(100), caller.keep_company()).await.is_err());
        caller.give_up(&Reply::Done).await.unwrap();
        assert!(caller.answer(&Reply::Done).await.is_err());
        assert!(timeout(Duration::from_millis(100), caller.keep_company()).await.is_err());
        let mut heard = String::new();
        plugin.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, " {\"outcome\":\"done\"}\n");
    }

    /// What becomes known of a caller that ends while that is waited for, having read so much.
    async fn heard(count: usize) -> Result<(), Failure> {
        let (caller, mut plugin) = caller(LIMIT);
        plugin.shutdown().await.unwrap();
        caller.answer(&Reply::Done).await.unwrap();
        plugin.read_exact(&mut vec![0; count]).await.unwrap();
        let mut hearing = pin!(caller.has_heard());
        assert!(timeout(Duration::from_millis(50), &mut hearing).await.is_err(), "it lives");
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
        caller.answer(&Reply::Done).await.unwrap();
        caller.has_heard().await.unwrap();
    }

    #[tokio::test]
    async fn nobody_is_answered_past_the_deadline() {
        let (caller, _plugin) = caller(Duration::ZERO);
        assert!(caller.is_waiting().is_err());
        assert!(caller.answer(&Reply::Done).await.is_err());
        caller.give_up(&Reply::Done).await.unwrap();
    }
}
