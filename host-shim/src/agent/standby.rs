//! Decides which agent is active: the one that has the lock of the records. It alone listens on the socket.
//!
//! With `--standby` an agent waits until the previous one has ended, as the pod of a rolling update does. Callers are
//! without an agent only while the new one starts. Both share socket and records, and the waiting agent uses neither.

use std::{path::Path, time::Duration};

use bootstrap::{ShutdownSignals, private_folder};
use mtls::LiveCredentials;
use tokio::time::sleep;

use super::{
    config::Config,
    dpu::credentials_and_connector,
    error::AgentError,
    vfs::{Records, RecordsError},
};

/// The interval between attempts to lock the records.
const LOOK: Duration = Duration::from_millis(50);

/// Opens the records once no other agent has them. `None`: this agent was stopped before.
///
/// # Errors
/// This agent's certificates are unusable: the previous agent then continues.
pub(super) async fn records_when_free(
    config: &Config,
    path: &Path,
    boot_id: &str,
    shutdown: &mut ShutdownSignals,
) -> Result<Option<Records>, AgentError> {
    if let Some(records) = free_records(config, boot_id)? {
        return Ok(Some(records));
    }
    checked_credentials(config, path)?;
    tracing::info!(socket = %config.socket.display(), "the agent is standing by until the active one ends");
    tokio::select! {
        records = wait_for_records(config, boot_id) => records.map(Some),
        () = shutdown.received() => Ok(None),
    }
}

async fn wait_for_records(config: &Config, boot_id: &str) -> Result<Records, AgentError> {
    loop {
        sleep(LOOK).await;
        if let Some(records) = free_records(config, boot_id)? {
            return Ok(records);
        }
    }
}

fn free_records(config: &Config, boot_id: &str) -> Result<Option<Records>, AgentError> {
    match open_records(config, boot_id) {
        Err(AgentError::Records(error)) if RecordsError::is_in_use(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

pub(super) fn open_records(config: &Config, boot_id: &str) -> Result<Records, AgentError> {
    private_folder(&config.state_dir)?;
    Ok(Records::open(&config.state_dir, boot_id)?)
}

/// Checks the configuration's certificates and the DPU's address and name.
pub(super) fn checked_credentials(
    config: &Config,
    path: &Path,
) -> Result<LiveCredentials, AgentError> {
    let path = path.display().to_string();
    let checked = credentials_and_connector(config);
    checked.map(|(credentials, _)| credentials).map_err(|source| AgentError::Dpu { path, source })
}
