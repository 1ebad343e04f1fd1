//! `dpuctl events`: lists events and follows new ones.

use std::time::Duration;

use bootstrap::Chain;
use jiff::Timestamp;
use offload_proto::v1::{
    Event, EventCursor, EventFilter, EventSeverity, ListEventsRequest, ListEventsResponse,
    WatchRequest, operator_client::OperatorClient,
};
use tokio::time::sleep;

use crate::{
    arguments::{Events, Format, Options},
    client::Client,
    console::Console,
    error::CallError,
    format::{Audience, json_line, print_encoded, yaml_document},
    table::narrow_or_wide,
    text::{age, one_line, or_dash, seconds, short_id, state},
};

/// Delay between attempts to reconnect.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn events(
    options: &Options,
    wanted: &Events,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let mut client = Client::connect(options).await?;
    let request = ListEventsRequest { filter: Some(wanted.filter()) };
    let listed = client.call(OperatorClient::list_events, request).await?;
    if !wanted.follow {
        return print(&listed, client.now(), wanted.output, console);
    }
    for event in &listed.events {
        console.line(&line(event, wanted.output)?)?;
    }
    note_dropped(&listed, console)?;
    let filter = EventFilter { within_s: 0, ..wanted.filter() };
    let mut follower = Follower { filter, format: wanted.output, end: listed.end };
    loop {
        let ended = follower.follow(&mut client, console).await;
        client = follower.reconnect(ended, options, console).await?;
    }
}

fn print(
    listed: &ListEventsResponse,
    now: Timestamp,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match print_encoded(listed, format, console)? {
        Audience::Programs => return Ok(()),
        Audience::People { .. } if listed.events.is_empty() => console.note("No events.")?,
        Audience::People { wide } => console.print(&event_table(&listed.events, wide, now))?,
    }
    note_dropped(listed, console)
}

/// Reports how many events the DPU could not write.
fn note_dropped(listed: &ListEventsResponse, console: &mut Console<'_>) -> Result<(), CallError> {
    let ListEventsResponse { dropped, dropped_since, .. } = listed;
    if *dropped == 0 {
        return Ok(());
    }
    console.note(&format!(
        "Events dropped: {dropped}, since {dropped_since}. The DPU could not write them to its disk, and lists them until \
         dpu-service ends. See `dpuctl explain EVENTS_NOT_WRITTEN`."
    ))
}

/// Continues after the latest event that was printed.
struct Follower {
    filter: EventFilter,
    format: Format,
    end: Option<EventCursor>,
}

impl Follower {
    /// Prints events until the stream ends. `Ok`: the DPU ended the stream.
    async fn follow(
        &mut self,
        client: &mut Client,
        console: &mut Console<'_>,
    ) -> Result<(), CallError> {
        let request = WatchRequest { filter: Some(self.filter.clone()), after: self.end.clone() };
        let mut events = client.watch(request).await?;
        while let Some(event) = events.message().await.map_err(|status| client.failed(status))? {
            console.line(&line(&event, self.format)?)?;
            self.end = Some(EventCursor { boot: event.boot, revision: event.revision });
        }
        Ok(())
    }

    /// Reconnects without a time limit, unless the error is permanent.
    async fn reconnect(
        &self,
        mut ended: Result<(), CallError>,
        options: &Options,
        console: &mut Console<'_>,
    ) -> Result<Client, CallError> {
        let why = ended.as_ref().err().map(|error| format!(": {}", Chain(error)));
        let why = why.unwrap_or_default();
        console.note(&format!("The stream of events ended{why}. Connecting again."))?;
        loop {
            match ended {
                Err(error) if !error.is_passing() => return Err(error),
                _ => sleep(PAUSE).await,
            }
            match Client::connect(options).await {
                Ok(client) => return Ok(client),
                Err(error) => ended = Err(error),
            }
        }
    }
}

fn event_table(events: &[Event], wide: bool, now: Timestamp) -> String {
    let headings =
        ["AGE", "TYPE", "KIND", "OBJECT", "COUNT", "MESSAGE", "REASON", "BY", "BOOT", "SEQUENCE"];
    let row = |event: &Event| {
        vec![
            age(&event.time, now),
            severity(event),
            event.kind.clone(),
            if wide { event.subject.clone() } else { short_id(&event.subject).into() },
            event.count.to_string(),
            event.message.clone(),
            or_dash(&event.reason).into(),
            event.author.clone(),
            event.boot.clone(),
            event.sequence.to_string(),
        ]
    };
    narrow_or_wide(&headings, 6, wide, events.iter().map(row))
}

fn severity(event: &Event) -> String {
    let name = EventSeverity::try_from(event.severity).unwrap_or_default().as_str_name();
    state(name, "EVENT_SEVERITY_")
}

fn line(event: &Event, format: Format) -> Result<String, CallError> {
    match format {
        Format::Table => Ok(event_line(event, short_id(&event.subject))),
        Format::Wide => Ok(event_line(event, &event.subject)),
        Format::Json => json_line(event),
        Format::Yaml => yaml_document(event),
    }
}

/// One line per event of an attachment, with its author.
pub(crate) fn event_lines<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    events.into_iter().map(|event| event_line(event, &event.author) + "\n").collect()
}

/// Formats one event for people; `subject` is the object's short name.
fn event_line(event: &Event, subject: &str) -> String {
    let Event { time, kind, message, .. } = event;
    let (severity, repeated) = (severity(event), repetition(event));
    one_line(&format!("{time}  {severity:<7}  {kind}  {subject}  {message}{repeated}"))
}

/// How often the event happened so far, if more than once.
fn repetition(event: &Event) -> String {
    let times = (event.first_time.parse::<Timestamp>(), event.time.parse::<Timestamp>());
    match times {
        (Ok(first), Ok(last)) if event.count > 1 => {
            let what = if event.kind == "AttachRefused" { "ADDs refused" } else { "times" };
            let lasted = u64::try_from(last.duration_since(first).as_secs()).unwrap_or_default();
            format!(": {} {what} in the last {}", event.count, seconds(lasted.max(1)))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            sequence: 7,
            revision: 21,
            time: "2026-03-01T12:04:58Z".into(),
            first_time: "2026-03-01T12:00:00Z".into(),
            count: 14,
            kind: "AttachRefused".into(),
            subject: "pool/default".into(),
            message: "pool default has no free VF (16 of 16 in use)".into(),
            severity: EventSeverity::Warning.into(),
            reason: "VFS_EXHAUSTED".into(),
            author: "host/node-1".into(),
            ..Event::default()
        }
    }

    #[test]
    fn repeated_event_has_its_count() {
        let line = event_line(&event(), "pool/default");
        let expected = "2026-03-01T12:04:58Z  Warning  AttachRefused  pool/default  \
                        pool default has no free VF (16 of 16 in use): 14 ADDs refused in the last 4m58s";
        assert_eq!(line, expected);
        let (time, kind) = (event().first_time, "HostDisconnected".into());
        let at_once = Event { time, kind, count: 2, ..event() };
        assert!(event_line(&at_once, "node-1").ends_with(": 2 times in the last 1s"));
        let once = Event { count: 1, ..event() };
        assert!(event_line(&once, "pool/default").ends_with("(16 of 16 in use)"));
    }

    #[test]
    fn table_has_one_row_per_event() {
        let now = "2026-03-01T12:05:00Z".parse().unwrap();
        let table = event_table(&[event()], false, now);
        let expected = "\
AGE   TYPE      KIND            OBJECT         COUNT   MESSAGE
2s    Warning   AttachRefused   pool/default   14      pool default has no free VF (16 of 16 in use)
";
        assert_eq!(table, expected);
        assert!(event_table(&[event()], true, now).contains("VFS_EXHAUSTED   host/node-1"));
    }
}
