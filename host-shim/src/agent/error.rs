//! Why the agent cannot start or go on.

use std::{io, path::PathBuf};

use bootstrap::{ConfigError, FolderError, LogError};
use netlink::NetnsError;
use offload_proto::Failure;

use super::{
    socket::ListenError,
    vfs::{OriginalsError, RecordsError},
};
use crate::vf_source::PciError;

/// Why the agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration has invalid values: one line for each mistake.
    #[error("{0}")]
    InvalidValues(String),
    /// The configured address, name or certificates cannot be used to dial the DPU.
    #[error("{path}")]
    Dpu {
        /// The configuration file.
        path: String,
        /// What is wrong with them.
        source: Failure,
    },
    /// Logging cannot be started.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The agent cannot listen on its socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The records cannot be read.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The host's network namespace cannot be opened.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused a request.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    /// The VFs' baselines cannot be read.
    #[error(transparent)]
    Originals(#[from] OriginalsError),
    /// The cards cannot be used.
    #[error(transparent)]
    Cards(#[from] PciError),
    /// The boot id is empty.
    #[error("the boot id in {} is empty", .0.display())]
    NoBootId(PathBuf),
    /// The system refused an operation.
    #[error("cannot {doing}")]
    Io {
        /// The operation.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

impl AgentError {
    /// Whether the configuration is wrong: a restart does not help.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::InvalidValues(_)
                | Self::Dpu { .. }
                | Self::Listen(ListenError::NotHeld(_))
        )
    }
}

pub(super) fn cannot(doing: impl Into<String>) -> impl FnOnce(io::Error) -> AgentError {
    let doing = doing.into();
    move |source| AgentError::Io { doing, source }
}
