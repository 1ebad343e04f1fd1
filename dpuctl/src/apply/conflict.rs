//! Shows what differs between an operator's network and the one in force.

use offload_proto::v1::{ApplyNetworkRequest, Network, operator_client::OperatorClient};
use similar::TextDiff;

use crate::{
    client::Client,
    console::Console,
    error::CallError,
    format::yaml,
    get::{networks, one_named},
    text::printable,
};

/// Number of unchanged lines around each difference.
const CONTEXT: usize = 2;

/// Prints what `wanted` would change in the network in force.
pub(super) async fn show(
    client: &mut Client,
    wanted: Network,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let name = wanted.name.clone();
    let in_force = match one_named(networks(client).await?.networks, &name) {
        Ok(status) => yaml(&status.network)?,
        // A deleted network: all of `wanted` is new.
        Err(_) => String::new(),
    };
    let wanted = yaml(&spelled_by_service(client, wanted).await)?;
    let difference = TextDiff::from_lines(&in_force, &wanted);
    let mut difference = difference.unified_diff();
    let difference = difference.context_radius(CONTEXT).header("in force", "yours").to_string();
    difference.lines().try_for_each(|line| console.note(&printable(line)))
}

/// The network as the service normalises it, with defaults and one spelling of addresses. The operator's own spelling
/// if the service refuses it.
async fn spelled_by_service(client: &mut Client, wanted: Network) -> Network {
    let question = ApplyNetworkRequest {
        network: Some(wanted.clone()),
        dry_run: true,
        ..ApplyNetworkRequest::default()
    };
    let answer = client.call(OperatorClient::apply_network, question).await.ok();
    answer.and_then(|answer| answer.network?.network).unwrap_or(wanted)
}
