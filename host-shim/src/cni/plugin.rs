//! One run of the plugin.

use std::{
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};

use offload_proto::{Failure, Reason};
use serde_json::Value;

use super::{
    environment::{Environment, Verb},
    error::{CniError, code},
    request::{Document, Prepared, ResultBase, prepare},
    version::{self, Version},
};
use crate::protocol::{self, Call, Reply};

/// Answers the call in the process's environment and on its standard input.
///
/// The exit code is 0 for success and 1 for a failure, whose error object is on standard output.
#[must_use]
pub fn run() -> ExitCode {
    let environment = Environment::of_process();
    if environment.command.is_empty() {
        tell_about();
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

/// What the program is, on standard error: standard output is for results.
fn tell_about() {
    let about = format!(
        "host-shim {}: CNI plugin of dpu-offload\nCNI protocol versions supported: {}\n",
        env!("CARGO_PKG_VERSION"),
        Version::list()
    );
    // Nobody is left to be told if standard error is closed.
    let _ = io::stderr().write_all(about.as_bytes());
}

fn print(document: &Value) -> io::Result<()> {
    let mut text = document.to_string();
    text.push('\n');
    io::stdout().write_all(text.as_bytes())
}

/// An error and the version that its document follows.
#[derive(Debug)]
pub struct Refusal {
    /// The configuration's version, or the newest while that is unknown.
    pub version: Version,
    /// The error.
    pub error: CniError,
}

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        Self { version: Version::NEWEST, error }
    }
}

/// Answers a call. `None`: success that needs no words.
///
/// # Errors
/// What the runtime is told.
pub fn answer(environment: &Environment, input: impl Read) -> Result<Option<Value>, Refusal> {
    let verb = environment.verb()?;
    if verb == Verb::Version {
        return Ok(Some(version::answer()));
    }
    let document = Document::read(input)?;
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
    let Prepared { socket, patience, request, base } = prepared;
    let deadline_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    let reply = protocol::call(&socket, &Call { deadline_ms, request })
        .map_err(|error| unreachable_agent(verb, &socket, &error))?;
    match reply {
        Reply::Attached { attachment } => {
            let ResultBase { previous, sandbox, dns } = base;
            Ok(Some(previous.with_attachment(&attachment, &sandbox, dns).render(version)))
        }
        Reply::Done => Ok(None),
        Reply::Failed { code, message, details } => Err(CniError { code, message, details }),
    }
}

fn unreachable_agent(verb: Verb, socket: &Path, error: &io::Error) -> CniError {
    let kind = error.kind();
    let what = match kind {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "did not answer in time".into(),
        io::ErrorKind::NotFound => "is not running: there is no such socket".into(),
        io::ErrorKind::ConnectionRefused => "is not running: nobody listens".into(),
        _ => format!("can't be reached: {error}"),
    };
    let message = format!("the agent on {} {what}", socket.display());
    let error = CniError::from(Failure::new(Reason::AgentUnreachable, message));
    let error = match kind {
        io::ErrorKind::PermissionDenied => error.with_details(format!(
            "{}: run the plugin as root, to whom the socket belongs",
            Reason::AgentUnreachable
        )),
        _ => error,
    };
    match verb {
        Verb::Status => CniError { code: code::NOT_AVAILABLE, ..error },
        _ => error,
    }
}
