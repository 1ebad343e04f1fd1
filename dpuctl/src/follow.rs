//! `dpuctl get --watch`: prints a list and then its changes.

use std::{collections::BTreeMap, convert::Infallible, iter, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    arguments::{ListFormat, ListOptions},
    client::Client,
    console::Console,
    error::CallError,
    format::{json_line, yaml_document},
    rows::{Resource, name_with_kind},
    table::{Layout, STATE},
};

/// Polling interval. A thing that appears and disappears within it is not seen.
const INTERVAL: Duration = Duration::from_secs(1);

/// The event of a removed item, printed with its last state.
const DELETED: &str = "DELETED";
/// The longest event, for the column's width.
const LONGEST_EVENT: &str = "MODIFIED";

/// Prints the list and then its changes. Only an interrupt ends it without an error.
pub(crate) async fn follow<T: Resource>(
    client: &mut Client,
    ask: impl AsyncFn(&mut Client) -> Result<Vec<T>, CallError>,
    options: &ListOptions,
    console: &mut Console<'_>,
) -> Result<Infallible, CallError> {
    let columns = columns::<T>(options.output);
    let layout = &mut Layout::new(&columns);
    layout.widen(0, LONGEST_EVENT);
    let mut before = Vec::new();
    let mut now = ask(client).await?;
    if !options.no_headers && options.output.is_table() {
        let rows = rows(&changes(&before, &now), options.output, client.now());
        console.print(&layout.with_headings(rows))?;
    } else {
        print(&changes(&before, &now), options.output, client.now(), layout, console)?;
    }
    loop {
        sleep(INTERVAL).await;
        before = now;
        now = or_nothing(ask(client).await)?;
        print(&changes(&before, &now), options.output, client.now(), layout, console)?;
    }
}

/// A named item that no longer exists has ended. While watching this is not an error.
fn or_nothing<T: Resource>(answered: Result<Vec<T>, CallError>) -> Result<Vec<T>, CallError> {
    match answered {
        Err(CallError::Unknown { kind, .. }) if kind == T::KIND => Ok(Vec::new()),
        answered => answered,
    }
}

/// A change of an item, in the words of Kubernetes' watches.
struct Change<T> {
    event: &'static str,
    item: T,
}

/// The changes between two polls in the list's order, then the removed items.
fn changes<T: Resource>(before: &[T], now: &[T]) -> Vec<Change<T>> {
    let mut earlier: BTreeMap<_, _> = before.iter().map(|item| (item.name(), item)).collect();
    let mut changes = Vec::new();
    for item in now {
        let event = match earlier.remove(&item.name()) {
            None => "ADDED",
            Some(old) if old != item => "MODIFIED",
            Some(_) => continue,
        };
        changes.push(Change { event, item: item.clone() });
    }
    changes.extend(earlier.into_values().map(|item| Change { event: DELETED, item: item.clone() }));
    changes
}

fn print<T: Resource>(
    changes: &[Change<T>],
    format: ListFormat,
    time: Timestamp,
    layout: &mut Layout<'_>,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let text = match format {
        ListFormat::Table | ListFormat::Wide => layout.rows(rows(changes, format, time)),
        ListFormat::Name => changes.iter().map(|it| name_with_kind(&it.item) + "\n").collect(),
        ListFormat::Json => encoded(changes, json_line)?,
        ListFormat::Yaml => encoded(changes, yaml_document)?,
    };
    console.print(&text)
}

fn columns<T: Resource>(format: ListFormat) -> Vec<&'static str> {
    iter::once("EVENT").chain(T::columns(format.is_wide()).iter().copied()).collect()
}

fn rows<T: Resource>(
    changes: &[Change<T>],
    format: ListFormat,
    time: Timestamp,
) -> Vec<Vec<String>> {
    let items: Vec<_> = changes.iter().map(|change| change.item.clone()).collect();
    let mut rows = T::rows(&items, format.is_wide(), time);
    let state = T::COLUMNS.iter().position(|column| *column == STATE);
    for (row, change) in rows.iter_mut().zip(changes) {
        if let Some(place) = state
            && change.event == DELETED
            && let Some(cell) = row.get_mut(place)
        {
            *cell = "-".into();
        }
        row.insert(0, change.event.into());
    }
    rows
}

fn encoded<T: Resource>(
    changes: &[Change<T>],
    encode: fn(&Value) -> Result<String, CallError>,
) -> Result<String, CallError> {
    let line = |Change { event, item }: &Change<T>| {
        let object = serde_json::to_value(item)?;
        Ok(encode(&json!({ "type": event, "object": object }))? + "\n")
    };
    changes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{Attachment, AttachmentState, PoolStatus};

    use super::*;
    use crate::{colour, error::Kind};

    fn pool(name: &str, free: u64) -> PoolStatus {
        PoolStatus { name: name.into(), free, ..PoolStatus::default() }
    }

    #[test]
    fn only_differences_are_printed() {
        let before = [pool("a", 1), pool("b", 1), pool("c", 1)];
        let now = [pool("d", 1), pool("b", 0), pool("c", 1)];
        let shown: Vec<_> =
            changes(&before, &now).into_iter().map(|it| (it.event, it.item)).collect();
        let expected =
            [("ADDED", pool("d", 1)), ("MODIFIED", pool("b", 0)), ("DELETED", pool("a", 1))];
        assert_eq!(shown, expected);
    }

    #[test]
    fn deleted_items_are_aligned_and_stateless() {
        let attachment = Attachment {
            id: "0190aaaa".into(),
            state: AttachmentState::Attached.into(),
            ..Attachment::default()
        };
        let columns = columns::<Attachment>(ListFormat::Table);
        let layout = &mut Layout::new(&columns);
        layout.widen(0, LONGEST_EVENT);
        let mut line = |before: &[Attachment], now: &[Attachment]| {
            let rows = rows(&changes(before, now), ListFormat::Table, Timestamp::UNIX_EPOCH);
            colour::without(&layout.rows(rows))
        };
        let all = std::slice::from_ref(&attachment);
        let (added, deleted) = (line(&[], all), line(all, &[]));
        assert_eq!(added.find("0190aaaa"), deleted.find("0190aaaa"));
        assert!(added.contains("Attached") && !deleted.contains("Attached"), "{deleted}");
    }

    #[test]
    fn a_watched_item_may_end() {
        let unknown = |kind| Err(CallError::Unknown { kind, name: "a".into() });
        assert!(or_nothing::<PoolStatus>(unknown(Kind::Pool)).unwrap().is_empty());
        assert!(or_nothing::<PoolStatus>(unknown(Kind::Network)).is_err());
    }
}
