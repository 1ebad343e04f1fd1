//! What two operators have changed at the same network.

use offload_proto::v1::{ApplyNetworkRequest, Network};
use similar::TextDiff;

use super::request::ask;
use crate::{
    client::Client,
    console::Console,
    error::CallError,
    format::yaml,
    get::{networks, one_named},
    text::printable,
};

/// Lines around each difference.
const CONTEXT: usize = 2;

/// Prints what `wanted` would change of the network that is in force.
pub(super) async fn show(
    client: &mut Client,
    wanted: Network,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let name = wanted.name.clone();
    let in_force = match one_named(networks(client).await?.networks, &name) {
        Ok(status) => yaml(&status.network)?,
        // It was deleted: all of it would be new.
        Err(_) => String::new(),
    };
    let wanted = yaml(&spelled_by_service(client, wanted).await)?;
    let difference = TextDiff::from_lines(&in_force, &wanted);
    let mut difference = difference.unified_diff();
    let difference = difference.context_radius(CONTEXT).header("in force", "yours").to_string();
    difference.lines().try_for_each(|line| console.note(&printable(line)))
}

/// The network as the service would have it: defaults are there, and addresses are written in one way. Where the service
/// refuses it, it is as the operator wrote it.
async fn spelled_by_service(client: &mut Client, wanted: Network) -> Network {
    let question = ApplyNetworkRequest {
        network: Some(wanted.clone()),
        dry_run: true,
        ..ApplyNetworkRequest::default()
    };
    let answer = ask(client, question).await.ok();
    answer.and_then(|answer| answer.network?.network).unwrap_or(wanted)
}
