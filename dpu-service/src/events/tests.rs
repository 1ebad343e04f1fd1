//! The file of events across starts of the service.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicI64, Ordering},
};

use offload_proto::Reason;
use tempfile::TempDir;
use test_clock::wait_until;
use tracing::{Metadata, Subscriber, span, subscriber::with_default};

use super::{
    EventKind::{EventsDamaged, HostConnected, ServiceStarted, ServiceStopUnclean, ServiceStopped},
    log::LONGEST_TEXT,
    *,
};
use crate::host::examination::tests::record;

struct State(TempDir);

impl State {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join(FILE)
    }

    fn open(&self) -> Events {
        Events::open(self.0.path())
    }

    /// A start that records these subjects and stops cleanly.
    fn run(&self, subjects: &[&str]) {
        let events = self.open();
        for subject in subjects {
            events.record(HostConnected, subject, "connected");
        }
        events.close();
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap_or_default()
    }
}

fn kinds(events: &Events) -> Vec<EventKind> {
    events.list(&EventFilter::default()).0.iter().map(|event| event.kind).collect()
}

#[test]
fn events_outlast_the_service() {
    let state = State::new();
    state.run(&["node-1"]);
    let events = state.open();
    assert_eq!(kinds(&events), [ServiceStarted, HostConnected, ServiceStopped, ServiceStarted]);
    let (all, _) = events.list(&EventFilter::default());
    assert_eq!(all[0].boot, all[2].boot);
    assert_ne!(all[2].boot, all[3].boot);
    assert!(all.is_sorted_by(|a, b| a.revision < b.revision));
}

#[test]
fn events_are_written_without_a_stop() {
    let state = State::new();
    let events = state.open();
    events.record(HostConnected, "node-1", "connected");
    wait_until("the file has the event", || state.text().contains("node-1"));
    drop(events);
    let next = state.open();
    assert!(kinds(&next).ends_with(&[HostConnected, ServiceStopUnclean, ServiceStarted]));
}

#[test]
fn service_killed_at_its_start_stopped_uncleanly() {
    let state = State::new();
    // Drops neither writer nor file: as if killed.
    std::mem::forget(state.open());
    let next = state.open();
    assert_eq!(kinds(&next), [ServiceStarted, ServiceStopUnclean, ServiceStarted]);
}

#[test]
fn clean_stops_are_not_reported_as_unclean() {
    let state = State::new();
    state.run(&[]);
    state.run(&[]);
    assert!(!kinds(&state.open()).contains(&ServiceStopUnclean));
}

#[test]
fn repeated_event_is_one_after_restart() {
    let state = State::new();
    let events = state.open();
    let failure = Failure::new(Reason::VfsExhausted, "no free VF");
    events.record_failure(EventKind::AttachmentFailed, "pool/default", &failure);
    wait_until("the first is written", || state.text().contains("pool/default"));
    (0..13).for_each(|_| {
        events.record_failure(EventKind::AttachmentFailed, "pool/default", &failure);
    });
    events.close();
    let about = state.open().about("pool/default");
    assert_eq!(about.iter().map(|event| event.count).collect::<Vec<_>>(), [14]);
    assert_eq!(about[0].reason.as_deref(), Some("VFS_EXHAUSTED"));
}

#[test]
fn damaged_file_is_moved_aside_and_reported() {
    let state = State::new();
    state.run(&["node-1", "node-2"]);
    let damaged = state.text().replace("node-1", "node-1\"");
    fs::write(state.file(), &damaged).unwrap();
    let events = state.open();
    assert!(kinds(&events).contains(&EventsDamaged));
    assert!(events.about("node-1").is_empty());
    assert_eq!(events.about("node-2").len(), 1);
    let aside = state.0.path().join("events.jsonl.damaged");
    assert_eq!(fs::read_to_string(aside).unwrap(), damaged);
    events.close();
    assert!(state.text().contains("node-2") && !state.text().contains("node-1"));
}

#[test]
fn line_with_the_last_revision_is_damaged() {
    let state = State::new();
    state.run(&["node-1", "node-2"]);
    let last = format!("\"revision\":{},", u64::MAX);
    let damaged = state.text().replace("\"revision\":2,", &last);
    assert!(damaged.contains(&last), "{damaged}");
    fs::write(state.file(), damaged).unwrap();
    let events = state.open();
    assert!(kinds(&events).contains(&EventsDamaged));
    assert_eq!(["node-1", "node-2"].map(|subject| events.about(subject).len()), [0, 1]);
}

#[test]
fn start_that_was_not_written_repeats_no_event() {
    let state = State::new();
    state.run(&["node-1"]);
    let written = state.text();
    let events = state.open();
    events.record(HostConnected, "node-2", "connected");
    let (_, seen) = events.list(&EventFilter::default());
    events.close();
    fs::write(state.file(), written).unwrap();
    let next = state.open();
    next.record(HostConnected, "node-3", "connected");
    let (backlog, _feed) = next.watch_after(&seen);
    let kinds: Vec<_> = backlog.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [ServiceStarted, HostConnected]);
}

#[test]
fn half_a_last_line_is_cut_off() {
    let state = State::new();
    state.run(&["node-1"]);
    fs::write(state.file(), state.text() + "{\"boot\":").unwrap();
    let events = state.open();
    assert!(!kinds(&events).contains(&EventsDamaged));
    assert_eq!(events.about("node-1").len(), 1);
}

#[test]
fn folder_in_place_of_events_is_moved_aside() {
    let state = State::new();
    fs::create_dir(state.file()).unwrap();
    state.run(&["node-1"]);
    assert_eq!(state.open().about("node-1").len(), 1);
}

#[test]
fn missing_file_starts_an_empty_log() {
    let state = State::new();
    assert_eq!(kinds(&state.open()), [ServiceStarted]);
}

#[test]
fn events_that_cannot_be_written_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let events = Events::open(&folder.path().join("missing"));
    events.record(HostConnected, "node-1", "connected");
    events.close();
    let dropped = events.dropped();
    let first = events.list(&EventFilter::default()).0[0].time;
    assert_eq!((dropped.number, dropped.since), (3, Some(first)));
    assert!(dropped.failure.is_some() && events.about("node-1").len() == 1);
}

#[test]
fn file_is_tried_again_without_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let events = Events::open(&state);
    assert!(events.dropped().failure.is_some());
    fs::create_dir(&state).unwrap();
    wait_until("the file is written", || events.dropped().failure.is_none());
    assert_eq!(events.dropped().number, 1, "what was dropped stays counted");
}

#[test]
fn file_is_private_and_bounded() {
    use std::os::unix::fs::PermissionsExt;
    let state = State::new();
    let events = state.open();
    for number in 0..3 * log::KEPT {
        events.record(HostConnected, number, "connected");
        if number % 1000 == 0 {
            events.writer.as_ref().unwrap().flush();
        }
    }
    events.close();
    assert!(state.text().lines().count() <= 2 * log::KEPT + 2000);
    assert_eq!(fs::metadata(state.file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn attached_pod_of_evicted_events_is_not_recorded() {
    let (events, record) = (Events::default(), record());
    let id = record.id.to_string();
    events.record_reserved(&record);
    events.record_attached(&record);
    events.record_attached(&record);
    assert_eq!(events.about(&id).iter().map(|event| event.count).collect::<Vec<_>>(), [1, 1]);
    (0..log::KEPT).for_each(|number| events.record(HostConnected, number, "connected"));
    events.record_attached(&record);
    assert!(events.about(&id).is_empty());
}

#[test]
fn every_kind_has_its_name() {
    for kind in EventKind::ALL {
        assert_eq!(EventKind::named(kind.as_str()), Some(*kind));
    }
    assert_eq!(EventKind::named("Unknown"), None);
}

#[test]
fn every_kind_is_counted_from_zero() {
    let events = Events::default();
    events.record(HostConnected, "node-1", "connected");
    let counts = events.counts();
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), EventKind::ALL);
    assert_eq!((counts[&HostConnected], counts.values().sum::<u64>()), (1, 1));
}

#[test]
fn texts_of_events_are_bounded() {
    let events = Events::default();
    events.record(HostConnected, "s".repeat(100_000), "m".repeat(100_000));
    let (listed, _) = events.list(&EventFilter::default());
    assert!(listed[0].subject.len() < 2 * LONGEST_TEXT, "{}", listed[0].subject.len());
    assert!(listed[0].message.len() < 2 * LONGEST_TEXT, "{}", listed[0].message.len());
}

/// A subscriber that only counts log lines.
#[derive(Clone, Debug, Default)]
struct LogLines(Arc<AtomicI64>);

impl Subscriber for LogLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn log_has_a_repetition_once_a_second() {
    let (events, lines) = (Events::default(), LogLines::default());
    let begun = Timestamp::now();
    with_default(lines.clone(), || {
        (0..100).for_each(|_| events.record(HostConnected, "node-1", "connected"));
    });
    let seconds = 1 + Timestamp::now().as_second() - begun.as_second();
    assert!((1..=seconds).contains(&lines.0.load(Ordering::Relaxed)), "{lines:?} in {seconds} s");
    assert_eq!(events.about("node-1")[0].count, 100);
}
