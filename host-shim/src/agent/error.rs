//! Why the agent can't start, or can't go on.

use std::{io, path::PathBuf};

use bootstrap::{ConfigError, FolderError, LogError};
use netlink::NetnsError;
use offload_proto::Failure;

use super::{
    socket::ListenError,
    vfs::{OriginalsError, RecordsError},
};
use crate::vf_source::PciError;

/// Why the agent can't start, or can't go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The configuration can't be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration makes no sense: one line for each mistake.
    #[error("{0}")]
    Senseless(String),
    /// The DPU can't be dialled with what the configuration names.
    #[error("{path}")]
    Dpu {
        /// The configuration file.
        path: String,
        /// Why not.
        source: Failure,
    },
    /// Logging can't be started.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state folder can't be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The socket can't be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The records can't be read.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The host's network namespace can't be opened.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    /// What VFs are like can't be read.
    #[error(transparent)]
    Originals(#[from] OriginalsError),
    /// The cards can't be used.
    #[error(transparent)]
    Cards(#[from] PciError),
    /// The boot id is empty.
    #[error("the boot id in {} is empty", .0.display())]
    NoBootId(PathBuf),
    /// The system refused something.
    #[error("can't {doing}")]
    Io {
        /// What.
        doing: String,
        /// Why.
        source: io::Error,
    },
}

impl AgentError {
    /// Whether the configuration is to blame, which does not mend itself.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Senseless(_)
                | Self::Dpu { .. }
                | Self::Listen(ListenError::NotHeld(_))
        )
    }
}

pub(super) fn cannot(doing: impl Into<String>) -> impl FnOnce(io::Error) -> AgentError {
    let doing = doing.into();
    move |source| AgentError::Io { doing, source }
}
