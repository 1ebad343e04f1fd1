//! `dpuctl describe`: all about one thing.

mod attachment;
mod dpu;
mod ended;
mod network;
mod settings;

use self::{
    attachment::attachment_text,
    dpu::{dpu_text, host_text},
    ended::ended,
    network::network_text,
};
use crate::{
    arguments::Described,
    client::Client,
    console::Console,
    error::CallError,
    get::{attachment, networks, one_named},
    status::dpu,
};

pub(crate) async fn describe(
    client: &mut Client,
    what: Described,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let text = match what {
        Described::Attachment { id } => match attachment(client, &id).await {
            Ok(detail) => attachment_text(&detail),
            Err(error) => ended(client, &id, error).await?,
        },
        Described::Dpu => {
            let dpu = dpu(client).await?;
            dpu_text(&dpu, client.now())
        }
        Described::Host { name } => host_text(&one_named(dpu(client).await?.hosts, &name)?),
        Described::Network { name } => {
            network_text(&one_named(networks(client).await?.networks, &name)?)
        }
    };
    console.print(&text)
}
