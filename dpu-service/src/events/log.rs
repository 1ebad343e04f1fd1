//! The latest events in memory, oldest first. Repeated events are folded into one.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use uuid::{Uuid, Version};

use super::{
    ended::EndedAttachment,
    event::{Event, EventCursor, EventFilter, EventKind, Severity},
};
use crate::author::Author;

/// Maximum number of events.
pub(super) const KEPT: usize = 10_000;
/// Older events are listed only on request of an earlier time.
const LISTED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How long after its first occurrence an event can repeat.
const WINDOW: Duration = Duration::from_secs(5 * 60);
/// Longer for refused peers, which may retry for days.
const PEERS_WINDOW: Duration = Duration::from_secs(60 * 60);

/// Maximum length of subject and sentence, in bytes: hosts report names of any length, and all events must fit into one
/// answer.
pub(super) const LONGEST_TEXT: usize = 1024;

/// An occurrence as the caller reports it.
#[derive(Clone, Debug)]
pub(super) struct Occurrence {
    pub(super) kind: EventKind,
    pub(super) reason: Option<String>,
    pub(super) author: Author,
    pub(super) subject: String,
    pub(super) message: String,
    pub(super) ended: Option<Box<EndedAttachment>>,
}

impl Occurrence {
    /// An occurrence caused by the service itself, without a reason code. Long texts are cut.
    pub(super) fn new(
        kind: EventKind,
        subject: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            reason: None,
            author: Author::Service,
            subject: bootstrap::cut(subject.to_string(), LONGEST_TEXT),
            message: bootstrap::cut(message.into(), LONGEST_TEXT),
            ended: None,
        }
    }

    fn key(&self) -> u64 {
        key(self.kind, &self.subject, self.reason.as_ref(), &self.message)
    }

    fn repeats(&self, event: &Event) -> bool {
        let is_same = match &self.reason {
            Some(reason) => event.reason.as_ref() == Some(reason),
            None => event.reason.is_none() && event.message == self.message,
        };
        is_same && event.kind == self.kind && event.subject == self.subject
    }
}

/// Occurrences with equal keys are repetitions of one event. Without a reason code the sentence distinguishes them.
fn key(kind: EventKind, subject: &str, reason: Option<&String>, message: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let text = reason.map_or(message, String::as_str);
    (kind, subject, text).hash(&mut hasher);
    hasher.finish()
}

const fn window(kind: EventKind) -> Duration {
    match kind {
        EventKind::HostRefused | EventKind::PeerRefused => PEERS_WINDOW,
        _ => WINDOW,
    }
}

/// The latest events.
#[derive(Debug)]
pub(super) struct Log {
    boot: Uuid,
    last: u64,
    normal: ByRevision,
    warnings: ByRevision,
    /// Number of events of each kind in this start, including repetitions.
    counts: BTreeMap<EventKind, u64>,
    /// Revisions of events that may repeat, by key.
    repeatable: HashMap<u64, u64>,
}

type ByRevision = BTreeMap<u64, Arc<Event>>;

impl Log {
    /// Creates the log of the start `boot`, with events of earlier starts in the order of their revisions.
    pub(super) fn new(boot: Uuid, earlier: Vec<Event>) -> Self {
        let last = earlier.last().map_or(0, |event| event.revision);
        let mut log = Self {
            boot,
            last,
            normal: ByRevision::new(),
            warnings: ByRevision::new(),
            counts: EventKind::ALL.iter().map(|kind| (*kind, 0)).collect(),
            repeatable: HashMap::new(),
        };
        for event in earlier {
            let key = key(event.kind, &event.subject, event.reason.as_ref(), &event.message);
            log.repeatable.insert(key, event.revision);
            log.push(Arc::new(event));
        }
        log
    }

    /// Whether the log has an event that the occurrence would repeat, of any start.
    pub(super) fn has(&self, occurrence: &Occurrence) -> bool {
        let revision = self.repeatable.get(&occurrence.key());
        let kept = self.of(occurrence.kind.severity());
        let event = revision.and_then(|revision| kept.get(revision));
        event.is_some_and(|event| occurrence.repeats(event))
    }

    /// Adds an occurrence: as a new event, or as a repetition.
    pub(super) fn add(&mut self, occurrence: Occurrence, now: Timestamp) -> Arc<Event> {
        let key = occurrence.key();
        let repeated = self.take_repeated(&occurrence, now);
        self.last += 1;
        *self.counts.entry(occurrence.kind).or_default() += 1;
        let Occurrence { kind, reason, author, subject, message, ended } = occurrence;
        let (sequence, first_time, count) = match repeated {
            Some(earlier) => (earlier.sequence, earlier.first_time, earlier.count + 1),
            None => (self.last, now, 1),
        };
        let event = Arc::new(Event {
            boot: self.boot,
            sequence,
            revision: self.last,
            first_time,
            time: now,
            count,
            kind,
            reason,
            author,
            subject,
            message,
            ended,
        });
        self.push(Arc::clone(&event));
        self.repeatable.insert(key, self.last);
        self.forget_evicted();
        event
    }

    /// The event that the occurrence repeats, if it is recent enough.
    fn repeated(&self, occurrence: &Occurrence, now: Timestamp) -> Option<&Arc<Event>> {
        let revision = self.repeatable.get(&occurrence.key())?;
        let event = self.of(occurrence.kind.severity()).get(revision)?;
        let age = now.duration_since(event.first_time).unsigned_abs();
        let is_recent = age < window(occurrence.kind);
        // Events of earlier starts never change.
        (is_recent && event.boot == self.boot && occurrence.repeats(event)).then_some(event)
    }

    fn take_repeated(&mut self, occurrence: &Occurrence, now: Timestamp) -> Option<Arc<Event>> {
        let revision = self.repeated(occurrence, now)?.revision;
        self.of_mut(occurrence.kind.severity()).remove(&revision)
    }

    /// Whether to log the occurrence: each new event, and one repetition a second.
    pub(super) fn is_logged(&self, occurrence: &Occurrence, now: Timestamp) -> bool {
        let repeated = self.repeated(occurrence, now);
        repeated.is_none_or(|event| event.time.as_second() != now.as_second())
    }

    const fn of(&self, severity: Severity) -> &ByRevision {
        match severity {
            Severity::Normal => &self.normal,
            Severity::Warning => &self.warnings,
        }
    }

    const fn of_mut(&mut self, severity: Severity) -> &mut ByRevision {
        match severity {
            Severity::Normal => &mut self.normal,
            Severity::Warning => &mut self.warnings,
        }
    }

    fn push(&mut self, event: Arc<Event>) {
        if self.normal.len() + self.warnings.len() >= KEPT {
            self.evict();
        }
        self.of_mut(event.kind.severity()).insert(event.revision, event);
    }

    /// Removes keys of evicted events. Runs rarely: the map may grow to twice the log.
    fn forget_evicted(&mut self) {
        if self.repeatable.len() > 2 * KEPT {
            let (normal, warnings) = (&self.normal, &self.warnings);
            let is_kept =
                |revision: &u64| normal.contains_key(revision) || warnings.contains_key(revision);
            self.repeatable.retain(|_, revision| is_kept(revision));
        }
    }

    /// Removes the oldest event. Up to half of the log is reserved for warnings, because pods that come and go create
    /// thousands of normal events.
    fn evict(&mut self) {
        let oldest = |kept: &ByRevision| kept.keys().next().copied().unwrap_or(u64::MAX);
        let are_many = self.warnings.len() > KEPT / 2;
        if are_many && oldest(&self.warnings) < oldest(&self.normal) {
            self.warnings.pop_first();
        } else {
            self.normal.pop_first();
        }
    }

    /// The events that match the filter, oldest first. Without a time in the filter, the list starts with the first
    /// event of the last 7 days.
    pub(super) fn list(&self, filter: &EventFilter, now: Timestamp) -> Vec<Arc<Event>> {
        // Skips only a prefix: events after it are listed whatever their time, because the clock may have been wrong.
        let is_left_out = |event: &&Arc<Event>| {
            filter.since.is_none() && now.duration_since(event.time) > LISTED_FOR
        };
        let listed = self.all().skip_while(is_left_out);
        listed.filter(|event| filter.matches(event)).cloned().collect()
    }

    /// All events after the cursor, oldest first. If no event of the cursor's start is kept, as after a start on a full
    /// disk, returns all events that are not of earlier starts.
    pub(super) fn after(&self, cursor: &EventCursor) -> Vec<Arc<Event>> {
        let is_known =
            |event: &Event| event.boot == cursor.boot && event.revision <= cursor.revision;
        // The current start is always the latest, even if the clock was set back before it.
        let is_earlier =
            |event: &Event| event.boot != self.boot && is_before(event.boot, cursor.boot);
        let known = self.last_revision(is_known).or_else(|| self.last_revision(is_earlier));
        let known = known.unwrap_or_default();
        self.all().filter(|event| event.revision > known).cloned().collect()
    }

    fn last_revision(&self, is_meant: impl Fn(&Event) -> bool) -> Option<u64> {
        self.all().filter(|event| is_meant(event)).last().map(|event| event.revision)
    }

    /// Number of events of each kind in this start.
    pub(super) fn counts(&self) -> BTreeMap<EventKind, u64> {
        self.counts.clone()
    }

    /// The position after the latest event.
    pub(super) fn end(&self) -> EventCursor {
        let boot = self.latest().map_or(self.boot, |event| event.boot);
        EventCursor { boot, revision: self.last }
    }

    pub(super) fn latest(&self) -> Option<&Arc<Event>> {
        let latest = |kept: &'_ ByRevision| kept.last_key_value().map(|(revision, _)| *revision);
        let revision = latest(&self.normal).max(latest(&self.warnings))?;
        self.normal.get(&revision).or_else(|| self.warnings.get(&revision))
    }

    /// All events, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Event>> {
        let mut normal = self.normal.values().peekable();
        let mut warnings = self.warnings.values().peekable();
        std::iter::from_fn(move || {
            let revision = |next: Option<&&Arc<Event>>| next.map_or(u64::MAX, |it| it.revision);
            match revision(normal.peek()) < revision(warnings.peek()) {
                true => normal.next(),
                false => warnings.next(),
            }
        })
    }
}

/// Whether one start was before another, by their ids. An id that is no UUID of version 7 has no time and counts as earlier.
fn is_before(start: Uuid, other: Uuid) -> bool {
    let with_time = |start: Uuid| (start.get_version() == Some(Version::SortRand)).then_some(start);
    with_time(start) < with_time(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(subject: &str, message: &str) -> Occurrence {
        let reason = Some("VFS_EXHAUSTED".into());
        Occurrence { reason, ..Occurrence::new(EventKind::AttachRefused, subject, message) }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn log() -> Log {
        Log::new(Uuid::new_v4(), Vec::new())
    }

    fn subjects(events: &[Arc<Event>]) -> Vec<&str> {
        events.iter().map(|event| event.subject.as_str()).collect()
    }

    #[test]
    fn repeated_events_fold_with_count_and_times() {
        let mut log = log();
        let first = log.add(refused("pool/default", "15 of 16"), at(0));
        log.add(Occurrence::new(EventKind::HostConnected, "node-1", "up"), at(1));
        let last = log.add(refused("pool/default", "16 of 16"), at(299));
        assert_eq!((last.count, last.sequence, last.revision), (2, first.sequence, 3));
        assert_eq!((last.first_time, last.time), (at(0), at(299)));
        assert_eq!(last.message, "16 of 16");
        let all = log.list(&EventFilter::default(), at(299));
        assert_eq!(subjects(&all), ["node-1", "pool/default"]);
    }

    #[test]
    fn repetition_after_five_minutes_is_new() {
        let mut log = log();
        log.add(refused("pool/default", "full"), at(0));
        let next = log.add(refused("pool/default", "full"), at(300));
        assert_eq!((next.count, next.sequence), (1, 2));
        assert_eq!(log.add(refused("pool/default", "full"), at(301)).count, 2);
    }

    #[test]
    fn refused_peers_are_repeated_for_an_hour() {
        let mut log = log();
        let refused = || Occurrence {
            reason: Some("PEER_REFUSED".into()),
            ..Occurrence::new(EventKind::PeerRefused, "peers", "no certificate")
        };
        log.add(refused(), at(0));
        assert_eq!(log.add(refused(), at(3599)).count, 2);
        assert_eq!(log.add(refused(), at(3600)).count, 1);
    }

    #[test]
    fn other_subjects_reasons_and_sentences_do_not_fold() {
        let mut log = log();
        log.add(refused("pool/a", "full"), at(0));
        log.add(refused("pool/b", "full"), at(0));
        log.add(Occurrence { reason: Some("OTHER".into()), ..refused("pool/a", "full") }, at(0));
        log.add(Occurrence::new(EventKind::Repaired, "pf0vf1", "vlan"), at(0));
        log.add(Occurrence::new(EventKind::Repaired, "pf0vf1", "guard"), at(0));
        assert!(log.all().all(|event| event.count == 1));
        assert_eq!(log.all().count(), 5);
    }

    #[test]
    fn events_of_earlier_starts_do_not_fold() {
        let mut log = log();
        let first = log.add(Occurrence::new(EventKind::ServiceStarted, "dpu", "starts"), at(0));
        let mut next = Log::new(Uuid::new_v4(), vec![Event::clone(&first)]);
        assert!(next.has(&Occurrence::new(EventKind::ServiceStarted, "dpu", "starts")));
        assert!(!next.has(&Occurrence::new(EventKind::ServiceStarted, "dpu", "starts again")));
        assert_eq!(
            next.add(Occurrence::new(EventKind::ServiceStarted, "dpu", "starts"), at(1)).count,
            1
        );
    }

    #[test]
    fn log_is_bounded_in_number() {
        let mut log = log();
        for number in 0..3 * KEPT {
            log.add(Occurrence::new(EventKind::Repaired, number, ""), at(0));
        }
        assert_eq!(log.all().next().unwrap().subject, (2 * KEPT).to_string());
        assert_eq!(log.all().count(), KEPT);
        assert!(log.repeatable.len() <= 2 * KEPT);
    }

    #[test]
    fn repetitions_are_logged_once_a_second() {
        let mut log = log();
        let mut logged = |time| {
            let refused = refused("pool/default", "full");
            let is_logged = log.is_logged(&refused, time);
            log.add(refused, time);
            is_logged
        };
        assert_eq!(
            [0, 0, 1, 1, 2].map(|second| logged(at(second))),
            [true, false, true, false, true]
        );
    }

    #[test]
    fn older_events_are_listed_on_request() {
        let mut log = log();
        let week = 7 * 24 * 3600;
        log.add(Occurrence::new(EventKind::HostConnected, "first", ""), at(0));
        log.add(Occurrence::new(EventKind::HostConnected, "second", ""), at(1));
        let listed = |filter: &EventFilter| {
            let listed = log.list(filter, at(week + 1));
            listed.iter().map(|event| event.subject.clone()).collect::<Vec<_>>()
        };
        assert_eq!(listed(&EventFilter::default()), ["second"]);
        let all = EventFilter { since: Some(at(0)), ..EventFilter::default() };
        assert_eq!(listed(&all), ["first", "second"]);
    }

    #[test]
    fn wrong_clock_deletes_no_event() {
        let mut log = log();
        let month = 30 * 24 * 3600;
        for (subject, time) in [("right", 0), ("ahead", month), ("behind", -month)] {
            log.add(Occurrence::new(EventKind::HostConnected, subject, ""), at(time));
        }
        // With the clock ahead again, the list starts later. With the right time it is complete.
        assert_eq!(subjects(&log.list(&EventFilter::default(), at(month))), ["ahead", "behind"]);
        let all = log.list(&EventFilter::default(), at(1));
        assert_eq!(subjects(&all), ["right", "ahead", "behind"]);
    }

    #[test]
    fn warnings_outlast_normal_events() {
        let mut log = log();
        log.add(refused("pool/default", "full"), at(0));
        for number in 0..=KEPT {
            log.add(Occurrence::new(EventKind::HostConnected, number, ""), at(0));
        }
        assert_eq!(log.all().next().unwrap().subject, "pool/default");
        for number in 0..=KEPT {
            log.add(refused(&number.to_string(), "full"), at(0));
        }
        assert_ne!(log.all().next().unwrap().subject, "pool/default");
        assert_eq!(log.all().count(), KEPT);
    }

    #[test]
    fn cursor_continues_without_gap_or_duplicate() {
        let mut log = log();
        log.add(Occurrence::new(EventKind::HostConnected, "a", ""), at(0));
        log.add(refused("pool/default", "full"), at(0));
        let end = log.end();
        assert!(log.after(&end).is_empty());
        log.add(refused("pool/default", "full"), at(1));
        log.add(Occurrence::new(EventKind::HostConnected, "b", ""), at(1));
        assert_eq!(subjects(&log.after(&end)), ["pool/default", "b"]);

        // A killed start may not have written its last events.
        let restored = log.all().take(2).map(|event| Event::clone(event)).collect();
        let seen = log.end();
        let mut next = Log::new(Uuid::new_v4(), restored);
        assert!(next.after(&seen).is_empty());
        next.add(Occurrence::new(EventKind::HostConnected, "c", ""), at(2));
        assert_eq!(subjects(&next.after(&seen)), ["c"]);
        let unknown = EventCursor { boot: Uuid::new_v4(), revision: 99 };
        assert_eq!(next.after(&unknown).len(), 3);
    }

    #[test]
    fn objects_match_by_name_and_by_id() {
        let mut log = log();
        let id = "0190aaaa-bbbb-7000-8000-000000000001";
        for subject in ["pool/default", "node-1", "node-10", id] {
            log.add(Occurrence::new(EventKind::Repaired, subject, ""), at(0));
        }
        let about = |object: &str| {
            let filter = EventFilter { object: Some(object.into()), ..EventFilter::default() };
            log.list(&filter, at(0)).iter().map(|event| event.subject.clone()).collect::<Vec<_>>()
        };
        assert_eq!(about("default"), ["pool/default"]);
        assert_eq!(about("pool/default"), ["pool/default"]);
        assert_eq!(about("node-1"), ["node-1"]);
        assert_eq!(about("0190aaaa"), [id]);
        assert!(about("019").is_empty());
    }
}
