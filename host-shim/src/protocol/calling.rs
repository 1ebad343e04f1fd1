//! The plugin's side of a call: connect, wait, detect a silent agent, retry while the agent restarts.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use serde::{Serialize, de::DeserializeOwned};

use super::{Asked, Call, DOCUMENT_LIMIT, END_OF_ANSWER, Reply, Report, SILENCE, decode};

/// The agent wrote no heartbeat for [`SILENCE`].
#[derive(Debug, thiserror::Error)]
#[error("sends no heartbeat, so it may be suspended")]
pub struct Silent;

/// How long the plugin waits by default for an agent that restarts. Restarts are shorter, unless systemd does not hold
/// the socket and the agent starts slowly.
pub const AGENT_RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// A call that fails after this time had a running agent: its absence is counted from that failure.
const RUNNING_AGENT: Duration = Duration::from_secs(1);
/// How long the plugin waits before it reports that it waits. Most restarts are shorter.
const QUIET: Duration = Duration::from_secs(1);
/// The timeout of the last read after the deadline: a socket timeout of 0 would mean none.
const LAST_READ: Duration = Duration::from_millis(1);
/// The interval between attempts to reach the agent.
const LOOK: Duration = Duration::from_millis(50);

/// Calls the agent at `socket` and waits for its answer until the call's deadline, as long as the agent sends
/// heartbeats. An agent that is away is waited for as long as `agent_return`. `report_waiting` is called once if the call
/// waits for more than a moment. A call that a stopping agent dropped is repeated: requests are idempotent.
///
/// # Errors
/// Failures of connect, send, receive or decode; [`Silent`] within [`io::ErrorKind::TimedOut`].
pub fn call(
    socket: &Path,
    mut call: Call,
    agent_return: Duration,
    report_waiting: impl FnOnce(&io::Error),
) -> io::Result<Reply> {
    let deadline = Instant::now() + Duration::from_millis(call.deadline_ms);
    let (mut away_since, mut report_waiting) = (None, Some(report_waiting));
    loop {
        let asked = Instant::now();
        let error = match ask(socket, &call, deadline, SILENCE) {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let now = Instant::now();
        // A call that ran for a while had an agent, so the absence starts with this failure.
        away_since = away_since.filter(|_| now - asked < RUNNING_AGENT);
        let since = *away_since.get_or_insert(now);
        let is_over = now + LOOK >= deadline || now + LOOK - since >= agent_return;
        if !is_of_a_restart(&error) || is_over {
            return Err(error);
        }
        if now - since >= QUIET
            && let Some(report) = report_waiting.take()
        {
            report(&error);
        }
        thread::park_timeout(LOOK);
        let left = deadline.saturating_duration_since(Instant::now());
        call.deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    }
}

/// Whether a restart of the agent explains the error: no socket, no listener, or a connection closed without an answer.
fn is_of_a_restart(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}

/// Asks the agent at `socket` for its report and waits up to `timeout`.
///
/// # Errors
/// Failures of connect, send, receive or decode.
pub fn ask_report(socket: &Path, timeout: Duration) -> io::Result<Report> {
    let call = Call::new(timeout, Asked::Report);
    ask(socket, &call, Instant::now() + timeout, timeout)
}

fn ask<Q: Serialize, A: DeserializeOwned>(
    socket: &Path,
    call: &Call<Q>,
    deadline: Instant,
    silence: Duration,
) -> io::Result<A> {
    let stream = connect(socket, deadline)?;
    let mut connection = CallConnection { stream, deadline, silence, last_byte_at: Instant::now() };
    connection.write_all(&serde_json::to_vec(call)?)?;
    // End of file means that the request is complete.
    connection.stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    BufReader::new(connection.take(DOCUMENT_LIMIT)).read_until(END_OF_ANSWER, &mut answer)?;
    decode(&answer)
}

/// Connects; the agent's queue may be full. Connects even after the deadline, for example after a suspend: a missing
/// agent is a better error than a timeout.
fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let unix = AddressFamily::Unix;
    let socket = socket::socket(unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(remaining(deadline).unwrap_or(LAST_READ)))?;
    // `connect` on a Unix socket waits for a place in the backlog, and SO_SNDTIMEO limits that wait.
    socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// A connection with a deadline for the whole call and a timeout for each silence.
struct CallConnection {
    stream: UnixStream,
    deadline: Instant,
    /// The longest time without a byte.
    silence: Duration,
    last_byte_at: Instant,
}

impl Read for CallConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let silent_at = self.last_byte_at + self.silence;
        let end = self.deadline.min(silent_at);
        // Data that arrived while this process was suspended is read, however late that is.
        let left = remaining(end).unwrap_or(LAST_READ);
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(buffer) {
            Err(error) if is_timeout(&error) && end == silent_at => {
                Err(io::Error::new(io::ErrorKind::TimedOut, Silent))
            }
            read => {
                self.last_byte_at = Instant::now();
                read
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Write for CallConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixListener, sync::mpsc};

    use nix::sys::socket::Backlog;
    use test_clock::Stopwatch;

    use super::*;
    use crate::protocol::tests::within;

    fn call_quietly(socket: &Path, asked: Call) -> io::Result<Reply> {
        call(socket, asked, AGENT_RETURN_TIMEOUT, |_| ())
    }

    fn status() -> Call {
        within(5000)
    }

    /// Answers one call with `answer` and returns the call.
    fn agent(socket: &Path, answer: &'static [u8]) -> thread::JoinHandle<Vec<u8>> {
        let listener = UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            stream.read_to_end(&mut asked).unwrap();
            stream.write_all(answer).unwrap();
            asked
        })
    }

    #[test]
    fn agent_answers_a_call() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let agent = agent(&socket, br#"   {"outcome":"done"}"#);
        assert!(matches!(call_quietly(&socket, status()).unwrap(), Reply::Done { .. }));
        assert_eq!(agent.join().unwrap(), br#"{"deadline_ms":5000,"verb":"status"}"#);
    }

    #[test]
    fn answer_during_callers_suspend_is_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let long_ago = Instant::now().checked_sub(SILENCE * 2).unwrap();
        let mut line = CallConnection {
            stream: ours,
            deadline: long_ago,
            silence: SILENCE,
            last_byte_at: long_ago,
        };
        theirs.write_all(b"x").unwrap();
        assert_eq!(line.read(&mut [0; 8]).unwrap(), 1);
        assert!(is_timeout(&line.read(&mut [0; 8]).unwrap_err()));
    }

    #[test]
    fn malformed_agent_answer_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let agent = agent(&socket, br#"{"outcome":"do"#);
        assert_eq!(call_quietly(&socket, status()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        agent.join().unwrap();
    }

    /// An agent that ends without accepting, or without answering, and is then replaced. The next agent finds the old
    /// socket only if `leaves_its_socket`.
    fn replaced(accepts: bool, leaves_its_socket: bool) -> io::Result<Reply> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let first = UnixListener::bind(&socket).unwrap();
        let there = socket.clone();
        let replacement = thread::spawn(move || {
            let (mut stream, _) = first.accept().unwrap();
            let mut asked = Vec::new();
            if accepts {
                stream.read_to_end(&mut asked).unwrap();
            }
            if !leaves_its_socket {
                fs::remove_file(&there).unwrap();
            }
            drop((first, stream));
            let _ = fs::remove_file(&there);
            agent(&there, br#"{"outcome":"done"}"#).join().unwrap()
        });
        let reply = call_quietly(&socket, status());
        let asked: Call = decode(&replacement.join().unwrap())?;
        assert!(asked.deadline_ms < status().deadline_ms, "the deadline stays the same");
        reply
    }

    #[test]
    fn call_is_repeated_to_a_replaced_agent() {
        for (accepts, leaves_its_socket) in
            [(true, false), (true, true), (false, false), (false, true)]
        {
            let reply = replaced(accepts, leaves_its_socket);
            assert!(
                matches!(reply, Ok(Reply::Done { .. })),
                "{accepts} {leaves_its_socket} {reply:?}"
            );
        }
    }

    #[test]
    fn long_wait_for_agent_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let (began, mut reported) = (Stopwatch::start(), None);
        let tell =
            |error: &io::Error| reported = Some((error.kind(), began.elapsed(), began.unstalled()));
        assert!(call(&socket, status(), 2 * QUIET, tell).is_err());
        let (kind, after, unstalled) = reported.expect("no failure is reported");
        assert_eq!(kind, io::ErrorKind::NotFound);
        assert!(after >= QUIET && unstalled < AGENT_RETURN_TIMEOUT, "{after:?}");
    }

    #[test]
    fn call_waits_for_an_absent_agent() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| call_quietly(&socket, status()));
            // The order of connect and bind does not matter, and a waiting call cannot be observed.
            let agent = agent(&socket, br#"{"outcome":"done"}"#);
            assert!(matches!(waiting.join().unwrap(), Ok(Reply::Done { .. })));
            agent.join().unwrap();
        });
    }

    #[test]
    fn unanswered_call_ends_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = call_quietly(&socket, within(20)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }

    #[test]
    fn suspended_agent_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let begun = Stopwatch::start();
        let (silence, deadline) =
            (Duration::from_millis(200), Instant::now() + Duration::from_secs(600));
        let answer: io::Result<Reply> = ask(&socket, &within(600_000), deadline, silence);
        let error = answer.unwrap_err();
        assert_eq!(error.to_string(), Silent.to_string());
        assert!(begun.elapsed() >= silence);
        assert!(begun.unstalled() < 10 * silence, "{:?}", begun.unstalled());
    }

    /// The number of bytes that a slow agent sends, one per [`DRIP`].
    const DRIPS: u32 = 500;

    const DRIP: Duration = Duration::from_millis(10);

    #[test]
    fn slow_answer_ends_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (_caller, hung_up) = mpsc::channel::<()>();
            for _ in 0..DRIPS {
                if stream.write_all(b" ").is_err() {
                    return;
                }
                let _ = hung_up.recv_timeout(DRIP);
            }
        });
        let begun = Stopwatch::start();
        let error = call_quietly(&socket, within(200)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        assert!(begun.unstalled() < DRIPS * DRIP, "{:?}", begun.unstalled());
        agent.join().unwrap();
    }

    #[test]
    fn full_backlog_ends_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&socket).unwrap();
        let error = call_quietly(&socket, within(50)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }

    #[test]
    fn absent_agent_is_waited_for_as_configured() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none");
        let waits = |patience_ms, agent_return_ms| {
            let begun = Stopwatch::start();
            let agent_return = Duration::from_millis(agent_return_ms);
            call(&socket, within(patience_ms), agent_return, |_| ()).unwrap_err();
            begun
        };
        assert!(waits(60_000, 0).unstalled() < AGENT_RETURN_TIMEOUT);
        assert!(waits(60_000, 200).elapsed() >= Duration::from_millis(200) - LOOK);
        assert!(
            waits(200, 3_600_000).unstalled() < AGENT_RETURN_TIMEOUT,
            "but never beyond the deadline"
        );
    }

    #[test]
    fn absent_agent_is_reported_after_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let error = call_quietly(&folder.path().join("none"), within(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn error_names_the_missing_agent() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none");
        let begun = Stopwatch::start();
        let error = call(&socket, within(60_000), Duration::from_millis(300), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(begun.unstalled() < AGENT_RETURN_TIMEOUT, "{:?}", begun.unstalled());
        drop(UnixListener::bind(&socket).unwrap());
        let deserted = call_quietly(&socket, within(200)).unwrap_err();
        assert_eq!(deserted.kind(), io::ErrorKind::ConnectionRefused, "not the deadline");
    }
}
