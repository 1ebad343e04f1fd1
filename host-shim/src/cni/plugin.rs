//! One run of the plugin. Single-threaded; it keeps no state and takes no lock.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::FileTypeExt,
    path::Path,
    process::ExitCode,
    time::Duration,
};

use offload_proto::{Failure, Reason};
use serde_json::Value;
use traces::TraceParent;

use super::{
    config::read_limited,
    environment::{Environment, Verb},
    error::{CniError, Refusal, code},
    ipam::Borrowed,
    request::{Document, Prepared, prepare},
    version::{self, Version},
};
use crate::protocol::{self, AGENT_RETURN_TIMEOUT, Call, Reply, Silent};

/// Advice if the configuration names no socket.
const SAME_SOCKET: &str = "name in `agentSocket` of the CNI configuration what `socket` in the \
                           agent's configuration names";

/// Advice if the configuration names a socket that is not the installed agent's.
const START_ITS_AGENT: &str = "start the agent whose configuration names this `socket`, or name \
                               another agent's in `agentSocket` of the CNI configuration";

/// Answers the call in the process's environment and on its standard input.
///
/// The exit code is 0 for success and 1 for a failure, whose error object is on standard output.
#[must_use]
pub fn run() -> ExitCode {
    let environment = Environment::of_process();
    if environment.command.is_empty() {
        print_notice(&format!(
            " {}: CNI plugin of dpu-offload\nCNI protocol versions supported: {}",
            env!("CARGO_PKG_VERSION"),
            Version::list()
        ));
        return ExitCode::SUCCESS;
    }
    let (document, code) = match answer(&environment, io::stdin().lock()) {
        Ok(document) => (document, ExitCode::SUCCESS),
        Err(refusal) => (Some(refusal.error.to_json(refusal.version)), ExitCode::FAILURE),
    };
    match document.map(|document| print(&document)) {
        Some(Err(_)) => ExitCode::FAILURE,
        Some(Ok(())) | None => code,
    }
}

/// Prints the program's name and a text on standard error, which runtimes log: standard output is for results.
fn print_notice(text: &str) {
    // A closed standard error leaves no place to report to.
    let _ = io::stderr().write_all(format!("host-shim{text}\n").as_bytes());
}

fn print(document: &Value) -> io::Result<()> {
    let mut text = document.to_string();
    text.push('\n');
    io::stdout().write_all(text.as_bytes())
}

/// Answers a call. `None`: success without output.
///
/// # Errors
/// The error object for the runtime.
pub fn answer(environment: &Environment, input: impl Read) -> Result<Option<Value>, Refusal> {
    let verb = environment.verb()?;
    if verb == Verb::Version {
        return Ok(Some(version::answer()));
    }
    let text = read_limited(input)?;
    // Before our own checks, because another plugin's configuration need not pass them.
    if let Some(borrowed) = Borrowed::read(&text) {
        return borrowed.answer(verb);
    }
    let document = Document::read(text.as_slice())?;
    let version = document.version;
    let ask = || {
        let prepared = prepare(verb, environment, document)?;
        answer_prepared(verb, version, prepared)
    };
    ask().map_err(|error| Refusal { version, error })
}

fn answer_prepared(
    verb: Verb,
    version: Version,
    prepared: Prepared,
) -> Result<Option<Value>, CniError> {
    let Prepared { socket, timeout, agent_return, request, base } = prepared;
    let call = Call::new(timeout, request).within(TraceParent::of_process());
    // Runtimes show the output of a plugin that they kill for being slow.
    let report_waiting = |error: &io::Error| {
        print_notice(&format!(": waiting for the agent on {}: {error}", socket.display()));
    };
    let limit = agent_return.unwrap_or(AGENT_RETURN_TIMEOUT);
    let reply = match protocol::call(&socket, call, limit, report_waiting) {
        Ok(reply) => reply,
        Err(error) if verb == Verb::Status && is_restarting(&socket, &error, agent_return) => {
            Reply::Done { warning: None }
        }
        Err(error) => return Err(unreachable_agent(verb, &socket, &error)),
    };
    if let Reply::Done { warning: Some(warning) } = &reply {
        print_notice(&format!(": {warning}"));
    }
    base.answer(version, reply)
}

/// Whether the agent stopped less than `agent_return` ago in good order, so that ADDs wait for the next one. STATUS
/// cannot wait that long, and a failure would make the node NotReady. A stopping agent removes its socket last,
/// which changes the folder's modification time.
fn is_restarting(socket: &Path, error: &io::Error, agent_return: Option<Duration>) -> bool {
    let (Some(agent_return), Some(folder)) = (agent_return, socket.parent()) else { return false };
    let changed = || fs::metadata(folder).ok()?.modified().ok()?.elapsed().ok();
    error.kind() == io::ErrorKind::NotFound && changed().is_some_and(|ago| ago < agent_return)
}

fn unreachable_agent(verb: Verb, socket: &Path, error: &io::Error) -> CniError {
    let start = match socket == Path::new(protocol::DEFAULT_SOCKET) {
        true => Reason::AgentUnreachable.advice(),
        false => START_ITS_AGENT,
    };
    let look = "try again, or see `journalctl -u dpu-offload-agent`";
    let is_silent =
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Silent>);
    let (what, advice) = match error.kind() {
        io::ErrorKind::TimedOut if is_silent => (error.to_string(), look),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ("did not answer in time".into(), look)
        }
        io::ErrorKind::NotFound => {
            ("is not running, or its socket was deleted: there is no such socket".into(), start)
        }
        io::ErrorKind::ConnectionRefused => match other_than_socket(socket) {
            Some(found) => (format!("can't be reached: that is {found}, no socket"), SAME_SOCKET),
            None => ("is not running: no process listens on the socket".into(), start),
        },
        io::ErrorKind::PermissionDenied => (
            format!("can't be reached: {error}"),
            "run the plugin as root, to whom the socket belongs",
        ),
        _ => (format!("can't be reached: {error}"), start),
    };
    let reason = Reason::AgentUnreachable;
    let message = format!("the agent on {} {what}", socket.display());
    let error =
        CniError::from(Failure::new(reason, message)).with_details(format!("{reason}: {advice}"));
    match verb {
        Verb::Status => CniError { code: code::NOT_AVAILABLE, ..error },
        _ => error,
    }
}

/// The kind of file at the socket's path. `None`: a socket, or nothing readable.
fn other_than_socket(path: &Path) -> Option<&'static str> {
    match fs::metadata(path).ok()?.file_type() {
        kind if kind.is_socket() => None,
        kind if kind.is_dir() => Some("a folder"),
        _ => Some("a file"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn error_for(socket: &Path) -> CniError {
        let refused = UnixStream::connect(socket).unwrap_err();
        unreachable_agent(Verb::Add, socket, &refused)
    }

    #[test]
    fn missing_agent_error_advises_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let missing = error_for(&socket);
        assert!(missing.message.ends_with("no such socket"), "{missing:?}");
        drop(UnixListener::bind(&socket).unwrap());
        let deserted = error_for(&socket);
        assert!(deserted.message.ends_with("no process listens on the socket"), "{deserted:?}");
        for error in [missing, deserted] {
            assert!(error.details.starts_with("AGENT_UNREACHABLE: "), "{error:?}");
            assert!(error.details.contains("`socket`"), "{error:?}");
        }
        let missing = io::ErrorKind::NotFound.into();
        let installed = unreachable_agent(Verb::Add, Path::new(protocol::DEFAULT_SOCKET), &missing);
        assert!(installed.details.starts_with("AGENT_UNREACHABLE: "), "{installed:?}");
        assert!(installed.details.contains("`systemctl start "), "{installed:?}");
    }

    #[test]
    fn recently_stopped_agent_counts_as_restarting() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let missing = || UnixStream::connect(&socket).unwrap_err();
        let minute = Some(Duration::from_secs(60));
        assert!(is_restarting(&socket, &missing(), minute));
        assert!(!is_restarting(&socket, &missing(), Some(Duration::ZERO)), "it left longer ago");
        assert!(!is_restarting(&socket, &missing(), None), "without a configured wait it does not");
        drop(UnixListener::bind(&socket).unwrap());
        assert!(!is_restarting(&socket, &missing(), minute), "it was killed");
    }

    #[test]
    fn error_names_a_file_that_is_no_socket() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, found) in [(folder.path(), "a folder"), (&file, "a file")] {
            let error = error_for(path);
            let ending = format!(" {found}, no socket");
            assert!(error.message.ends_with(&ending), "{error:?}");
            assert!(error.details.contains("`agentSocket`"), "{error:?}");
        }
    }
}
