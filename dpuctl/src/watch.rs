//! `dpuctl watch`: events as they happen.

use std::convert::Infallible;

use offload_proto::v1::Event;

use crate::{
    arguments::Format,
    client::Client,
    console::Console,
    error::CallError,
    format::{json_line, yaml},
    text::{printable, short_id},
};

/// Only an interrupt ends it well: who watches has to know that events are missed from now on.
pub(crate) async fn watch(
    client: &mut Client,
    format: Format,
    console: &mut Console<'_>,
) -> Result<Infallible, CallError> {
    let mut events = client.watch().await?;
    while let Some(event) = events.message().await.map_err(|status| ended(client.failed(status)))? {
        console.line(&line(&event, format)?)?;
    }
    Err(CallError::StreamEnded("the DPU closed it".into()))
}

/// What the DPU did not say itself is the connection's end.
fn ended(error: CallError) -> CallError {
    match error {
        CallError::Status(status) => CallError::StreamEnded(status.message().into()),
        told => told,
    }
}

fn line(event: &Event, format: Format) -> Result<String, CallError> {
    match format {
        Format::Table => Ok(event_line(event, short_id(&event.subject))),
        Format::Wide => Ok(event_line(event, &event.subject)),
        Format::Json => json_line(event),
        Format::Yaml => Ok(format!("---\n{}", yaml(event)?.trim_end())),
    }
}

/// One event for people, about what they know as `subject`.
pub(crate) fn event_line(event: &Event, subject: &str) -> String {
    let Event { time, kind, message, .. } = event;
    printable(&format!("{time}  {kind}  {subject}  {message}").replace('\n', " "))
}
