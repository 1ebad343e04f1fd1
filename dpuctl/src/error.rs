//! What can go wrong, how it is told, and with which exit code.

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

/// Why the command did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no configuration.
    #[error("there is no configuration in {}; name one with --config", list(places))]
    NoConfig {
        /// Where it was looked for.
        places: Vec<PathBuf>,
    },
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting is neither in the configuration nor on the command line.
    #[error("neither the configuration nor the command line says which {0} to use")]
    Unset(&'static str),
    /// Address or name of the DPU are malformed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The operator's certificate can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The DPU refused or failed the call.
    #[error(transparent)]
    Refused(Failure),
    /// The DPU did not answer.
    #[error("the DPU did not answer within {0:?}")]
    TooSlow(Duration),
    /// The service has no such call.
    #[error("the DPU's service is of a release that can't do that")]
    NoSuchCall,
    /// The call failed in a way that the DPU does not explain.
    #[error("the call failed: {} ({:?})", .0.message(), .0.code())]
    Status(Box<Status>),
    /// There is no such thing.
    #[error("there is no {kind} {name:?}")]
    Unknown {
        /// What kind of thing.
        kind: Kind,
        /// What was asked for.
        name: String,
    },
    /// A name means several attachments.
    #[error("{} attachments are called {name:?}: describe one by its id: {}", ids.len(), ids.join(", "))]
    Several {
        /// What was asked for.
        name: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// A file with networks can't be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The archive for a bug report can't be written.
    #[error("cannot write {}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file with networks is malformed.
    #[error("{}{mistake}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Where and what.
        mistake: Mistake,
    },
    /// A network can't be edited.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// `top` is to print so many attachments, but not a table.
    #[error(
        "--lines is for tables, of which the first lines are the busiest; counters have no order"
    )]
    LinesOfCounters,
    /// There is no such code to explain.
    #[error("there is no code {code:?}{}", meant(*nearest))]
    Unexplained {
        /// What was asked for.
        code: String,
        /// The code that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A list is to be sorted by a column that it does not have.
    #[error("there is no column {column:?}: the columns are {columns}")]
    NoColumn {
        /// What was asked for.
        column: String,
        /// All columns.
        columns: String,
    },
    /// A list is to be sorted by a field that none of its items has.
    #[error("no {kind} has a field {field}: see `-o json` for the fields")]
    NoField {
        /// What is listed.
        kind: Kind,
        /// The path that was asked for.
        field: String,
    },
    /// Nobody was there to confirm.
    #[error("standard input is no terminal to ask on: confirm with --yes")]
    Unconfirmed,
    /// The attachments of a host are to be ended, and the host is in the configuration.
    #[error(
        "host {0} is in the service's configuration: remove its [[host]] and reload the service first, or release \
             attachments one by one"
    )]
    HostServed(String),
    /// The operator said no.
    #[error("nothing was changed")]
    Declined,
    /// Something is not as it should be: how much.
    #[error("problems found: {0}")]
    Differences(u64),
    /// The DPU has answered, and conditions are false that affect pods: their types.
    #[error("conditions that affect pods are false: {}", .0.join(", "))]
    PodsAffected(Vec<&'static str>),
    /// A condition was waited for, and is not true.
    #[error("condition {0} is not true: the time to wait is over")]
    StillFalse(&'static str),
    /// A condition was waited for that this DPU does not have.
    #[error("this DPU has no condition {0}: its driver knows no cards")]
    NotShown(&'static str),
    /// Certificates can't be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The answer can't be put into the form asked for.
    #[error("cannot print the answer: {0}")]
    Encode(String),
    /// The answer can't be printed.
    #[error("cannot print the answer")]
    Output(#[source] io::Error),
}

/// Why a network could not be edited. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The network is the configuration file's.
    #[error("network {0} comes from the service's configuration file")]
    Fixed(String),
    /// The file that the editor was to open can't be written, read, or given to a shell.
    #[error("cannot edit a temporary file")]
    File(#[source] io::Error),
    /// The editor has left no file that can be read.
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
    /// What was saved holds another network.
    #[error("network {name} was edited, and the file has a network {other}")]
    Renamed {
        /// The network.
        name: String,
        /// The other one's name.
        other: String,
    },
}

/// What can be asked for by name.
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
    /// Reads what is known out of a gRPC status; `timeout` is what the call was given.
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

    /// Whether another connection may do better: the DPU was not reached, or is busy.
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
