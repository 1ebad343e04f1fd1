//! The journal with typed rows: what survives a restart.
//!
//! Owns: the journal's tables and the audit in memory.
//!
//! Locks: the audit's, for one operation on memory. The journal queues commits in the order of the calls.
//!
//! Concurrently: all flows commit. Commits that wait at the same time share a transaction.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bootstrap::{Chain, FolderError};
use journal::{Change, Journal, Outlives, Schema, Statistics, WriteError};
use offload_proto::{Failure, Reason};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::audit::{Audit, AuditEntry};
use model::{
    AttachmentId, CooledAddress, DomainAddress, FormerOwner, Layer2Domain, Network, Record,
};

/// How long a write may wait for the disk before the journal counts as unwritable.
const LONGEST_WRITE: Duration = Duration::from_secs(3);

const ATTACHMENTS: &str = "attachments";
const NETWORKS: &str = "networks";
const COOLING: &str = "cooling";
const AUDIT: &str = "audit";

const TABLES: &[&str] = &[ATTACHMENTS, NETWORKS, COOLING, AUDIT];
const SCHEMA: Schema = Schema { name: "dpu-service", version: 1, tables: TABLES, migrations: &[] };

/// Why the journal cannot be used. Its file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("can't open the journal")]
    Journal(#[from] journal::OpenError),
    #[error("can't read the journal {}", path.display())]
    Read { path: PathBuf, source: journal::ReadError },
    #[error("the journal {} is damaged: {what}", path.display())]
    Damaged {
        path: PathBuf,
        /// The row and the error.
        what: String,
    },
    /// Two rows claim the same thing.
    #[error("the journal contradicts itself: {0}")]
    Contradiction(String),
    #[error("the configuration is invalid: {0}")]
    Configuration(String),
}

impl OpenError {
    /// Whether the file itself is unreadable, as opposed to being in use or in conflict with the configuration.
    pub const fn is_of_the_file(&self) -> bool {
        match self {
            Self::Folder(error) => matches!(error, FolderError::Io { .. }),
            Self::Journal(error) => !matches!(error, journal::OpenError::InUse { .. }),
            Self::Read { .. } | Self::Damaged { .. } | Self::Contradiction(_) => true,
            Self::Configuration(_) => false,
        }
    }
}

/// An address in cool-down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cooling {
    pub of: CooledAddress,
    /// End of the cool-down: seconds since 1970, UTC.
    pub until: u64,
    pub owner: FormerOwner,
}

/// Value of a row of an address in cool-down. The key names the address.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoolDown {
    until: u64,
    owner: FormerOwner,
}

#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub attachments: Vec<Record>,
    /// Networks of the API.
    pub networks: Vec<Network>,
    /// Addresses in cool-down, including ended ones whose rows are not deleted yet.
    pub cooling: Vec<Cooling>,
}

#[derive(Debug)]
pub struct Records {
    journal: Journal,
    path: PathBuf,
    pub(crate) audit: Arc<Audit>,
}

impl Records {
    /// Opens or creates the journal in the file `path`.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let journal = Journal::open(path, SCHEMA, Outlives::Machine)?;
        Ok(Self { journal, path: path.to_owned(), audit: Arc::default() })
    }

    /// Opens the journal with `wrap` between journal and file: see [`Journal::open_with`].
    pub fn open_with<B: journal::storage::StorageBackend>(
        path: &Path,
        wrap: impl Fn(journal::storage::FileBackend) -> B + Send + 'static,
    ) -> Result<Self, OpenError> {
        let journal = Journal::open_with(path, SCHEMA, Outlives::Machine, wrap)?;
        Ok(Self { journal, path: path.to_owned(), audit: Arc::default() })
    }

    /// Reads the whole journal. Blocks.
    pub(crate) fn load(&self) -> Result<Loaded, OpenError> {
        self.audit.load(self.audit_rows()?);
        Ok(Loaded {
            attachments: self.rows(ATTACHMENTS)?,
            networks: self.rows(NETWORKS)?,
            cooling: self.cooling()?,
        })
    }

    /// Makes all changes durable, or none. Calls take effect in their order, no matter when their futures are awaited.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub fn commit(
        &self,
        changes: Changes,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let (audit, entry) = (Arc::clone(&self.audit), changes.audit.clone());
        let surplus = entry.as_ref().map(|entry| audit.surplus(entry)).unwrap_or_default();
        let changes = surplus.iter().fold(changes, |changes, id| changes.delete_audit(*id));
        // Queued now, not when the future is awaited: this fixes the order of commits.
        let queued = changes.rows.map(|rows| self.journal.commit(rows));
        async move {
            queued?.await.map_err(|error| unavailable(&error))?;
            // Memory follows the disk: after a failed write the audit still shows what the journal has.
            audit.remove(&surplus);
            entry.into_iter().for_each(|entry| audit.add(entry));
            Ok(())
        }
    }

    /// Reverts committed changes that could not be put into force, and deletes their audit entry.
    pub(crate) fn revert(&self, changes: Changes, entry: Uuid) {
        tracing::info!(id = %entry, "audited change was reverted");
        self.audit.remove(&[entry]);
        self.commit_lazily(changes.delete_audit(entry));
    }

    /// Queues changes whose result no caller needs.
    pub(crate) fn commit_lazily(&self, changes: Changes) {
        match changes.rows {
            Ok(rows) => drop(self.journal.commit(rows)),
            Err(failure) => {
                tracing::error!(error = %failure, "cannot encode a change of the journal; dropped it");
            }
        }
    }

    /// Why the journal cannot be written: the latest write failed, or one hangs. Does not wait for the disk.
    pub(crate) fn problem(&self) -> Option<Failure> {
        let failed = || self.journal.problem().map(|error| unavailable(&error));
        self.hang().or_else(failed)
    }

    fn hang(&self) -> Option<Failure> {
        self.journal.waiting().filter(|waiting| *waiting >= LONGEST_WRITE)?;
        let journal = self.path.display();
        let message =
            format!("the disk of the journal {journal} has not answered for {LONGEST_WRITE:?}");
        Some(Failure::new(Reason::JournalUnavailable, message))
    }

    /// Retries a journal whose latest write failed. Nothing else writes while the failure lasts, so only this detects
    /// its end. Waits for the disk unless other writes already hang.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        match (self.hang(), self.journal.problem()) {
            (Some(hang), _) => Err(hang),
            (None, None) => Ok(()),
            (None, Some(_)) => self.journal.probe().await.map_err(|error| unavailable(&error)),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.journal.statistics()
    }

    fn rows<T: DeserializeOwned>(&self, table: &'static str) -> Result<Vec<T>, OpenError> {
        let row = |(key, value): (Vec<u8>, Vec<u8>)| {
            serde_json::from_slice(&value).map_err(|error| self.damaged(table, &key, error))
        };
        self.read(table)?.into_iter().map(row).collect()
    }

    /// The readable audit entries. Unreadable ones are skipped: history must not keep the service from starting.
    fn audit_rows(&self) -> Result<Vec<AuditEntry>, OpenError> {
        let rows = self.read(AUDIT)?;
        let number = rows.len();
        let read = |(_, value): (_, Vec<u8>)| serde_json::from_slice(&value).ok();
        let entries: Vec<_> = rows.into_iter().filter_map(read).collect();
        if entries.len() < number {
            let unreadable = number - entries.len();
            tracing::warn!(unreadable, path = %self.path.display(), "skipping unreadable audit entries");
        }
        Ok(entries)
    }

    fn cooling(&self) -> Result<Vec<Cooling>, OpenError> {
        let row = |(key, value): (Vec<u8>, Vec<u8>)| {
            parse_cooling(&key, &value)
                .ok_or_else(|| self.damaged(COOLING, &key, "it has an unknown form"))
        };
        self.read(COOLING)?.into_iter().map(row).collect()
    }

    fn read(&self, table: &'static str) -> Result<journal::Rows, OpenError> {
        let unread = |source| OpenError::Read { path: self.path.clone(), source };
        self.journal.read_all(table).map_err(unread)
    }

    fn damaged(&self, table: &str, key: &[u8], why: impl std::fmt::Display) -> OpenError {
        let key = key.escape_ascii();
        OpenError::Damaged { path: self.path.clone(), what: format!("{table} row {key}: {why}") }
    }
}

#[derive(Debug)]
pub struct Changes {
    rows: Result<Vec<Change>, Failure>,
    audit: Option<AuditEntry>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { rows: Ok(Vec::new()), audit: None }
    }
}

impl Changes {
    #[must_use]
    pub fn put_attachment(self, record: &Record) -> Self {
        self.put(ATTACHMENTS, record.id.0.as_bytes(), record)
    }

    #[must_use]
    pub(crate) fn delete_attachment(self, id: AttachmentId) -> Self {
        self.add(Change::delete(ATTACHMENTS, *id.0.as_bytes()))
    }

    #[must_use]
    pub(crate) fn put_network(self, network: &Network) -> Self {
        self.put(NETWORKS, network.name.as_bytes(), network)
    }

    #[must_use]
    pub(crate) fn delete_network(self, name: &str) -> Self {
        self.add(Change::delete(NETWORKS, name))
    }

    #[must_use]
    pub(crate) fn put_cooling(self, cooling: &Cooling) -> Self {
        let Cooling { until, owner, .. } = cooling;
        let value = CoolDown { until: *until, owner: owner.clone() };
        self.put(COOLING, cooling_key(cooling).as_bytes(), &value)
    }

    #[must_use]
    pub(crate) fn delete_cooling(self, cooling: &Cooling) -> Self {
        self.add(Change::delete(COOLING, cooling_key(cooling)))
    }

    /// Writes an audit entry, if there is one.
    #[must_use]
    pub(crate) fn audited(self, entry: Option<AuditEntry>) -> Self {
        let Some(entry) = entry.map(AuditEntry::bounded) else { return self };
        let changes = self.put(AUDIT, entry.id.as_bytes(), &entry);
        Self { audit: Some(entry), ..changes }
    }

    fn delete_audit(self, id: Uuid) -> Self {
        self.add(Change::delete(AUDIT, *id.as_bytes()))
    }

    fn put(self, table: &'static str, key: &[u8], value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(value) => self.add(Change::put(table, key, value)),
            Err(error) => {
                let why = format!("a row of table {table} can't be written as JSON: {error}");
                Self { rows: Err(Failure::new(Reason::Internal, why)), ..self }
            }
        }
    }

    fn add(mut self, change: Change) -> Self {
        if let Ok(rows) = &mut self.rows {
            rows.push(change);
        }
        self
    }
}

fn cooling_key(cooling: &Cooling) -> String {
    let CooledAddress { network, at: DomainAddress { domain, address } } = &cooling.of;
    format!("{network} {address} {}", domain.in_key())
}

pub(crate) fn parse_cooling(key: &[u8], value: &[u8]) -> Option<Cooling> {
    let mut words = std::str::from_utf8(key).ok()?.splitn(3, ' ');
    let (network, address) = (words.next()?.into(), words.next()?.parse().ok()?);
    let domain = Layer2Domain::of_key(words.next()?)?;
    let CoolDown { until, owner } = serde_json::from_slice(value).ok()?;
    let at = DomainAddress { domain, address };
    Some(Cooling { of: CooledAddress { network, at }, until, owner })
}

fn unavailable(error: &WriteError) -> Failure {
    let message = match error {
        WriteError::Failed { path, source } => format!(
            "cannot write the journal {}: {}: make room on its disk, and see that it can be written",
            path.display(),
            Chain(&**source)
        ),
        error => Chain(error).to_string(),
    };
    Failure::new(Reason::JournalUnavailable, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::{
        Deserializer,
        de::{Error, Visitor, value},
        forward_to_deserialize_any,
    };
    use serde_json::Value;

    use super::*;
    use crate::author::Cause;
    use model::{
        AddressRange, AllowRule, AttachmentKey, Bandwidth, Dns, FurtherLease, IpFamilies, Lease,
        PolicyRule, PortMapping, Route, Subnet, Sysctls,
    };

    #[test]
    fn failed_write_names_the_file_and_remedy() {
        let source = Arc::new(std::io::Error::from_raw_os_error(28));
        let shown =
            unavailable(&WriteError::Failed { path: Path::new("/state/journal").into(), source });
        assert!(shown.message.contains("journal /state/journal: No space left"), "{shown}");
        assert!(shown.message.contains("make room on its disk"), "{shown}");
    }

    /// Has serde name the keys of a struct.
    struct Keys<'a>(&'a mut BTreeSet<&'static str>);

    impl<'de> Deserializer<'de> for Keys<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(value::Error::custom("only its keys are read"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            keys: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, value::Error> {
            self.0.extend(keys);
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn keys<T: DeserializeOwned>() -> BTreeSet<&'static str> {
        let mut keys = BTreeSet::new();
        assert!(T::deserialize(Keys(&mut keys)).is_err());
        keys
    }

    fn assert_unchanged<T: Serialize + DeserializeOwned>(row: &Value) {
        let read: T = serde_json::from_value(row.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), *row);
    }

    /// The rows of the schema's version, with every key and every name of a value. A change of the domain's types that
    /// changes a row needs a new version and a migration.
    #[test]
    fn rows_keep_their_form() {
        assert_eq!(
            SCHEMA.version, 1,
            "write a file for the new version, and keep this one for its migration"
        );
        let golden: Value = serde_json::from_str(include_str!("records/schema-1.json")).unwrap();
        let list = |name: &str| golden[name].as_array().unwrap();
        for row in list("attachments") {
            assert_unchanged::<Record>(row);
            assert_unchanged::<Network>(&row["network"]);
        }
        list("audit").iter().for_each(assert_unchanged::<AuditEntry>);
        for row in list("cooling") {
            let key = row["key"].as_str().unwrap();
            let value = row["value"].to_string();
            let cooling = parse_cooling(key.as_bytes(), value.as_bytes()).unwrap();
            assert_eq!(cooling_key(&cooling), key);
            assert_unchanged::<CoolDown>(&row["value"]);
        }
        // A key that is left out at its default would otherwise be missing here.
        for (place, expected) in [
            ("/attachments/0", keys::<Record>()),
            ("/attachments/0/key", keys::<AttachmentKey>()),
            ("/attachments/0/leases/0", keys::<Lease>()),
            ("/attachments/0/further_leases/0", keys::<FurtherLease>()),
            ("/attachments/0/bandwidth", keys::<Bandwidth>()),
            ("/attachments/0/port_mappings/0", keys::<PortMapping>()),
            ("/attachments/0/families", keys::<IpFamilies>()),
            ("/attachments/0/network", keys::<Network>()),
            ("/attachments/0/network/subnets/0", keys::<Subnet>()),
            ("/attachments/0/network/subnets/0/ranges/0", keys::<AddressRange>()),
            ("/attachments/0/network/routes/1", keys::<Route>()),
            ("/attachments/0/network/rules/0", keys::<PolicyRule>()),
            ("/attachments/0/network/sysctls", keys::<Sysctls>()),
            ("/attachments/0/network/dns", keys::<Dns>()),
            ("/attachments/0/network/allow/0", keys::<AllowRule>()),
            ("/cooling/0/value", keys::<CoolDown>()),
            ("/cooling/0/value/owner", keys::<FormerOwner>()),
            ("/audit/0", keys::<AuditEntry>()),
            ("/audit/0/cause", keys::<Cause>()),
        ] {
            let row = golden.pointer(place).unwrap().as_object().unwrap();
            assert_eq!(
                row.keys().map(String::as_str).collect::<BTreeSet<_>>(),
                expected,
                "{place}"
            );
        }
    }
}
