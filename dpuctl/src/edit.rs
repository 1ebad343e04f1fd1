//! `dpuctl edit`: a network in the operator's editor.

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{Command, ExitStatus},
};

use offload_proto::v1::{ListNetworksResponse, NetworkStatus};
use tempfile::NamedTempFile;

use crate::{
    apply::{CONFIGURATION, ListedNetwork, apply, read},
    client::Client,
    console::Console,
    error::{CallError, EditError},
    format::yaml,
    get::{network_named, networks},
};

/// What an operator who has set none gets.
const EDITOR: &str = "vi";

/// Opens the network in the operator's editor and applies what was saved. What can't be applied stays in its file.
pub(crate) async fn edit(
    client: &mut Client,
    name: &str,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let status = network_named(networks(client).await?.networks, name)?;
    if status.origin == CONFIGURATION {
        return Err(EditError::Fixed(name.to_owned()).into());
    }
    let before = document(status)?;
    let file = temporary_file(&before).map_err(EditError::File)?;
    run_editor(file.path())?;
    if fs::read_to_string(file.path()).map_err(EditError::File)? == before {
        return Err(CallError::Declined);
    }
    let applied = match edited(file.path(), name, console) {
        Ok(networks) => apply(client, networks, false, false, console).await,
        Err(error) => Err(error),
    };
    if applied.is_err()
        && let Ok((_, path)) = file.keep()
    {
        console.note(&format!("your changes are in {}", path.display()))?;
    }
    applied
}

/// The network as `get networks -o yaml` prints it, without what it counts.
fn document(status: NetworkStatus) -> Result<String, CallError> {
    let NetworkStatus { network, origin, resource_version, .. } = status;
    let status = NetworkStatus { network, origin, resource_version, ..NetworkStatus::default() };
    yaml(&ListNetworksResponse { networks: vec![status] })
}

/// Editors choose colours and rules by the name's end.
fn temporary_file(content: &str) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("dpuctl-").suffix(".yaml").tempfile()?;
    file.write_all(content.as_bytes())?;
    Ok(file)
}

/// `VISUAL` and `EDITOR` may hold arguments, too, so that a shell reads them, as git and kubectl have it.
fn run_editor(path: &Path) -> Result<(), EditError> {
    let chosen = ["VISUAL", "EDITOR"].iter().find_map(|variable| env::var(variable).ok());
    let editor = chosen.filter(|editor| !editor.trim().is_empty()).unwrap_or(EDITOR.into());
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(path)
        .status()
        .map_err(EditError::File)?;
    match ExitStatus::success(&status) {
        true => Ok(()),
        false => Err(EditError::Editor { editor, status }),
    }
}

/// What was saved: the same network and no other.
fn edited(
    path: &Path,
    name: &str,
    console: &mut Console<'_>,
) -> Result<Vec<ListedNetwork>, CallError> {
    let networks = read(path, console)?;
    match networks.iter().find(|listed| listed.name() != name) {
        Some(other) => {
            Err(EditError::Renamed { name: name.to_owned(), other: other.name().to_owned() }.into())
        }
        None => Ok(networks),
    }
}
