//! An agent that stands by until the one before it has ended (`--standby`), as the pod does that is to replace
//! another: nobody is without an agent for longer than it takes this one to look around.
//!
//! The two have the socket and the records in common. The one before gives up its socket when nothing is under way
//! any more, and its records with its last breath. So whoever has the socket waits for the records, and who has the
//! records waits for nobody.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, path::Path, time::Duration};

use bootstrap::shutdown_signal;
use tokio::time::{Instant, sleep};

use super::{
    config::Config,
    dpu::credentials_and_connector,
    run::{AgentError, cannot},
    socket::{ListenError, Socket, listen},
    vfs::{Records, RecordsError},
};

/// How often it is looked whether the one before is still there.
const LOOK: Duration = Duration::from_millis(50);
/// How long one that has given up its socket may take to end. What waits for the kernel may keep it.
pub(super) const LAST_BREATH: Duration = Duration::from_secs(20);

/// Listens once nobody else does. `None`: this one was told to stop before.
///
/// # Errors
/// If it could not do the work either, which leaves the one before at it.
pub(super) async fn socket_of_one_before(
    config: &Config,
    path: &Path,
) -> Result<Option<Socket>, AgentError> {
    if let Some(socket) = free_socket(config)? {
        return Ok(Some(socket));
    }
    check_certificates(config, path)?;
    tracing::info!(socket = %config.socket.display(), "standing by until the agent there has ended");
    tokio::select! {
        socket = wait_for_socket(config) => socket.map(Some),
        signal = shutdown_signal() => signal.map(|()| None).map_err(cannot("wait for signals")),
    }
}

async fn wait_for_socket(config: &Config) -> Result<Socket, AgentError> {
    loop {
        sleep(LOOK).await;
        if let Some(socket) = free_socket(config)? {
            return Ok(socket);
        }
    }
}

fn free_socket(config: &Config) -> Result<Option<Socket>, AgentError> {
    match listen(&config.socket) {
        Err(ListenError::InUse(_)) => Ok(None),
        listening => Ok(Some(listening?)),
    }
}

fn check_certificates(config: &Config, path: &Path) -> Result<(), AgentError> {
    let path = path.display().to_string();
    credentials_and_connector(config).map_err(|source| AgentError::Dpu { path, source })?;
    Ok(())
}

/// Opens the records, for which it waits that long if another agent has them.
pub(super) async fn records(
    config: &Config,
    boot_id: &str,
    patience: Duration,
) -> Result<Records, AgentError> {
    let folder = DirBuilder::new().recursive(true).mode(0o700).create(&config.state_dir);
    folder.map_err(cannot(format!("create {}", config.state_dir.display())))?;
    let end = Instant::now() + patience;
    loop {
        match Records::open(&config.state_dir, boot_id) {
            Err(error) if RecordsError::is_in_use(&error) && Instant::now() < end => {}
            opened => return Ok(opened?),
        }
        sleep(LOOK).await;
    }
}
