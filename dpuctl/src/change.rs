//! `dpuctl add`, `rename`, `delete`, `release` and `clear-quarantine`.

use std::time::{Duration, Instant};

use offload_proto::{
    Reason,
    v1::{
        Attachment, AttachmentState, ChangeSubnetsRequest, ClearQuarantineRequest,
        DeleteNetworkRequest, ReleaseAttachmentRequest, RenameNetworkRequest, Subnet,
        operator_client::OperatorClient,
    },
};
use tokio::time::sleep;
use vf_alloc::FunctionId;

use crate::{
    arguments::{Added, Deleted, Renamed},
    client::Client,
    console::Console,
    error::{CallError, Kind},
    get::{attachment, attachments},
    rows::pod_name,
    status::dpu,
    text::{printable, vf_message},
};

/// How long the deletion of a network waits for attachments in release.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(50);

pub(crate) async fn delete(
    client: &mut Client,
    what: Deleted,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match what {
        Deleted::Network { name, force, why } => {
            let question = DeleteNetworkRequest { name: name.clone(), force, reason: why.text() };
            delete_network(client, &question).await?;
            console.line(&format!("network/{name} deleted"))
        }
        Deleted::Subnet { network, cidr, why } => {
            let (add, remove, reason) = (Vec::new(), vec![cidr], why.text());
            let question = ChangeSubnetsRequest { network, add, remove, reason };
            change_subnets(client, question, console).await
        }
    }
}

/// Deletes a network. Waits while only attachments in release use it: a DEL is answered before its VF and addresses are
/// free.
async fn delete_network(
    client: &mut Client,
    question: &DeleteNetworkRequest,
) -> Result<(), CallError> {
    let begun = Instant::now();
    loop {
        match client.call(OperatorClient::delete_network, question.clone()).await {
            Err(CallError::Refused(failure))
                if failure.reason == Reason::NetworkInUse
                    && begun.elapsed() < RELEASE_WAIT
                    && is_being_released(client, &question.name).await? =>
            {
                sleep(RELEASE_POLL).await;
            }
            other => return other.map(drop),
        }
    }
}

async fn is_being_released(client: &mut Client, network: &str) -> Result<bool, CallError> {
    let attachments = attachments(client, network, "").await?;
    Ok(attachments.iter().all(|one| one.state() == AttachmentState::Releasing))
}

pub(crate) async fn add(
    client: &mut Client,
    what: Added,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let Added::Subnet { network, cidr, gateway, exclude, why } = what;
    let gateway = gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
    let (add, remove) = (vec![Subnet { cidr, gateway, ranges: Vec::new(), exclude }], Vec::new());
    let question = ChangeSubnetsRequest { network, add, remove, reason: why.text() };
    change_subnets(client, question, console).await
}

pub(crate) async fn rename(
    client: &mut Client,
    what: Renamed,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let Renamed::Network { name, new_name, why } = what;
    let (from, to) = (name.clone(), new_name.clone());
    let question = RenameNetworkRequest { name: from, new_name: to, reason: why.text() };
    client.call(OperatorClient::rename_network, question).await?;
    console.line(&format!("network/{name} renamed to {new_name}"))
}

async fn change_subnets(
    client: &mut Client,
    question: ChangeSubnetsRequest,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let name = question.network.clone();
    let answer = client.call(OperatorClient::change_subnets, question).await?;
    console.line(&format!("network/{name} {}", answer.outcome))
}

/// Releases an attachment. Asks first, unless `yes`: the pod loses its network at once.
pub(crate) async fn release(
    client: &mut Client,
    mut question: ReleaseAttachmentRequest,
    yes: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let attachment = attachment(client, &question.id).await?.attachment.unwrap_or_default();
    if !yes {
        let (Attachment { id, host, .. }, pod) = (&attachment, pod_name(&attachment));
        ask(&format!("Release attachment {id} of pod {pod} on host {host}?"), console)?;
    }
    question.id.clone_from(&attachment.id);
    let state = if question.forget { "released" } else { "releasing" };
    client.call(OperatorClient::release_attachment, question).await?;
    console.line(&format!("attachment/{} {state}", attachment.id))
}

/// Releases all attachments of a host that is no longer in the service's configuration. Asks first, unless `yes`.
pub(crate) async fn release_host(
    client: &mut Client,
    host: &str,
    reason: String,
    yes: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    if dpu(client).await?.hosts.iter().any(|served| served.name == host) {
        return Err(CallError::HostServed(host.to_owned()));
    }
    let attachments = attachments(client, "", host).await?;
    if attachments.is_empty() {
        return Err(CallError::Unknown { kind: Kind::Host, name: host.to_owned() });
    }
    if !yes {
        let number = attachments.len();
        ask(&format!("Release {number} attachments of host {host}?"), console)?;
    }
    for Attachment { id, .. } in attachments {
        let (id_of, reason) = (id.clone(), reason.clone());
        let question = ReleaseAttachmentRequest { id: id_of, reason, forget: false };
        match client.call(OperatorClient::release_attachment, question).await {
            // It ended after the list was made.
            Err(CallError::Refused(failure)) if failure.reason == Reason::AttachmentUnknown => {}
            released => drop(released?),
        }
        console.line(&format!("attachment/{id} released"))?;
    }
    Ok(())
}

fn ask(question: &str, console: &mut Console<'_>) -> Result<(), CallError> {
    if !console.interactive {
        return Err(CallError::Unconfirmed);
    }
    if console.confirm(&printable(question))? { Ok(()) } else { Err(CallError::Declined) }
}

pub(crate) async fn clear_quarantine(
    client: &mut Client,
    vf: FunctionId,
    reason: String,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let question = ClearQuarantineRequest { vf: Some(vf_message(vf)), reason };
    client.call(OperatorClient::clear_quarantine, question).await?;
    console.line(&format!("vf/{vf} cleared"))
}
