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
#[non_exhaustive]
pub enum CallError {
    /// No configuration file exists.
    #[error("there is no configuration in {}; name one with --config", list(places))]
    NoConfig {
        /// The places that were searched.
        places: Vec<PathBuf>,
    },
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting is missing in the configuration and on the command line.
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
    /// The DPU did not answer in time.
    #[error("the DPU did not answer within {0:?}")]
    TooSlow(Duration),
    /// The service does not have the call.
    #[error("the DPU's service does not have this call: its version is older")]
    NoSuchCall,
    /// The call failed without a reason from the DPU.
    #[error("the call failed: {} ({:?})", .0.message(), .0.code())]
    Status(Box<Status>),
    /// The named thing does not exist.
    #[error("there is no {kind} {name:?}")]
    Unknown {
        /// The kind of thing.
        kind: Kind,
        /// The name on the command line.
        name: String,
    },
    /// A name matches several attachments.
    #[error("{} attachments are called {name:?}: describe one by its id: {}", ids.len(), ids.join(", "))]
    Several {
        /// The name on the command line.
        name: String,
        /// The ids of the attachments.
        ids: Vec<String>,
    },
    /// A file with networks cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The archive for a bug report cannot be written.
    #[error("cannot write {}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file with networks is malformed.
    #[error("{}{mistake}", path.display())]
    Document {
        /// The file.
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
    /// The code to explain does not exist.
    #[error("there is no code {code:?}{}", meant(*nearest))]
    Unexplained {
        /// The code on the command line.
        code: String,
        /// The most similar code.
        nearest: Option<&'static str>,
    },
    /// A list cannot be sorted by a column that it does not have.
    #[error("there is no column {column:?}: the columns are {columns}")]
    NoColumn {
        /// The column on the command line.
        column: String,
        /// All columns.
        columns: String,
    },
    /// A list cannot be sorted by a field that none of its items has.
    #[error("no {kind} has a field {field}: see `-o json` for the fields")]
    NoField {
        /// The kind of the list's items.
        kind: Kind,
        /// The path on the command line.
        field: String,
    },
    /// No person can confirm, because standard input is no terminal.
    #[error("standard input is no terminal to ask on: confirm with --yes")]
    Unconfirmed,
    /// A host's attachments cannot be ended while the host is in the configuration.
    #[error(
        "host {0} is in the service's configuration: remove its [[host]] and reload the service first, or release \
             attachments one by one"
    )]
    HostServed(String),
    /// The operator declined.
    #[error("nothing was changed")]
    Declined,
    /// The doctor found problems: their number.
    #[error("problems found: {0}")]
    Differences(u64),
    /// The DPU answered, and these types of conditions that affect pods are false.
    #[error("conditions that affect pods are false: {}", .0.join(", "))]
    PodsAffected(Vec<&'static str>),
    /// A condition was not true within the time limit.
    #[error("condition {0} is not true: the time to wait is over")]
    StillFalse(&'static str),
    /// This DPU does not have the condition to wait for.
    #[error("this DPU has no condition {0}: its driver knows no cards")]
    NotShown(&'static str),
    /// Certificates cannot be created.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The answer cannot be encoded in the chosen format.
    #[error("cannot print the answer: {0}")]
    Encode(String),
    /// The answer cannot be written.
    #[error("cannot print the answer")]
    Output(#[source] io::Error),
}

/// Why a network could not be edited. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The network comes from the configuration file.
    #[error("network {0} comes from the service's configuration file")]
    Fixed(String),
    /// The temporary file cannot be written, read, or given to a shell.
    #[error("cannot edit a temporary file")]
    File(#[source] io::Error),
    /// The editor left no readable file.
    #[error("cannot read what the editor saved")]
    Saved(#[source] io::Error),
    /// The editor failed.
    #[error("editor `{editor}` failed: {status}")]
    Editor {
        /// The command.
        editor: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// The saved file contains another network.
    #[error("network {name} was edited, and the file has a network {other}")]
    Renamed {
        /// The network.
        name: String,
        /// The other one's name.
        other: String,
    },
}

/// The kinds of things that have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An attachment.
    Attachment,
    /// A host.
    Host,
    /// A network.
    Network,
    /// A pool of VFs.
    Pool,
    /// A virtual function.
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
            Self::Refused(_) | Self::Unknown { .. } | Self::Declined | Self::Differences(_) => {
                FAILED
            }
            Self::NoSuchCall | Self::Unexplained { .. } => FAILED,
            Self::Several { .. } => FAILED,
            Self::NotShown(_) => FAILED,
            Self::Encode(_) | Self::Output(_) | Self::Archive { .. } => FAILED,
            Self::NoConfig { .. } | Self::Config(_) | Self::Unset(_) | Self::Endpoint(_) => USAGE,
            Self::File { .. }
            | Self::Document { .. }
            | Self::LinesOfCounters
            | Self::NoColumn { .. }
            | Self::NoField { .. }
            | Self::HostServed(_)
            | Self::Edit(_)
            | Self::Unconfirmed => USAGE,
            Self::Authority(_) => USAGE,
            Self::PodsAffected(_) | Self::StillFalse(_) => PODS_AFFECTED,
            Self::Credentials(_) => CERTIFICATE,
            Self::Connect(reason) if reason.is_certificate() => CERTIFICATE,
            Self::Connect(_) | Self::TooSlow(_) => UNREACHABLE,
            Self::Status(status) if status.code() == Code::Unavailable => UNREACHABLE,
            Self::Status(_) => FAILED,
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
