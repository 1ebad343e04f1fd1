//! The call that applies one network.

use offload_proto::v1::{ApplyNetworkRequest, ApplyNetworkResponse};

use crate::{client::Client, error::CallError};

pub(super) async fn ask(
    client: &mut Client,
    question: ApplyNetworkRequest,
) -> Result<ApplyNetworkResponse, CallError> {
    client.call(async |operator, request| operator.apply_network(request).await, question).await
}
