//! The agent's durable records: what it has to finish or take back, whatever happens in between.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use journal::{Change, Commit, Journal, OpenError, ReadError, Schema};
use netlink::NetnsId;
use offload_proto::{Failure, Reason, v1};
use serde::{Deserialize, Serialize};

use crate::{mover::Original, protocol::Key};

const TABLE: &str = "attachments";
const SCHEMA: Schema = Schema { name: "host-shim", version: 1, tables: &[TABLE] };

/// Whether an attachment is being kept or given back. Whether its VF is in the pod is not recorded:
/// the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    /// The VF belongs into the pod.
    Live,
    /// The VF belongs back into the host's namespace, and the DPU is to be told.
    Releasing,
}

/// A pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PodNetns {
    /// Where it is mounted.
    pub path: String,
    /// Which one it is: another may come to be at the same path.
    pub id: NetnsId,
}

/// All that the host has to know of an attachment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// As the DPU answered it.
    pub attachment: v1::Attachment,
    /// The CNI configuration that it belongs to.
    pub configuration: String,
    /// The pod's namespace.
    pub netns: PodNetns,
    /// What the VF was like before.
    pub original: Original,
    /// The host kernel's boot that it was made in.
    pub boot_id: String,
    /// Kept or given back.
    pub phase: Phase,
    /// The device-info file that was written.
    #[serde(default)]
    pub device_info_file: Option<String>,
}

impl Record {
    /// The attachment's id.
    #[must_use]
    pub(super) fn id(&self) -> &str {
        &self.attachment.id
    }

    /// The attachment's key.
    #[must_use]
    pub(super) fn key(&self) -> Key {
        self.attachment.key.clone().unwrap_or_default().into()
    }

    /// The PCI address of the VF it holds.
    #[must_use]
    pub(super) fn pci_address(&self) -> &str {
        self.attachment.vf.as_ref().map_or("", |vf| &vf.pci_address)
    }
}

/// Why the records can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The journal can't be opened.
    #[error("can't open the agent's records")]
    Open(#[from] OpenError),
    /// The journal can't be read.
    #[error("can't read the agent's records")]
    Read(#[from] ReadError),
    /// A record is not one.
    #[error("record {id} of the agent is damaged")]
    Damaged {
        /// Its key in the journal.
        id: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The records, in the journal and in memory.
#[derive(Debug)]
pub(super) struct Records {
    journal: Journal,
    index: Mutex<Index>,
}

/// The records by all that they are looked for. A key or VF is in one record at most.
#[derive(Debug, Default)]
struct Index {
    by_id: HashMap<String, Arc<Record>>,
    by_key: HashMap<Key, Arc<Record>>,
    by_pci_address: HashMap<String, Arc<Record>>,
}

impl Index {
    fn insert(&mut self, record: &Arc<Record>) {
        self.by_id.insert(record.id().to_owned(), Arc::clone(record));
        self.by_key.insert(record.key(), Arc::clone(record));
        self.by_pci_address.insert(record.pci_address().to_owned(), Arc::clone(record));
    }

    fn remove(&mut self, id: &str) {
        let Some(record) = self.by_id.remove(id) else { return };
        self.by_key.remove(&record.key());
        self.by_pci_address.remove(record.pci_address());
    }
}

impl Records {
    /// Opens the records in `folder`, or creates them there.
    ///
    /// # Errors
    /// When they can't be read. They are never overwritten.
    pub(super) fn open(folder: &Path) -> Result<Self, RecordsError> {
        let journal = Journal::open(&folder.join("records.redb"), SCHEMA)?;
        let rows = journal.read_all(TABLE)?.into_iter();
        let mut index = Index::default();
        for (id, row) in rows {
            index.insert(&read(&id, &row)?);
        }
        Ok(Self { journal, index: Mutex::new(index) })
    }

    /// Begins to write a record durably. Whoever relies on that waits for the [`Written`].
    pub(super) fn write(&self, record: &Record) -> Written {
        let row = serde_json::to_vec(record).map_err(|error| unavailable(&error));
        Written(row.map(|row| self.journal.commit(vec![Change::put(TABLE, record.id(), row)])))
    }

    /// Changes a record in memory alone.
    pub(super) fn keep(&self, record: &Arc<Record>) {
        self.lock().insert(record);
    }

    /// Forgets a record. Nobody waits for the disk: should the record come up again after a crash,
    /// giving it back once more does no harm.
    pub(super) fn remove(&self, id: &str) {
        self.journal.commit_lazily(vec![Change::delete(TABLE, id)]);
        self.lock().remove(id);
    }

    /// All records.
    #[must_use]
    pub(super) fn all(&self) -> Vec<Arc<Record>> {
        self.lock().by_id.values().cloned().collect()
    }

    /// The record of this attachment id.
    #[must_use]
    pub(super) fn by_id(&self, id: &str) -> Option<Arc<Record>> {
        self.lock().by_id.get(id).cloned()
    }

    /// The record of this key. There is one at most: a second attach of a key is the same, or
    /// refused.
    #[must_use]
    pub(super) fn by_key(&self, key: &Key) -> Option<Arc<Record>> {
        self.lock().by_key.get(key).cloned()
    }

    /// The record that holds this VF.
    #[must_use]
    pub(super) fn by_pci_address(&self, pci_address: &str) -> Option<Arc<Record>> {
        self.lock().by_pci_address.get(pci_address).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A record on its way to the disk.
#[derive(Debug)]
pub(super) struct Written(Result<Commit, Failure>);

impl Written {
    /// Waits until it is there.
    ///
    /// # Errors
    /// [`Reason::RecordsUnavailable`]: what the disk holds has not changed.
    pub(super) async fn done(self) -> Result<(), Failure> {
        self.0?.await.map_err(|error| unavailable(&error))
    }

    /// Likewise, on a thread that may block.
    ///
    /// # Errors
    /// As [`Self::done`].
    pub(super) fn wait(self) -> Result<(), Failure> {
        self.0?.wait().map_err(|error| unavailable(&error))
    }
}

fn read(id: &[u8], row: &[u8]) -> Result<Arc<Record>, RecordsError> {
    serde_json::from_slice(row).map(Arc::new).map_err(|source| {
        let id = String::from_utf8_lossy(id).into_owned();
        RecordsError::Damaged { id, source }
    })
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> Failure {
    let message = format!("the agent's record can't be written: {}", bootstrap::Chain(error));
    Failure::new(Reason::RecordsUnavailable, message)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(id: &str, container_id: &str) -> Record {
        Record {
            attachment: v1::Attachment {
                id: id.into(),
                key: Some(v1::AttachmentKey {
                    container_id: container_id.into(),
                    interface_name: "eth0".into(),
                }),
                vf: Some(v1::Vf { pci_address: format!("pci-{id}"), ..Default::default() }),
                ..Default::default()
            },
            configuration: "blue".into(),
            netns: PodNetns { path: "/run/netns/a".into(), id: NetnsId { dev: 4, inode: 7 } },
            original: Original {
                name: "p0v0".into(),
                mac: Some("02:00:00:00:00:01".parse().unwrap()),
                mtu: 1500,
                alternative_names: vec!["enp3s0v0".into()],
                ..Original::default()
            },
            boot_id: "boot".into(),
            phase: Phase::Live,
            device_info_file: None,
        }
    }

    #[tokio::test]
    async fn records_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        {
            let records = Records::open(folder.path()).unwrap();
            let releasing = Record { phase: Phase::Releasing, ..record("b", "c2") };
            for record in [record("a", "c1"), record("b", "c2"), releasing, record("c", "c3")] {
                records.write(&record).done().await.unwrap();
            }
            records.remove("c");
        }
        let records = Records::open(folder.path()).unwrap();
        assert_eq!(records.all().len(), 2);
        let a = records.by_id("a").unwrap();
        assert_eq!(a.original, record("a", "c1").original);
        assert_eq!(a.phase, Phase::Live);
        assert_eq!(records.by_key(&record("b", "c2").key()).unwrap().phase, Phase::Releasing);
        assert_eq!(records.by_pci_address("pci-b").unwrap().id(), "b");
        assert!(records.by_id("c").is_none());
        assert!(records.by_key(&record("c", "c3").key()).is_none());
        assert!(records.by_pci_address("pci-c").is_none());
    }

    #[tokio::test]
    async fn a_damaged_record_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        {
            let journal = Journal::open(&folder.path().join("records.redb"), SCHEMA).unwrap();
            journal.commit(vec![Change::put(TABLE, "x", "{")]).await.unwrap();
        }
        let error = Records::open(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "record x of the agent is damaged");
    }
}
