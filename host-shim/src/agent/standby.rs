//! Who is the agent: the lock of the records says it. Who has it listens.
//!
//! With `--standby` an agent waits until the one before it has ended, as the pod does that is to replace another:
//! nobody is without an agent for longer than it takes this one to look around. The two have the socket and the
//! records in common; whoever stands by has neither.

use std::{path::Path, time::Duration};

use bootstrap::{ShutdownSignals, private_folder};
use tokio::time::sleep;

use super::{
    config::Config,
    dpu::credentials_and_connector,
    error::AgentError,
    vfs::{Records, RecordsError},
};

/// How often it is looked whether the one before is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Opens the records once nobody else has them. `None`: this one was told to stop before.
///
/// # Errors
/// If it could not do the work either, which leaves the one before at it.
pub(super) async fn records_of_one_before(
    config: &Config,
    path: &Path,
    boot_id: &str,
    shutdown: &mut ShutdownSignals,
) -> Result<Option<Records>, AgentError> {
    if let Some(records) = free_records(config, boot_id)? {
        return Ok(Some(records));
    }
    check_certificates(config, path)?;
    tracing::info!(socket = %config.socket.display(), "standing by until the agent there has ended");
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

/// The records, of which no other agent has any.
pub(super) fn open_records(config: &Config, boot_id: &str) -> Result<Records, AgentError> {
    private_folder(&config.state_dir)?;
    Ok(Records::open(&config.state_dir, boot_id)?)
}

fn check_certificates(config: &Config, path: &Path) -> Result<(), AgentError> {
    let path = path.display().to_string();
    credentials_and_connector(config).map_err(|source| AgentError::Dpu { path, source })?;
    Ok(())
}
