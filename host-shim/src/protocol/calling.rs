//! The plugin's call: to whom, for how long, and what it makes of silence.

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

use super::{Call, DOCUMENT_LIMIT, END_OF_ANSWER, Question, Reply, Report, SILENCE, decode};

/// The agent has given no sign of life for [`SILENCE`].
#[derive(Debug, thiserror::Error)]
#[error("says nothing, as one that is suspended")]
pub struct Silent;

/// How long the plugin waits for an agent that is being replaced, unless it is told otherwise: that is how long
/// it is away, but for one that systemd can't hold the socket for and that takes long to start.
pub const COMEBACK: Duration = Duration::from_secs(5);
/// A call that broke off after so long had an agent that was up: that one's absence is counted from then on.
const AT_WORK: Duration = Duration::from_secs(1);
/// How long the plugin waits before it says so: most restarts are over by then.
const QUIET: Duration = Duration::from_secs(1);
/// How long the last look at the connection takes, when the time is over.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// How often it looks whether the agent is back.
const LOOK: Duration = Duration::from_millis(50);

/// Calls the agent at `socket` and waits for its answer until the call's deadline, as long as the agent
/// gives signs of life. One that is away is waited for as long as `comeback`, and `tell_waiting` is told, once, what
/// hinders a call that waits for longer than a moment. A call that met an agent on its way out is made again:
/// whoever repeats a request gets what the first one got.
///
/// # Errors
/// Whatever connecting, sending, receiving or decoding fails with; [`Silent`] within one of kind
/// [`io::ErrorKind::TimedOut`].
pub fn call(
    socket: &Path,
    mut call: Call,
    comeback: Duration,
    tell_waiting: impl FnOnce(&io::Error),
) -> io::Result<Reply> {
    let deadline = Instant::now() + Duration::from_millis(call.deadline_ms);
    let (mut away_since, mut tell_waiting) = (None, Some(tell_waiting));
    loop {
        let asked = Instant::now();
        let error = match ask(socket, &call, deadline, SILENCE) {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let now = Instant::now();
        away_since = away_since.filter(|_| now - asked < AT_WORK);
        let since = *away_since.get_or_insert(now);
        let is_over = now + LOOK >= deadline || now + LOOK - since >= comeback;
        if !is_of_a_restart(&error) || is_over {
            return Err(error);
        }
        if now - since >= QUIET
            && let Some(tell) = tell_waiting.take()
        {
            tell(&error);
        }
        thread::park_timeout(LOOK);
        let left = deadline.saturating_duration_since(Instant::now());
        call.deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    }
}

/// Whether an agent that is being replaced causes it: there is no socket, nobody listens, or who did
/// went away without a word.
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

/// Asks the agent at `socket` how all is, and waits for its answer for as long as `patience`.
///
/// # Errors
/// Whatever connecting, sending, receiving or decoding fails with.
pub fn ask_report(socket: &Path, patience: Duration) -> io::Result<Report> {
    let call = Call::new(patience, Question::Report);
    ask(socket, &call, Instant::now() + patience, patience)
}

fn ask<Q: Serialize, A: DeserializeOwned>(
    socket: &Path,
    call: &Call<Q>,
    deadline: Instant,
    silence: Duration,
) -> io::Result<A> {
    let stream = connect(socket, deadline)?;
    let mut line = Line { stream, deadline, silence, heard: Instant::now() };
    line.write_all(&serde_json::to_vec(call)?)?;
    line.stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    BufReader::new(line.take(DOCUMENT_LIMIT)).read_until(END_OF_ANSWER, &mut answer)?;
    decode(&answer)
}

/// Connects, though it may have to wait for a place in the agent's queue. It is tried even when the time is over, as
/// it is for a caller that slept too long: that nobody is there says more than that the time is over.
fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let unix = AddressFamily::Unix;
    let socket = socket::socket(unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(remaining(deadline).unwrap_or(SHORTEST_LOOK)))?;
    socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// A connection to an agent that has until the deadline, however little it takes or says at a time, and
/// has to say something now and then.
struct Line {
    stream: UnixStream,
    deadline: Instant,
    /// How long it may say nothing.
    silence: Duration,
    heard: Instant,
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let silent_at = self.heard + self.silence;
        let end = self.deadline.min(silent_at);
        // What came while this process itself was suspended is heard, however late that is.
        let left = remaining(end).unwrap_or(SHORTEST_LOOK);
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(buffer) {
            Err(error) if is_timeout(&error) && end == silent_at => {
                Err(io::Error::new(io::ErrorKind::TimedOut, Silent))
            }
            read => {
                self.heard = Instant::now();
                read
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Write for Line {
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
    use crate::protocol::{Request, StatusRequest};

    fn call_quietly(socket: &Path, asked: Call) -> io::Result<Reply> {
        call(socket, asked, COMEBACK, |_| ())
    }

    fn status() -> Call {
        within(5000)
    }

    fn within(deadline_ms: u64) -> Call {
        Call {
            deadline_ms,
            gives_up_at_ns: None,
            traceparent: None,
            request: Request::Status(StatusRequest::default()),
        }
    }

    /// Answers one call with `answer`, and returns what it was asked.
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
    fn a_call_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let agent = agent(&socket, br#"   {"outcome":"done"}"#);
        assert!(matches!(call_quietly(&socket, status()).unwrap(), Reply::Done { .. }));
        assert_eq!(agent.join().unwrap(), br#"{"deadline_ms":5000,"verb":"status"}"#);
    }

    #[test]
    fn an_answer_that_came_while_the_caller_was_suspended_is_heard() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let long_ago = Instant::now().checked_sub(SILENCE * 2).unwrap();
        let mut line = Line { stream: ours, deadline: long_ago, silence: SILENCE, heard: long_ago };
        theirs.write_all(b"x").unwrap();
        assert_eq!(line.read(&mut [0; 8]).unwrap(), 1);
        assert!(is_timeout(&line.read(&mut [0; 8]).unwrap_err()));
    }

    #[test]
    fn an_agent_that_says_nonsense_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let agent = agent(&socket, br#"{"outcome":"do"#);
        assert_eq!(call_quietly(&socket, status()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        agent.join().unwrap();
    }

    /// Accepts nobody, or one caller whom it says nothing, and is gone; and then another one answers,
    /// which finds its predecessor's socket, or nothing, as `leaves_its_socket` says.
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
        assert!(asked.deadline_ms < status().deadline_ms, "it is the same deadline");
        reply
    }

    #[test]
    fn an_agent_that_is_replaced_amid_a_call_is_asked_again() {
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
    fn whoever_waits_long_for_an_agent_says_so_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let (began, mut told) = (Stopwatch::start(), None);
        let tell =
            |error: &io::Error| told = Some((error.kind(), began.elapsed(), began.unstalled()));
        assert!(call(&socket, status(), 2 * QUIET, tell).is_err());
        let (kind, after, unstalled) = told.expect("no failure is reported");
        assert_eq!(kind, io::ErrorKind::NotFound);
        assert!(after >= QUIET && unstalled < COMEBACK, "{after:?}");
    }

    #[test]
    fn a_call_waits_for_an_agent_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| call_quietly(&socket, status()));
            // Nothing tells that it waits; sooner or later makes no difference to it.
            let agent = agent(&socket, br#"{"outcome":"done"}"#);
            assert!(matches!(waiting.join().unwrap(), Ok(Reply::Done { .. })));
            agent.join().unwrap();
        });
    }

    #[test]
    fn an_agent_that_never_answers_meets_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = call_quietly(&socket, within(20)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }

    #[test]
    fn an_agent_that_is_suspended_is_not_waited_for() {
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

    /// How long an agent that drips would take to say what it says.
    const DRIPS: u32 = 500;

    const DRIP: Duration = Duration::from_millis(10);

    #[test]
    fn an_agent_that_drips_its_answer_meets_the_deadline() {
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
    fn an_agent_whose_queue_is_full_meets_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&socket).unwrap();
        let error = call_quietly(&socket, within(50)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }

    #[test]
    fn an_agent_that_is_away_is_waited_for_as_long_as_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none");
        let waits = |patience_ms, comeback_ms| {
            let begun = Stopwatch::start();
            let comeback = Duration::from_millis(comeback_ms);
            call(&socket, within(patience_ms), comeback, |_| ()).unwrap_err();
            begun
        };
        assert!(waits(60_000, 0).unstalled() < COMEBACK);
        assert!(waits(60_000, 200).elapsed() >= Duration::from_millis(200) - LOOK);
        assert!(waits(200, 3_600_000).unstalled() < COMEBACK, "but never beyond the deadline");
    }

    #[test]
    fn an_agent_that_is_away_is_told_as_that_by_a_caller_that_slept_beyond_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let error = call_quietly(&folder.path().join("none"), within(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_agent_that_does_not_come_back_is_told_as_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none");
        let begun = Stopwatch::start();
        let error = call(&socket, within(60_000), Duration::from_millis(300), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(begun.unstalled() < COMEBACK, "{:?}", begun.unstalled());
        drop(UnixListener::bind(&socket).unwrap());
        let deserted = call_quietly(&socket, within(200)).unwrap_err();
        assert_eq!(deserted.kind(), io::ErrorKind::ConnectionRefused, "not the deadline");
    }
}
