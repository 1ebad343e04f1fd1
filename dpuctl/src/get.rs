//! `dpuctl get`: lists.

use offload_proto::v1::{
    Attachment, ListAttachmentsRequest, ListAttachmentsResponse, ListNetworksRequest,
    ListNetworksResponse, ListPoolsRequest, ListPoolsResponse, ListVfsRequest, ListVfsResponse,
    NetworkStatus, VfStatus,
};

use crate::{
    arguments::{Format, Listed},
    client::Client,
    console::Console,
    error::CallError,
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
            keep_named(&mut answer.vfs, name.as_deref(), "VF", is_vf)?;
            print(&answer, &answer.vfs, output, "VFs", vf_table, console)
        }
        Listed::Attachments { id, network, host, output } => {
            let mut answer = attachments(client, network, host).await?;
            keep_attachment(&mut answer.attachments, id.as_deref())?;
            print(&answer, &answer.attachments, output, "attachments", attachment_table, console)
        }
        Listed::Networks { name, output } => {
            let mut answer = networks(client).await?;
            keep_named(&mut answer.networks, name.as_deref(), "network", is_network)?;
            print(&answer, &answer.networks, output, "networks", network_table, console)
        }
        Listed::Pools { name, output } => {
            let mut answer = pools(client).await?;
            keep_named(&mut answer.pools, name.as_deref(), "pool", |pool, name| pool.name == name)?;
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
    found.ok_or_else(|| CallError::Unknown { what: "network", name: name.into() })
}

fn is_network(network: &NetworkStatus, name: &str) -> bool {
    network.network.as_ref().is_some_and(|network| network.name == name)
}

fn is_vf(vf: &VfStatus, name: &str) -> bool {
    vf_name(vf.vf.as_ref()) == name || vf.vf.as_ref().is_some_and(|vf| vf.pci_address == name)
}

fn keep_named<T>(
    items: &mut Vec<T>,
    name: Option<&str>,
    what: &'static str,
    is: impl Fn(&T, &str) -> bool,
) -> Result<(), CallError> {
    let Some(name) = name else { return Ok(()) };
    items.retain(|item| is(item, name));
    if items.is_empty() { Err(CallError::Unknown { what, name: name.into() }) } else { Ok(()) }
}

fn keep_attachment(
    attachments: &mut Vec<Attachment>,
    prefix: Option<&str>,
) -> Result<(), CallError> {
    let Some(prefix) = prefix else { return Ok(()) };
    attachments.retain(|attachment| attachment.id.starts_with(prefix));
    match attachments.len() {
        0 => Err(CallError::Unknown { what: "attachment", name: prefix.into() }),
        1 => Ok(()),
        count => Err(CallError::Ambiguous { prefix: prefix.into(), count }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(id: &str) -> Attachment {
        Attachment { id: id.into(), ..Attachment::default() }
    }

    #[test]
    fn beginnings_of_ids_must_be_unique() {
        let all = || vec![attachment("0190aaaa"), attachment("0190bbbb")];
        let mut one = all();
        keep_attachment(&mut one, Some("0190b")).unwrap();
        assert_eq!(one, [attachment("0190bbbb")]);
        let ambiguous = keep_attachment(&mut all(), Some("0190")).unwrap_err().to_string();
        assert_eq!(ambiguous, "\"0190\" is the beginning of 2 attachments' ids; give more of it");
        let unknown = keep_attachment(&mut all(), Some("02")).unwrap_err().to_string();
        assert_eq!(unknown, "there is no attachment \"02\"");
    }
}
