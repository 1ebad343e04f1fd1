//! `dpuctl edit`: opens a network in the operator's editor.

use std::{env, io::Write, path::Path, process::Command};

use bootstrap::open_regular_file;
use offload_proto::v1::{ListNetworksResponse, NetworkStatus};
use tempfile::NamedTempFile;

use crate::{
    apply::{CONFIGURATION, How, ListedNetwork, apply, parse_text, read_text},
    client::Client,
    console::Console,
    error::{CallError, EditError},
    format::yaml,
    get::{networks, one_named},
};

/// The editor of an operator who has set none.
const EDITOR: &str = "vi";

/// Opens the network in the operator's editor and applies what was saved. The file stays if it cannot be applied.
/// Connects again after the editor ends: the service closes a connection that was idle for so long.
pub(crate) async fn edit(
    connect: impl AsyncFn() -> Result<Client, CallError>,
    name: &str,
    reason: String,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let status = one_named(networks(&mut connect().await?).await?.networks, name)?;
    if status.origin == CONFIGURATION {
        return Err(EditError::Fixed(name.to_owned()).into());
    }
    let before = document(status)?;
    let file = temporary_file(&before).map_err(EditError::File)?;
    let ended = run_editor(file.path());
    let saved = open_regular_file(file.path()).and_then(read_text).map_err(EditError::Saved);
    if saved.as_ref().is_ok_and(|saved| *saved == before) {
        ended?;
        return Err(CallError::Declined);
    }
    let applied = async {
        let networks = edited(file.path(), ended.and(saved)?, name)?;
        let how = How { reason, ..How::default() };
        apply(&mut connect().await?, networks, &how, console).await
    }
    .await;
    if applied.is_err()
        && file.path().is_file()
        && let Ok((_, path)) = file.keep()
    {
        console.note(&format!("your changes are in {}", path.display()))?;
    }
    applied
}

/// The network as `get networks -o yaml` prints it, without counters.
fn document(status: NetworkStatus) -> Result<String, CallError> {
    let NetworkStatus { network, origin, resource_version, .. } = status;
    let status = NetworkStatus { network, origin, resource_version, ..NetworkStatus::default() };
    yaml(&ListNetworksResponse { networks: vec![status] })
}

/// The file's suffix tells the editor which colours and rules to use.
fn temporary_file(content: &str) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("dpuctl-").suffix(".yaml").tempfile()?;
    file.write_all(content.as_bytes())?;
    Ok(file)
}

/// A shell reads `VISUAL` and `EDITOR`, because both may contain arguments. git and kubectl do the same.
fn run_editor(path: &Path) -> Result<(), EditError> {
    let chosen = |variable| env::var(variable).ok().filter(|editor| !editor.trim().is_empty());
    let editor = chosen("VISUAL").or_else(|| chosen("EDITOR")).unwrap_or(EDITOR.into());
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(path)
        .status()
        .map_err(EditError::File)?;
    match status.success() {
        true => Ok(()),
        false => Err(EditError::Editor { editor, status }),
    }
}

/// Reads the saved file, which must contain the same network and no other.
fn edited(path: &Path, text: String, name: &str) -> Result<Vec<ListedNetwork>, CallError> {
    let networks = parse_text(path, text)?;
    match networks.iter().find(|listed| listed.name() != name) {
        Some(other) => {
            Err(EditError::Renamed { name: name.to_owned(), other: other.name().to_owned() }.into())
        }
        None => Ok(networks),
    }
}
