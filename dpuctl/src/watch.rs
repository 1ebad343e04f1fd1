//! `dpuctl watch`: events as they happen.

use offload_proto::v1::Event;

use crate::{
    arguments::Format,
    client::Client,
    console::Console,
    error::CallError,
    format::{json_line, yaml},
    text::printable,
};

pub(crate) async fn watch(
    client: &mut Client,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let mut events = client.watch().await?;
    while let Some(event) = events.message().await.map_err(|status| client.failed(status))? {
        console.line(&line(&event, format)?)?;
    }
    console.note("The DPU ended the stream of events.")
}

fn line(event: &Event, format: Format) -> Result<String, CallError> {
    match format {
        Format::Table | Format::Wide => Ok(event_line(event)),
        Format::Json => json_line(event),
        Format::Yaml => Ok(format!("---\n{}", yaml(event)?.trim_end())),
    }
}

/// One event for people.
pub(crate) fn event_line(event: &Event) -> String {
    let Event { time, kind, subject, message, .. } = event;
    printable(&format!("{time}  {kind}  {subject}  {message}").replace('\n', " "))
}
