//! Errors, their sentences and their exit codes.

use std::{fmt, io, path::PathBuf, process::ExitStatus, time::Duration};

use bootstrap::ConfigError;
use mtls::{ConnectError, CredentialsError, EndpointError, authority::AuthorityError};
use offload_proto::Failure;
use tonic::{Code, Status};

use crate::mistake::Mistake;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const CERTIFICATE: u8 = 4;
const PODS_AFFECTED: u8 = 5;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum CallError {
    #[error("there is no configuration in {}; name one with --config", list(places))]
    NoConfig { places: Vec<PathBuf> },
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("neither the configuration nor the command line says which {0} to use")]
    Unset(&'static str),
    /// The address or the name of the DPU is malformed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The operator's certificate cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The DPU refused or failed the call.
    #[error(transparent)]
    Refused(Failure),
    #[error("the DPU did not answer within {0:?}")]
    TooSlow(Duration),
    #[error("the DPU's service does not have this call: its version is older")]
    NoSuchCall,
    #[error("the call failed: {} ({:?})", .0.message(), .0.code())]
    Status(Box<Status>),
    #[error("there is no {kind} {name:?}")]
    Unknown { kind: Kind, name: String },
    #[error("{} attachments are called {name:?}: describe one by its id: {}", ids.len(), ids.join(", "))]
    Several { name: String, ids: Vec<String> },
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Archive { path: PathBuf, source: io::Error },
    #[error("{}{mistake}", path.display())]
    Document {
        path: PathBuf,
        /// Line, column and sentence.
        mistake: Mistake,
    },
    /// A network cannot be edited.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// `top` was given a number of lines with a format that is not a table.
    #[error(
        "--lines is for tables, of which the first lines are the busiest; counters have no order"
    )]
    LinesOfCounters,
    #[error("there is no code {code:?}{}", meant(*nearest))]
    Unexplained {
        code: String,
        /// The most similar code.
        nearest: Option<&'static str>,
    },
    #[error("there is no column {column:?}: the columns are {columns}")]
    NoColumn { column: String, columns: String },
    #[error("no {kind} has a field {field}: see `-o json` for the fields")]
    NoField { kind: Kind, field: String },
    #[error("standard input is no terminal to ask on: confirm with --yes")]
    Unconfirmed,
    #[error(
        "host {0} is in the service's configuration: remove its [[host]] and reload the service first, or release \
             attachments one by one"
    )]
    HostServed(String),
    #[error("nothing was changed")]
    Declined,
    /// The doctor found problems: their number.
    #[error("problems found: {0}")]
    Findings(u64),
    #[error("conditions that affect pods are false: {}", .0.join(", "))]
    PodsAffected(Vec<&'static str>),
    #[error("condition {0} is not true: the time to wait is over")]
    StillFalse(&'static str),
    #[error("this DPU has no condition {0}: its driver knows no cards")]
    NotShown(&'static str),
    /// Certificates cannot be created.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("cannot print the answer: {0}")]
    Encode(String),
    #[error("cannot print the answer")]
    Output(#[source] io::Error),
}

/// Why a network could not be edited. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum EditError {
    #[error("network {0} comes from the service's configuration file")]
    Fixed(String),
    /// The temporary file cannot be written, read, or given to a shell.
    #[error("cannot edit a temporary file")]
    File(#[source] io::Error),
    #[error("cannot read what the editor saved")]
    Saved(#[source] io::Error),
    #[error("editor `{editor}` failed: {status}")]
    Editor { editor: String, status: ExitStatus },
    #[error("network {name} was edited, and the file has a network {other}")]
    Renamed { name: String, other: String },
}

/// The kinds of things that have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Kind {
    Attachment,
    Host,
    Network,
    Pool,
    Vf,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Attachment => "attachment",
            Self::Host => "host",
            Self::Network => "network",
            Self::Pool => "pool",
            Self::Vf => "VF",
        })
    }
}

impl From<serde_json::Error> for CallError {
    fn from(error: serde_json::Error) -> Self {
        Self::Encode(error.to_string())
    }
}

impl CallError {
    /// Extracts the reason from a gRPC status. `timeout` is the call's time limit.
    pub(crate) fn from_status(status: Status, timeout: Duration) -> Self {
        if let Some(failure) = Failure::from_status(&status) {
            return Self::Refused(failure);
        }
        if let Some(reason) = ConnectError::find(&status) {
            return Self::Connect(reason.clone());
        }
        match status.code() {
            Code::DeadlineExceeded => Self::TooSlow(timeout),
            Code::Unimplemented => Self::NoSuchCall,
            _ => Self::Status(Box::new(status)),
        }
    }

    /// Whether a new connection may succeed: the DPU was not reached, or is busy.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Refused(failure) => failure.reason.is_passing(),
            Self::Connect(reason) => !reason.is_certificate(),
            Self::TooSlow(_) | Self::Status(_) => true,
            _ => false,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoConfig { .. }
            | Self::Config(_)
            | Self::Unset(_)
            | Self::Endpoint(_)
            | Self::File { .. }
            | Self::Document { .. }
            | Self::LinesOfCounters
            | Self::NoColumn { .. }
            | Self::NoField { .. }
            | Self::HostServed(_)
            | Self::Edit(_)
            | Self::Unconfirmed
            | Self::Authority(_) => USAGE,
            Self::PodsAffected(_) | Self::StillFalse(_) => PODS_AFFECTED,
            Self::Credentials(_) => CERTIFICATE,
            Self::Connect(reason) if reason.is_certificate() => CERTIFICATE,
            Self::Connect(_) | Self::TooSlow(_) => UNREACHABLE,
            Self::Status(status) if status.code() == Code::Unavailable => UNREACHABLE,
            Self::Refused(_)
            | Self::Unknown { .. }
            | Self::Declined
            | Self::Findings(_)
            | Self::NoSuchCall
            | Self::Unexplained { .. }
            | Self::Several { .. }
            | Self::NotShown(_)
            | Self::Encode(_)
            | Self::Output(_)
            | Self::Archive { .. }
            | Self::Status(_) => FAILED,
        }
    }
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(": did you mean {nearest}?")).unwrap_or_default()
}

fn list(places: &[PathBuf]) -> String {
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    places.join(" or ")
}
