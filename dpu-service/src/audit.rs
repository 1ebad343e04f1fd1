//! The audit: changes through the API or by the configuration file, with author and reason.
//!
//! Owns: the entries in memory, oldest first; each is also logged. The journal has a row for each, written in the
//! transaction of the change. Entries are limited by number and size, not by age, because a clock can be wrong. For the
//! same reason ids follow the order of the entries, whatever the time.
//!
//! Locks: each for one operation on memory, never across an await.

use std::{collections::VecDeque, sync::Arc};

use bootstrap::sha256;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{author::Cause, events::names};

/// Maximum number of entries.
const KEPT: usize = 10_000;
/// Maximum size of all entries, in bytes: a list of them must fit into memory and into one answer.
const KEPT_BYTES: usize = 16 * 1024 * 1024;
/// Older entries are listed only on request of an earlier time.
const LISTED_FOR: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Maximum size of an entry without digests, in bytes.
const LONGEST: usize = 16 * 1024;
/// Fields of a larger entry that exceed this size, in bytes, become digests.
const LONGEST_FIELD: usize = 256;

/// The latest id of this process.
static LATEST_ID: Mutex<Uuid> = Mutex::new(Uuid::nil());

/// A change through the API or by the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// UUIDv7. Ids increase from entry to entry, across starts.
    pub id: Uuid,
    /// Milliseconds since 1970, UTC.
    pub time: i64,
    pub cause: Cause,
    pub action: AuditAction,
    /// The changed object, such as `network/blue`.
    pub object: String,
    /// The object before the change, as JSON. Empty: it did not exist. In a large entry, long fields are digests.
    pub before: String,
    /// The object after the change, in the same form. Empty: it does not exist.
    pub after: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAction {
    ApplyNetwork,
    ChangeSubnets,
    RenameNetwork,
    DeleteNetwork,
    ReleaseAttachment,
    ClearQuarantine,
    /// Differences between hosts, DPU and records were repaired.
    Repair,
    /// A changed configuration file was put into force.
    LoadConfiguration,
}

impl AuditAction {
    /// The stable name, such as `ApplyNetwork`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApplyNetwork => "ApplyNetwork",
            Self::ChangeSubnets => "ChangeSubnets",
            Self::RenameNetwork => "RenameNetwork",
            Self::DeleteNetwork => "DeleteNetwork",
            Self::ReleaseAttachment => "ReleaseAttachment",
            Self::ClearQuarantine => "ClearQuarantine",
            Self::Repair => "Repair",
            Self::LoadConfiguration => "LoadConfiguration",
        }
    }
}

impl AuditEntry {
    /// Creates an entry for an object that exists neither before nor after.
    pub(crate) fn new(cause: &Cause, action: AuditAction, object: String) -> Self {
        Self {
            id: next_id(),
            time: Timestamp::now().as_millisecond(),
            cause: cause.clone(),
            action,
            object,
            before: String::new(),
            after: String::new(),
        }
    }

    /// Approximate size in memory, in bytes.
    fn size(&self) -> usize {
        size_of::<Self>()
            + self.object.len()
            + self.cause.reason.len()
            + self.before.len()
            + self.after.len()
    }

    pub(crate) fn before(self, before: &impl Serialize) -> Self {
        Self { before: encoded(before), ..self }
    }

    pub(crate) fn after(self, after: &impl Serialize) -> Self {
        Self { after: encoded(after), ..self }
    }

    /// Replaces long fields of a large entry by digests: the changes of one operator must not evict those of others.
    pub(crate) fn bounded(self) -> Self {
        if self.before.len() + self.after.len() <= LONGEST {
            return self;
        }
        Self { before: with_digests(&self.before), after: with_digests(&self.after), ..self }
    }
}

/// An id of this moment or, if the clock is behind, one that follows the latest.
fn next_id() -> Uuid {
    let mut latest = LATEST_ID.lock();
    let following = Uuid::from_u128(latest.as_u128().saturating_add(1));
    *latest = Uuid::now_v7().max(following);
    *latest
}

/// Makes the ids of this process follow those of an earlier start.
fn continue_after(earlier: Uuid) {
    let mut latest = LATEST_ID.lock();
    *latest = earlier.max(*latest);
}

/// Encodes as JSON. Cannot fail: the values have only texts, numbers and lists.
fn encoded(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The object with its long fields as digests. Empty: there is no object.
fn with_digests(object: &str) -> String {
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(object) else {
        return String::new();
    };
    fields.values_mut().for_each(shorten);
    Value::from(fields).to_string()
}

fn shorten(field: &mut Value) {
    let text = field.to_string();
    if text.len() > LONGEST_FIELD {
        *field = json!({ "sha256": sha256(text.as_bytes()), "bytes": text.len() });
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Entries at that time or later. `None`: starting with the first entry of the last 90 days.
    pub since: Option<Timestamp>,
    /// Entries about this object: `network/blue`, `blue`, or a prefix of an attachment's id.
    pub object: Option<String>,
    /// Entries of this operator: `alice` or `operator/alice`.
    pub operator: Option<String>,
}

impl AuditFilter {
    fn matches(&self, entry: &AuditEntry) -> bool {
        let author = entry.cause.author.to_string();
        self.since.is_none_or(|since| entry.time >= since.as_millisecond())
            && self.object.as_deref().is_none_or(|object| names(&entry.object, object))
            && self.operator.as_deref().is_none_or(|operator| names(&author, operator))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Oldest first.
    kept: VecDeque<Arc<AuditEntry>>,
    bytes: usize,
}

impl Audit {
    /// Loads the journal's entries, in the order of ids.
    pub(crate) fn load(&self, entries: Vec<AuditEntry>) {
        entries.last().into_iter().for_each(|entry| continue_after(entry.id));
        let bytes = entries.iter().map(AuditEntry::size).sum();
        *self.0.lock() = Entries { kept: entries.into_iter().map(Arc::new).collect(), bytes };
    }

    /// The oldest entries that exceed the limits once `next` is added.
    pub(crate) fn surplus(&self, next: &AuditEntry) -> Vec<Uuid> {
        let entries = self.0.lock();
        let (mut number, mut bytes) = (entries.kept.len() + 1, entries.bytes + next.size());
        let mut surplus = Vec::new();
        for entry in &entries.kept {
            if number <= KEPT && bytes <= KEPT_BYTES {
                break;
            }
            surplus.push(entry.id);
            (number, bytes) = (number - 1, bytes - entry.size());
        }
        surplus
    }

    /// Adds a recorded entry and logs it: the log may be stored where no operator of this DPU can change it.
    pub(crate) fn add(&self, entry: AuditEntry) {
        let AuditEntry { id, cause: Cause { author, reason }, action, object, .. } = &entry;
        tracing::info!(%id, %author, action = action.as_str(), object, reason, "change audited");
        let mut entries = self.0.lock();
        entries.bytes += entry.size();
        entries.kept.push_back(Arc::new(entry));
    }

    /// Removes entries that the journal no longer has.
    pub(crate) fn remove(&self, ids: &[Uuid]) {
        if ids.is_empty() {
            return;
        }
        let mut entries = self.0.lock();
        entries.kept.retain(|entry| !ids.contains(&entry.id));
        entries.bytes = entries.kept.iter().map(|entry| entry.size()).sum();
    }

    /// The entries that match the filter, oldest first. Without a time in the filter, the list starts with the first
    /// entry of the last 90 days.
    pub(crate) fn list(&self, filter: &AuditFilter) -> Vec<Arc<AuditEntry>> {
        let oldest = (Timestamp::now() - LISTED_FOR).as_millisecond();
        // Skips only a prefix: entries after it are listed whatever their time, because the clock may have been wrong.
        let is_left_out = |entry: &&Arc<AuditEntry>| filter.since.is_none() && entry.time < oldest;
        let entries = self.0.lock();
        let listed = entries.kept.iter().skip_while(is_left_out);
        listed.filter(|entry| filter.matches(entry)).cloned().collect()
    }

    pub(crate) fn latest(&self, action: AuditAction) -> Option<Arc<AuditEntry>> {
        self.0.lock().kept.iter().rfind(|entry| entry.action == action).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::author::Author;

    fn entry(operator: &str, object: &str) -> AuditEntry {
        let (author, reason) = (Author::Operator(operator.into()), String::new());
        AuditEntry::new(&Cause { author, reason }, AuditAction::ApplyNetwork, object.into())
    }

    #[test]
    fn entries_are_bounded_in_number() {
        let audit = Audit::default();
        let entries: Vec<_> = (0..KEPT).map(|_| entry("alice", "network/blue")).collect();
        let oldest = [entries[0].id];
        audit.load(entries);
        let next = || entry("alice", "network/blue");
        assert_eq!(audit.surplus(&next()), oldest);
        audit.remove(&oldest);
        assert!(audit.surplus(&next()).is_empty());
    }

    /// An entry that is `days` days old.
    fn aged(days: i64) -> AuditEntry {
        let now = entry("alice", "network/blue");
        AuditEntry { time: now.time - days * 24 * 3600 * 1000, ..now }
    }

    #[test]
    fn entries_follow_those_of_a_clock_ahead() {
        let mut ahead = aged(0);
        // About 18 minutes ahead: the first 48 bits of an id are milliseconds.
        ahead.id = Uuid::from_u128(ahead.id.as_u128() + (1 << 100));
        Audit::default().load(vec![ahead.clone()]);
        let [next, last] = [aged(0), aged(0)];
        assert!(ahead.id < next.id && next.id < last.id);
    }

    #[test]
    fn wrong_clock_deletes_no_entry() {
        let audit = Audit::default();
        audit.load([100, -100, 100, 0].map(aged).into());
        assert!(audit.surplus(&aged(0)).is_empty());
    }

    #[test]
    fn older_entries_are_listed_on_request() {
        let audit = Audit::default();
        audit.load([91, 89, 91].map(aged).into());
        assert_eq!(audit.list(&AuditFilter::default()).len(), 2);
        let all = AuditFilter { since: Some(Timestamp::MIN), ..AuditFilter::default() };
        assert_eq!(audit.list(&all).len(), 3);
    }

    #[test]
    fn large_changes_displace_no_other() {
        let audit = Audit::default();
        audit.add(entry("alice", "network/evidence"));
        for number in 0..12 {
            let network = |mtu| json!({ "mtu": mtu, "subnets": vec!["fd00::/64"; 100_000] });
            let large = entry("bob", "network/big").before(&network(number)).after(&network(1500));
            let large = large.bounded();
            assert!(audit.surplus(&large).is_empty());
            audit.add(large);
        }
    }

    #[test]
    fn large_entry_shows_which_fields_have_changed() {
        let network =
            |exclude: &str| json!({ "mtu": 1400, "name": "x".repeat(300), "exclude": exclude });
        let large = entry("alice", "network/blue").before(&network(&"a".repeat(LONGEST)));
        let large = large.after(&network(&"b".repeat(LONGEST))).bounded();
        let fields = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        let (before, after) = (fields(&large.before), fields(&large.after));
        assert_eq!((&before["mtu"], &before["name"]), (&json!(1400), &after["name"]));
        assert_eq!(before["exclude"]["bytes"], LONGEST + 2);
        assert_ne!(before["exclude"]["sha256"], after["exclude"]["sha256"]);
        let small = entry("alice", "network/blue").after(&network("a"));
        assert_eq!(small.clone().bounded(), small);
    }

    #[test]
    fn entries_are_bounded_in_bytes() {
        let audit = Audit::default();
        let large =
            || AuditEntry { after: "x".repeat(KEPT_BYTES / 4), ..entry("alice", "network/blue") };
        (0..3).for_each(|_| audit.add(large()));
        assert!(audit.surplus(&entry("bob", "network/red")).is_empty());
        let oldest = audit.list(&AuditFilter::default())[0].id;
        assert_eq!(audit.surplus(&large()), [oldest]);
    }

    #[test]
    fn entries_are_chosen_by_object_and_operator() {
        let audit = Audit::default();
        audit.load(vec![entry("alice", "network/blue"), entry("bob", "network/red")]);
        let of = |object: Option<&str>, operator: Option<&str>| {
            let (object, operator) = (object.map(Into::into), operator.map(Into::into));
            audit.list(&AuditFilter { since: None, object, operator }).len()
        };
        assert_eq!([of(Some("blue"), None), of(Some("network/red"), None)], [1, 1]);
        assert_eq!([of(None, Some("bob")), of(None, Some("operator/alice"))], [1, 1]);
        assert_eq!([of(Some("blue"), Some("bob")), of(None, None)], [0, 2]);
    }
}
