//! `dpuctl delete`, `release` and `clear-quarantine`.

use offload_proto::v1::{
    Attachment, ClearQuarantineRequest, DeleteNetworkRequest, ReleaseAttachmentRequest,
};
use vf_alloc::FunctionId;

use crate::{
    arguments::Deleted,
    client::Client,
    console::Console,
    error::CallError,
    get::attachment,
    rows::pod_name,
    text::{printable, vf_message},
};

pub(crate) async fn delete(
    client: &mut Client,
    what: Deleted,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let Deleted::Network { name, force } = what;
    let question = DeleteNetworkRequest { name: name.clone(), force };
    client.call(async |operator, request| operator.delete_network(request).await, question).await?;
    console.line(&format!("network/{name} deleted"))
}

/// Asks first, unless `yes`: the pod loses its network at once.
pub(crate) async fn release(
    client: &mut Client,
    id: &str,
    reason: String,
    yes: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let attachment = attachment(client, id).await?.attachment.unwrap_or_default();
    if !yes {
        confirm(&attachment, console)?;
    }
    let question = ReleaseAttachmentRequest { id: attachment.id.clone(), reason };
    client
        .call(async |operator, request| operator.release_attachment(request).await, question)
        .await?;
    console.line(&format!("attachment/{} releasing", attachment.id))
}

fn confirm(attachment: &Attachment, console: &mut Console<'_>) -> Result<(), CallError> {
    if !console.interactive {
        return Err(CallError::Unconfirmed);
    }
    let Attachment { id, host, .. } = attachment;
    let pod = pod_name(attachment);
    let question = format!("Release attachment {id} of pod {pod} on host {host}?");
    if console.confirm(&printable(&question))? { Ok(()) } else { Err(CallError::Declined) }
}

pub(crate) async fn clear_quarantine(
    client: &mut Client,
    vf: FunctionId,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let question = ClearQuarantineRequest { vf: Some(vf_message(vf)) };
    client
        .call(async |operator, request| operator.clear_quarantine(request).await, question)
        .await?;
    console.line(&format!("vf/{vf} cleared"))
}
