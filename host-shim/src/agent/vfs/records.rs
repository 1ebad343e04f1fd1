//! The agent's durable records: what it has to finish or take back, whatever happens in between.
//!
//! They outlive the agent however it dies, and so they are written through to the operating system.
//! They need not outlive the host's boot: see [`boot`].

mod boot;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use journal::{Change, Commit, Journal, OpenError, Outlives, ReadError, Schema, WriteError};
use netlink::{Netns, NetnsId};
use offload_proto::{Failure, Reason, v1};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use vf_alloc::{Device, VfOffer};

use crate::{
    mover::{Baseline, open_netns},
    protocol::Key,
    vf_source::{VfIdentity, device_of, identity_of},
};

const TABLE: &str = "attachments";
const SCHEMA: Schema = Schema { name: "host-shim", version: 1, tables: &[TABLE], migrations: &[] };

/// Whether an attachment is being kept or given back. Whether its VF is in the pod is not recorded:
/// the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::agent) enum Phase {
    /// An ADD that is not answered works on it. A record in this phase without such an ADD is released.
    Attaching,
    /// The VF belongs into the pod.
    Live,
    /// The VF belongs back into the host's namespace, and the DPU needs a Detach.
    Releasing,
}

/// A pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct PodNetns {
    /// Where it is mounted.
    pub path: String,
    /// Which one it is: another may come to be at the same path.
    pub id: NetnsId,
}

impl PodNetns {
    /// Opens the namespace.
    ///
    /// # Errors
    /// [`Reason::NetnsInvalid`] if it has ended or another is at its path; what opening fails with.
    pub(in crate::agent) fn open(&self) -> Result<Netns, Failure> {
        let found = open_netns(&self.path)?;
        if found.id() == self.id {
            return Ok(found);
        }
        let message = format!("{} is another network namespace than at the attach", self.path);
        Err(Failure::new(Reason::NetnsInvalid, message))
    }

    /// The namespace, if it is still there.
    pub(in crate::agent) fn living(&self) -> Option<Netns> {
        self.open().ok()
    }
}

/// All that the host has to know of an attachment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::agent) struct Record {
    /// As the DPU answered it, unless it is a guess.
    pub attachment: v1::Attachment,
    /// The CNI configuration that it belongs to.
    pub configuration: String,
    /// The pod's namespace.
    pub netns: PodNetns,
    /// What the VF was like before.
    pub original: Baseline,
    /// The host kernel's boot that it was made in.
    pub boot_id: String,
    /// Kept or given back.
    pub phase: Phase,
    /// The device-info file that was written.
    #[serde(default)]
    pub device_info_file: Option<String>,
    /// The DPU has not said yet that the VF is this attachment's: of that the record knows no more than key and VF,
    /// and an id of the host's own.
    #[serde(default)]
    pub is_guess: bool,
    /// Upper devices that the pod left on the VF, or may have left: one sentence each. The VF is not allocated before
    /// its reset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked: Vec<String>,
    /// Why it is given back, one clause. Empty: for a DEL.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release_cause: String,
    /// What the VF of a guess was offered by, in a session that may be over.
    #[serde(skip)]
    pub offer: Option<VfOffer>,
    /// Nothing is left on the host, and the DPU is informed. After a crash this is found out again.
    #[serde(skip)]
    pub is_returned: bool,
    /// The device of the attachment's VF, cached at the first use.
    #[serde(skip)]
    pub device: OnceLock<Device>,
}

impl Record {
    /// The same in another phase.
    #[must_use]
    pub(super) fn in_phase(&self, phase: Phase) -> Self {
        Self { phase, ..self.clone() }
    }

    /// The attachment's id.
    #[must_use]
    pub(in crate::agent) fn id(&self) -> &str {
        &self.attachment.id
    }

    /// The attachment's key.
    #[must_use]
    pub(in crate::agent) fn key(&self) -> Key {
        self.attachment.key.clone().unwrap_or_default().into()
    }

    /// The key of the attachment that leads it, if another one does.
    #[must_use]
    pub(in crate::agent) fn group_key(&self) -> Option<Key> {
        let interface_name = self.attachment.group_interface.clone();
        (!interface_name.is_empty()).then(|| Key { interface_name, ..self.key() })
    }

    /// The VF it holds.
    ///
    /// # Errors
    /// Of kind *internal*: there can be none of its numbers.
    pub(in crate::agent) fn vf(&self) -> Result<VfIdentity, Failure> {
        identity_of(self.attachment.vf.as_ref())
    }

    /// The device of the VF it holds.
    #[must_use]
    pub(in crate::agent) fn device(&self) -> &Device {
        self.device.get_or_init(|| device_of(self.attachment.vf.as_ref()))
    }
}

/// Why the records can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The journal can't be opened.
    #[error("cannot open the agent's records")]
    Open(#[from] OpenError),
    /// The journal can't be read.
    #[error("cannot read the agent's records")]
    Read(#[from] ReadError),
    /// A record is not one.
    #[error("record {id} of the agent is damaged")]
    Damaged {
        /// Its key in the journal.
        id: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The note of the boot that they are of can't be read or written.
    #[error("cannot write {}, which names the boot of the agent's records", path.display())]
    Note {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Damaged ones of an earlier boot can't be moved out of the way.
    #[error("cannot move {} aside, which a crash of the host has damaged", path.display())]
    SetAside {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl RecordsError {
    /// Whether another agent has them.
    pub(in crate::agent) fn is_in_use(&self) -> bool {
        matches!(self, Self::Open(OpenError::InUse { .. }))
    }

    /// Whether the records are there and can't be understood.
    fn is_damage(&self) -> bool {
        match self {
            Self::Open(error) => matches!(error, OpenError::Damaged { .. }),
            Self::Read(_) | Self::Damaged { .. } => true,
            Self::Note { .. } | Self::SetAside { .. } => false,
        }
    }
}

/// The records, in the journal and in memory.
#[derive(Debug)]
pub(in crate::agent) struct Records {
    journal: Journal,
    index: Mutex<Index>,
    /// The attachments whose pods have lost their VF, by id.
    broken: Mutex<HashSet<String>>,
}

/// The records by all that they are looked for. A key or VF is in one record at most.
#[derive(Debug, Default)]
struct Index {
    by_id: HashMap<String, Arc<Record>>,
    by_key: HashMap<Key, Arc<Record>>,
    by_device: HashMap<Device, Arc<Record>>,
}

impl Index {
    /// A record takes the place of the guess that was right.
    fn insert(&mut self, record: &Arc<Record>) {
        if let Some(guess) = self.guess_before(record).cloned() {
            self.remove(guess.id());
        }
        self.by_id.insert(record.id().to_owned(), Arc::clone(record));
        self.by_key.insert(record.key(), Arc::clone(record));
        self.by_device.insert(record.device().clone(), Arc::clone(record));
    }

    fn remove(&mut self, id: &str) {
        let Some(record) = self.by_id.remove(id) else { return };
        remove_one(&mut self.by_key, &record.key(), id);
        remove_one(&mut self.by_device, record.device(), id);
    }

    /// That of these records, and the guesses that are outlived. A guess is forgotten before anything else is recorded
    /// of its key or its VF. One that is there beside that is a deletion that the disk did not take, and to give it back
    /// would be to give back what was answered.
    fn of(records: Vec<Arc<Record>>) -> (Self, Vec<Arc<Record>>) {
        let (guesses, answered): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.is_guess);
        let mut index = Self::default();
        answered.iter().for_each(|record| index.insert(record));
        let (outlived, guesses): (Vec<_>, Vec<_>) =
            guesses.into_iter().partition(|guess| index.has_key_or_vf_of(guess));
        guesses.iter().for_each(|record| index.insert(record));
        (index, outlived)
    }

    fn has_key_or_vf_of(&self, record: &Record) -> bool {
        self.by_key.contains_key(&record.key()) || self.by_device.contains_key(record.device())
    }

    /// The guess that a record takes the place of.
    fn guess_before(&self, record: &Record) -> Option<&Arc<Record>> {
        let same_vf = self.by_device.get(record.device());
        same_vf.filter(|it| it.is_guess && it.key() == record.key() && it.id() != record.id())
    }
}

/// Whatever is found by it since stays.
fn remove_one<K: Eq + Hash>(found_by: &mut HashMap<K, Arc<Record>>, key: &K, id: &str) {
    if found_by.get(key).is_some_and(|record| record.id() == id) {
        found_by.remove(key);
    }
}

impl Records {
    /// Opens the records in `folder`, or creates them there. Those that are damaged since the host
    /// went down in an earlier boot than this one are moved aside.
    ///
    /// # Errors
    /// When they can't be read. They are never overwritten.
    pub(in crate::agent) fn open(folder: &Path, boot_id: &str) -> Result<Self, RecordsError> {
        let path = folder.join("records.redb");
        let last_boot = boot::last(&path)?;
        let records = match (Self::read(&path), &last_boot) {
            (Err(damage), Some(last)) if last != boot_id && damage.is_damage() => {
                boot::set_aside(&path, last, &damage)?;
                Self::read(&path)?
            }
            (read, _) => read?,
        };
        if last_boot.is_none_or(|last| last != boot_id) {
            boot::note(&path, boot_id)?;
        }
        Ok(records)
    }

    fn read(path: &Path) -> Result<Self, RecordsError> {
        let journal = Journal::open(path, SCHEMA, Outlives::Process)?;
        let rows = journal.read_all(TABLE)?.into_iter();
        let records = rows.map(|(id, row)| read(&id, &row)).collect::<Result<Vec<_>, _>>()?;
        let (index, outlived) = Index::of(records);
        if !outlived.is_empty() {
            let deletions = outlived.iter().map(|guess| Change::delete(TABLE, guess.id()));
            drop(journal.commit(deletions.collect()));
        }
        Ok(Self { journal, index: Mutex::new(index), broken: Mutex::default() })
    }

    /// Starts to write a record durably. Callers that rely on it wait for [`Written`].
    pub(super) fn write(&self, record: &Record) -> Written {
        let row = serde_json::to_vec(record).map_err(|error| unavailable(&error));
        Written(row.map(|row| self.journal.commit(vec![Change::put(TABLE, record.id(), row)])))
    }

    /// Writes several records, all or none, and deletes the speculative records that they replace.
    pub(super) fn write_all(&self, records: &[Arc<Record>]) -> Written {
        let put = |record: &Arc<Record>| {
            let row = serde_json::to_vec(record).map_err(|error| unavailable(&error))?;
            Ok(Change::put(TABLE, record.id(), row))
        };
        let index = self.lock();
        let guesses = records.iter().filter_map(|record| index.guess_before(record));
        let guesses: Vec<_> = guesses.map(|guess| Change::delete(TABLE, guess.id())).collect();
        drop(index);
        let changes: Result<Vec<_>, _> = records.iter().map(put).collect();
        Written(changes.map(|changes| self.journal.commit([guesses, changes].concat())))
    }

    /// Changes a record in memory alone.
    pub(super) fn keep(&self, record: &Arc<Record>) {
        self.lock().insert(record);
    }

    /// Removes a record without waiting for the disk. If it reappears after a crash, releasing it again is harmless;
    /// [`Self::open`] removes outdated speculative records.
    pub(super) fn remove(&self, id: &str) {
        drop(self.journal.commit(vec![Change::delete(TABLE, id)]));
        self.lock().remove(id);
        self.broken.lock().remove(id);
    }

    /// The guess of a key, if one is under way or to be taken back.
    #[must_use]
    pub(in crate::agent) fn guess_of(&self, key: &Key) -> Option<Arc<Record>> {
        self.by_key(key).filter(|record| record.is_guess)
    }

    /// Remembers whether the pod of an attachment has lost its VF.
    pub(super) fn note_broken(&self, id: &str, is_broken: bool) {
        let mut broken = self.broken.lock();
        if is_broken {
            broken.insert(id.to_owned());
        } else {
            broken.remove(id);
        }
    }

    /// How many attachments there are whose pods have lost their VF.
    #[must_use]
    pub(in crate::agent) fn broken(&self) -> usize {
        self.broken.lock().len()
    }

    /// All records.
    #[must_use]
    pub(in crate::agent) fn all(&self) -> Vec<Arc<Record>> {
        self.lock().by_id.values().cloned().collect()
    }

    /// The record of this attachment id.
    #[must_use]
    pub(in crate::agent) fn by_id(&self, id: &str) -> Option<Arc<Record>> {
        self.lock().by_id.get(id).cloned()
    }

    /// The record of this key. There is one at most: a second attach of a key is the same, or
    /// refused.
    #[must_use]
    pub(in crate::agent) fn by_key(&self, key: &Key) -> Option<Arc<Record>> {
        self.lock().by_key.get(key).cloned()
    }

    /// The records that the attachment of this key leads, or has led.
    #[must_use]
    pub(in crate::agent) fn led_by(&self, lead: &Key) -> Vec<Arc<Record>> {
        let is_led = |record: &&Arc<Record>| {
            let key = record.attachment.key.as_ref();
            record.attachment.group_interface == lead.interface_name
                && key.is_some_and(|key| key.container_id == lead.container_id)
        };
        self.lock().by_id.values().filter(is_led).cloned().collect()
    }

    /// The record that holds this VF.
    #[must_use]
    pub(in crate::agent) fn by_device(&self, device: &Device) -> Option<Arc<Record>> {
        self.lock().by_device.get(device).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }
}

/// A record on its way to the file.
#[derive(Debug)]
pub(in crate::agent) struct Written(Result<Commit, Failure>);

impl Written {
    /// Waits until it is there.
    ///
    /// # Errors
    /// [`Reason::RecordsUnavailable`]: what the file holds has not changed.
    pub(in crate::agent) async fn done(self) -> Result<(), Failure> {
        self.0?.await.map_err(|error| not_written(&error))
    }

    /// Blocks until the record is durable. Async callers use [`Self::done`].
    ///
    /// # Errors
    /// As [`Self::done`].
    pub(in crate::agent) fn wait(self) -> Result<(), Failure> {
        self.0?.wait().map_err(|error| not_written(&error))
    }
}

pub(in crate::agent) fn read(id: &[u8], row: &[u8]) -> Result<Arc<Record>, RecordsError> {
    serde_json::from_slice(row).map(Arc::new).map_err(|source| {
        let id = String::from_utf8_lossy(id).into_owned();
        RecordsError::Damaged { id, source }
    })
}

fn not_written(error: &WriteError) -> Failure {
    let WriteError::Failed { path, source } = error else { return unavailable(error) };
    let message = format!(
        "cannot write the agent's records in {}: {}: make room on its disk",
        path.display(),
        bootstrap::Chain(&**source)
    );
    Failure::new(Reason::RecordsUnavailable, message)
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> Failure {
    let message = format!("cannot write the agent's records: {}", bootstrap::Chain(error));
    Failure::new(Reason::RecordsUnavailable, message)
}

#[cfg(test)]
pub(crate) mod tests;
