//! `dpuctl get`: lists things.

use std::collections::BTreeMap;

use jiff::Timestamp;
use offload_proto::v1::{
    Attachment, AttachmentDetail, GetAttachmentRequest, ListAttachmentsRequest,
    ListNetworksRequest, ListNetworksResponse, ListPoolsRequest, ListVfsRequest, PoolStatus,
    VfStatus, operator_client::OperatorClient,
};

use crate::{
    arguments::{ListFormat, ListOptions, Listed},
    client::Client,
    console::Console,
    error::CallError,
    follow::follow,
    format::{json, yaml},
    lookup::is_called,
    rows::{Resource, name_with_kind},
    sort::sort,
    status::dpu,
    table::Layout,
};

pub(crate) async fn get(
    client: &mut Client,
    what: Listed,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match what {
        Listed::Vfs { name, host, options } => {
            let ask =
                async |client: &mut Client| vfs(client, name.as_deref(), host.as_deref()).await;
            list(client, ask, &options, console).await
        }
        Listed::Attachments { wanted, network, host, options } => {
            let (network, host) = (network.unwrap_or_default(), host.unwrap_or_default());
            let ask = async |client: &mut Client| {
                let all = attachments(client, &network, &host).await?;
                if all.is_empty() {
                    check_filters(client, &network, &host).await?;
                }
                named(all, wanted.as_deref(), is_called)
            };
            list(client, ask, &options, console).await
        }
        Listed::Networks { name, options } => {
            let ask = async |client: &mut Client| {
                named(networks(client).await?.networks, name.as_deref(), is_it)
            };
            list(client, ask, &options, console).await
        }
        Listed::Pools { name, options } => {
            let ask =
                async |client: &mut Client| named(pools(client).await?, name.as_deref(), is_it);
            list(client, ask, &options, console).await
        }
        Listed::Hosts { name, options } => {
            let ask =
                async |client: &mut Client| named(dpu(client).await?.hosts, name.as_deref(), is_it);
            list(client, ask, &options, console).await
        }
    }
}

/// Prints the list, and its changes if `--watch` is set.
async fn list<T: Resource>(
    client: &mut Client,
    ask: impl AsyncFn(&mut Client) -> Result<Vec<T>, CallError>,
    options: &ListOptions,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let sorted = async |client: &mut Client| {
        let mut items = ask(client).await?;
        options.sort_by.as_ref().map_or(Ok(()), |by| sort(&mut items, by))?;
        Ok(items)
    };
    if options.watch {
        match follow(client, sorted, options, console).await? {}
    }
    let items = sorted(client).await?;
    print(&items, client.now(), options, console)
}

fn print<T: Resource>(
    items: &[T],
    now: Timestamp,
    options: &ListOptions,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match options.output {
        ListFormat::Json => console.print(&json(&BTreeMap::from([(T::LIST, items)]))?),
        ListFormat::Yaml => console.print(&yaml(&BTreeMap::from([(T::LIST, items)]))?),
        ListFormat::Name => items.iter().try_for_each(|item| console.line(&name_with_kind(item))),
        ListFormat::Table | ListFormat::Wide if items.is_empty() => {
            console.note(&format!("No {}s.", T::KIND))
        }
        ListFormat::Table | ListFormat::Wide => {
            let wide = options.output.is_wide();
            let (mut layout, rows) = (Layout::new(T::columns(wide)), T::rows(items, wide, now));
            console.print(&match options.no_headers {
                true => layout.rows(rows),
                false => layout.with_headings(rows),
            })
        }
    }
}

async fn vfs(
    client: &mut Client,
    name: Option<&str>,
    host: Option<&str>,
) -> Result<Vec<VfStatus>, CallError> {
    let answer = client.call(OperatorClient::list_vfs, ListVfsRequest {}).await?;
    let is_of_host = |vf: &VfStatus| host.is_none_or(|host| vf.host == host);
    let vfs: Vec<_> = answer.vfs.into_iter().filter(is_of_host).collect();
    if vfs.is_empty() {
        check_filters(client, "", host.unwrap_or_default()).await?;
    }
    let is_vf = |vf: &VfStatus, name: &str| {
        is_it(vf, name) || vf.vf.as_ref().is_some_and(|vf| vf.device == name)
    };
    named(vfs, name, is_vf)
}

/// The attachments of a network and host, which need not exist any more. An empty name means all.
pub(crate) async fn attachments(
    client: &mut Client,
    network: &str,
    host: &str,
) -> Result<Vec<Attachment>, CallError> {
    let question = ListAttachmentsRequest { network: network.into(), host: host.into() };
    Ok(client.call(OperatorClient::list_attachments, question).await?.attachments)
}

/// The attachments whose pod, container, address, VF or id matches `name`. Empty: none.
pub(crate) async fn attachments_called(
    client: &mut Client,
    name: &str,
) -> Result<Vec<Attachment>, CallError> {
    let mut all = attachments(client, "", "").await?;
    all.retain(|attachment| is_called(attachment, name));
    Ok(all)
}

/// The attachment whose id begins with `id`.
pub(crate) async fn attachment(
    client: &mut Client,
    id: &str,
) -> Result<AttachmentDetail, CallError> {
    let question = GetAttachmentRequest { id: id.into() };
    client.call(OperatorClient::get_attachment, question).await
}

pub(crate) async fn networks(client: &mut Client) -> Result<ListNetworksResponse, CallError> {
    client.call(OperatorClient::list_networks, ListNetworksRequest {}).await
}

async fn pools(client: &mut Client) -> Result<Vec<PoolStatus>, CallError> {
    Ok(client.call(OperatorClient::list_pools, ListPoolsRequest {}).await?.pools)
}

pub(crate) fn one_named<T: Resource>(items: Vec<T>, name: &str) -> Result<T, CallError> {
    let found = items.into_iter().find(|item| is_it(item, name));
    found.ok_or_else(|| CallError::Unknown { kind: T::KIND, name: name.into() })
}

fn is_it<T: Resource>(item: &T, name: &str) -> bool {
    item.name() == name
}

/// The items that `name` matches, at least one. Without a name all items.
fn named<T: Resource>(
    mut items: Vec<T>,
    name: Option<&str>,
    is: impl Fn(&T, &str) -> bool,
) -> Result<Vec<T>, CallError> {
    let Some(name) = name else { return Ok(items) };
    items.retain(|item| is(item, name));
    if items.is_empty() {
        return Err(CallError::Unknown { kind: T::KIND, name: name.into() });
    }
    Ok(items)
}

/// Fails if the network or host of a filter does not exist; an empty name is no filter. Call it only for an empty list:
/// attachments outlive a network that is deleted by force, and a host that leaves the configuration. They can still be
/// listed by both.
pub(crate) async fn check_filters(
    client: &mut Client,
    network: &str,
    host: &str,
) -> Result<(), CallError> {
    if !network.is_empty() {
        one_named(networks(client).await?.networks, network)?;
    }
    if !host.is_empty() {
        one_named(dpu(client).await?.hosts, host)?;
    }
    Ok(())
}
