//! The audit: who has changed what through the API or by the configuration file, and why.
//!
//! [`Audit`] owns the entries in memory, oldest first. The journal has each in a row, written in the transaction of the
//! change that it describes. The lock is held for one operation on the memory, never across an await.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{author::Cause, events::names};

/// How many entries are kept.
const KEPT: usize = 10_000;
/// How many bytes the entries have that are kept: a list of them must fit into memory and into one answer.
const KEPT_BYTES: usize = 16 * 1024 * 1024;
/// How long an entry is kept, in milliseconds.
const KEPT_FOR_MS: i64 = 90 * 24 * 3600 * 1000;

/// A change through the API, or by the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// Its id. Ids are ordered by time (UUID version 7).
    pub id: Uuid,
    /// When: milliseconds since 1970, UTC.
    pub time: i64,
    /// Who, and why.
    pub cause: Cause,
    /// What was done.
    pub action: AuditAction,
    /// What was changed, such as `network/blue`.
    pub object: String,
    /// What it was before, as JSON. Empty: there was none.
    pub before: String,
    /// What it is since, as JSON. Empty: there is none.
    pub after: String,
}

/// What an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAction {
    /// A network was created or changed.
    ApplyNetwork,
    /// Subnets of a network were added or removed.
    ChangeSubnets,
    /// A network got another name.
    RenameNetwork,
    /// A network was deleted.
    DeleteNetwork,
    /// An attachment was released.
    ReleaseAttachment,
    /// A quarantined VF was given back to its pools.
    ClearQuarantine,
    /// Differences between hosts, DPU and records were repaired.
    Repair,
    /// A changed configuration file was put into force.
    LoadConfiguration,
}

impl AuditAction {
    /// The stable name, such as `ApplyNetwork`.
    #[must_use]
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
    /// An entry of this moment, for an object that did not exist before and does not after.
    pub(crate) fn new(cause: &Cause, action: AuditAction, object: String) -> Self {
        Self {
            id: Uuid::now_v7(),
            time: Timestamp::now().as_millisecond(),
            cause: cause.clone(),
            action,
            object,
            before: String::new(),
            after: String::new(),
        }
    }

    /// About how many bytes of memory it takes.
    fn size(&self) -> usize {
        size_of::<Self>()
            + self.object.len()
            + self.cause.reason.len()
            + self.before.len()
            + self.after.len()
    }

    /// With what the object was before.
    pub(crate) fn before(self, before: &impl Serialize) -> Self {
        Self { before: json(before), ..self }
    }

    /// With what the object is since.
    pub(crate) fn after(self, after: &impl Serialize) -> Self {
        Self { after: json(after), ..self }
    }
}

/// What is written is made of texts, numbers and lists, which JSON has.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Which entries are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only those of that time or later.
    pub since: Option<Timestamp>,
    /// Only those about this object: `network/blue`, `blue`, or the beginning of an attachment's id.
    pub object: Option<String>,
    /// Only those of this operator: `alice` or `operator/alice`.
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

/// The entries.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Oldest first.
    kept: VecDeque<Arc<AuditEntry>>,
    /// The sum of their sizes.
    bytes: usize,
}

impl Audit {
    /// Takes over what the journal has, in the order of ids.
    pub(crate) fn load(&self, entries: Vec<AuditEntry>) {
        let bytes = entries.iter().map(AuditEntry::size).sum();
        *self.entries() = Entries { kept: entries.into_iter().map(Arc::new).collect(), bytes };
    }

    /// The entries that are too many, too large or too old once `next` is added.
    pub(crate) fn surplus(&self, next: &AuditEntry) -> Vec<Uuid> {
        let entries = self.entries();
        let oldest = Timestamp::now().as_millisecond() - KEPT_FOR_MS;
        let (mut number, mut bytes) = (entries.kept.len() + 1, entries.bytes + next.size());
        let mut surplus = Vec::new();
        for entry in &entries.kept {
            if number <= KEPT && bytes <= KEPT_BYTES && entry.time >= oldest {
                break;
            }
            surplus.push(entry.id);
            (number, bytes) = (number - 1, bytes - entry.size());
        }
        surplus
    }

    /// Adds an entry that the journal has.
    pub(crate) fn add(&self, entry: AuditEntry) {
        let mut entries = self.entries();
        entries.bytes += entry.size();
        entries.kept.push_back(Arc::new(entry));
    }

    /// Removes entries that the journal no longer has.
    pub(crate) fn remove(&self, ids: &[Uuid]) {
        if ids.is_empty() {
            return;
        }
        let mut entries = self.entries();
        entries.kept.retain(|entry| !ids.contains(&entry.id));
        entries.bytes = entries.kept.iter().map(|entry| entry.size()).sum();
    }

    /// The entries that the filter lets pass, oldest first.
    pub(crate) fn list(&self, filter: &AuditFilter) -> Vec<Arc<AuditEntry>> {
        self.entries().kept.iter().filter(|entry| filter.matches(entry)).cloned().collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn entries_are_bounded_in_number_and_age() {
        let audit = Audit::default();
        let mut entries: Vec<_> = (0..KEPT).map(|_| entry("alice", "network/blue")).collect();
        entries[0].time -= KEPT_FOR_MS + 1000;
        entries[1].time -= KEPT_FOR_MS + 1000;
        let oldest = [entries[0].id, entries[1].id];
        audit.load(entries);
        let next = || entry("alice", "network/blue");
        assert_eq!(audit.surplus(&next()), oldest);
        audit.remove(&oldest);
        assert!(audit.surplus(&next()).is_empty());
        audit.add(next());
        audit.add(next());
        assert_eq!(audit.surplus(&next()).len(), 1);
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
