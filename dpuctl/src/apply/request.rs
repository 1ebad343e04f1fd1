//! The call by which networks are applied.

use offload_proto::v1::{ApplyNetworkRequest, ApplyNetworkResponse, Network};

use crate::{client::Client, error::CallError};

pub(super) async fn ask(
    client: &mut Client,
    question: ApplyNetworkRequest,
) -> Result<ApplyNetworkResponse, CallError> {
    client.call(async |operator, request| operator.apply_network(request).await, question).await
}

/// The network with the defaults of the service's own file, where a message that leaves a field out means less.
pub(super) fn with_defaults(mut network: Network) -> Network {
    if network.anti_spoofing.is_empty() && !network.allow_mac_spoofing {
        network.anti_spoofing = "full".into();
    }
    network
}
