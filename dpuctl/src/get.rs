//! `dpuctl get`: lists.

use offload_proto::v1::{
    AttachmentDetail, GetAttachmentRequest, ListAttachmentsRequest, ListAttachmentsResponse,
    ListNetworksRequest, ListNetworksResponse, ListPoolsRequest, ListPoolsResponse, ListVfsRequest,
    ListVfsResponse, NetworkStatus, PoolStatus, VfStatus,
};

use crate::{
    arguments::{Format, Listed},
    client::Client,
    console::Console,
    error::{CallError, Kind},
    format::{Audience, print_encoded},
    rows::{attachment_table, network_table, pool_table, vf_table},
    text::vf_name,
};

pub(crate) async fn get(
    client: &mut Client,
    what: Listed,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match what {
        Listed::Vfs { name, host, output } => {
            let mut answer = vfs(client).await?;
            answer.vfs.retain(|vf| host.as_ref().is_none_or(|host| vf.host == *host));
            keep_named(&mut answer.vfs, name.as_deref(), Kind::Vf, is_vf)?;
            print(&answer, &answer.vfs, output, "VFs", vf_table, console)
        }
        Listed::Attachments { id, network, host, output } => {
            let answer = match id {
                Some(id) => one_attachment(client, &id, network, host).await?,
                None => attachments(client, network, host).await?,
            };
            print(&answer, &answer.attachments, output, "attachments", attachment_table, console)
        }
        Listed::Networks { name, output } => {
            let mut answer = networks(client).await?;
            keep_named(&mut answer.networks, name.as_deref(), Kind::Network, is_network)?;
            print(&answer, &answer.networks, output, "networks", network_table, console)
        }
        Listed::Pools { name, output } => {
            let mut answer = pools(client).await?;
            keep_named(&mut answer.pools, name.as_deref(), Kind::Pool, is_pool)?;
            print(&answer, &answer.pools, output, "pools", pool_table, console)
        }
    }
}

async fn vfs(client: &mut Client) -> Result<ListVfsResponse, CallError> {
    client.call(async |operator, request| operator.list_vfs(request).await, ListVfsRequest {}).await
}

async fn attachments(
    client: &mut Client,
    network: Option<String>,
    host: Option<String>,
) -> Result<ListAttachmentsResponse, CallError> {
    let question = ListAttachmentsRequest {
        network: network.unwrap_or_default(),
        host: host.unwrap_or_default(),
    };
    client.call(async |operator, request| operator.list_attachments(request).await, question).await
}

/// The attachment whose id begins with `id`.
pub(crate) async fn attachment(
    client: &mut Client,
    id: &str,
) -> Result<AttachmentDetail, CallError> {
    let question = GetAttachmentRequest { id: id.into() };
    client.call(async |operator, request| operator.get_attachment(request).await, question).await
}

/// The list of the attachment whose id begins with `id`. Which one that is, only the DPU decides.
async fn one_attachment(
    client: &mut Client,
    id: &str,
    network: Option<String>,
    host: Option<String>,
) -> Result<ListAttachmentsResponse, CallError> {
    let found = attachment(client, id).await?.attachment.filter(|attachment| {
        network.is_none_or(|network| attachment.network == network)
            && host.is_none_or(|host| attachment.host == host)
    });
    let unknown = || CallError::Unknown { kind: Kind::Attachment, name: id.into() };
    found.map(|it| ListAttachmentsResponse { attachments: vec![it] }).ok_or_else(unknown)
}

pub(crate) async fn networks(client: &mut Client) -> Result<ListNetworksResponse, CallError> {
    let question = ListNetworksRequest {};
    client.call(async |operator, request| operator.list_networks(request).await, question).await
}

async fn pools(client: &mut Client) -> Result<ListPoolsResponse, CallError> {
    let question = ListPoolsRequest {};
    client.call(async |operator, request| operator.list_pools(request).await, question).await
}

/// The network of that name.
pub(crate) fn network_named(
    networks: Vec<NetworkStatus>,
    name: &str,
) -> Result<NetworkStatus, CallError> {
    let found = networks.into_iter().find(|network| is_network(network, name));
    found.ok_or_else(|| CallError::Unknown { kind: Kind::Network, name: name.into() })
}

fn is_network(network: &NetworkStatus, name: &str) -> bool {
    network.network.as_ref().is_some_and(|network| network.name == name)
}

fn is_vf(vf: &VfStatus, name: &str) -> bool {
    vf_name(vf.vf.as_ref()) == name || vf.vf.as_ref().is_some_and(|vf| vf.device == name)
}

fn is_pool(pool: &PoolStatus, name: &str) -> bool {
    pool.name == name
}

fn keep_named<T>(
    items: &mut Vec<T>,
    name: Option<&str>,
    kind: Kind,
    is: impl Fn(&T, &str) -> bool,
) -> Result<(), CallError> {
    let Some(name) = name else { return Ok(()) };
    items.retain(|item| is(item, name));
    if items.is_empty() { Err(CallError::Unknown { kind, name: name.into() }) } else { Ok(()) }
}

fn print<A: serde::Serialize, T>(
    answer: &A,
    items: &[T],
    format: Format,
    plural: &str,
    table: impl Fn(&[T], bool) -> String,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match print_encoded(answer, format, console)? {
        Audience::Programs => Ok(()),
        Audience::People { .. } if items.is_empty() => console.note(&format!("No {plural}.")),
        Audience::People { wide } => console.print(&table(items, wide)),
    }
}
