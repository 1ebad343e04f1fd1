//! `dpuctl describe`: shows everything about one thing.

mod attachment;
mod dpu;
mod ended;
mod network;
mod settings;

use offload_proto::Reason;

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
    get::{attachment, attachments_called, networks, one_named},
    status::dpu,
};

pub(crate) async fn describe(
    client: &mut Client,
    what: Described,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let text = match what {
        Described::Attachment { name } => of_attachment(client, &name).await?,
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

/// The attachment whose id begins with `name`; else the only attachment that `name` matches; else an ended one.
async fn of_attachment(client: &mut Client, name: &str) -> Result<String, CallError> {
    let unknown = match attachment(client, name).await {
        Ok(detail) => return Ok(attachment_text(&detail)),
        Err(error) if error.reason() == Some(Reason::AttachmentUnknown) => error,
        Err(error) => return Err(error),
    };
    match attachments_called(client, name).await?.as_slice() {
        [] => ended(client, name, unknown).await,
        [one] => Ok(attachment_text(&attachment(client, &one.id).await?)),
        several => Err(CallError::Several {
            name: name.to_owned(),
            ids: several.iter().map(|it| it.id.clone()).collect(),
        }),
    }
}
