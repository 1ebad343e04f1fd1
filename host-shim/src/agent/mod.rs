//! The agent: keeps the session with the DPU, moves VFs, and remembers what it moved.
//!
//! Each verb of CNI has a file. All of them, and whatever else changes an attachment, hold the lock
//! of its key meanwhile. A VF needs no lock of its own once a record holds it: one at most does.
//!
//! # Locks
//!
//! Whoever holds one of these waits only for those below it:
//!
//! | lock | what it guards | held by |
//! | --- | --- | --- |
//! | `examining` | all VFs are looked at for somebody | doctor |
//! | `passing` | all is compared with the kernel | the keeper, doctor |
//! | `keys` | one attachment | each verb of it, the keeper, the DPU's wishes |
//! | `renewing` | VFs are made anew one at a time | whoever makes one anew, with its key or as a free one; doctor, which gives VFs to drivers |
//! | `vfs_stay` | how many VFs there are | for reading, an attach that makes a VF its own; for writing, who changes the number, without a key |
//! | `free_vfs` | a VF that nobody has | an attach that makes it its own; who restores it or makes it anew |
//! | `moves` | a turn at moving a VF | each move |
//! | `keeping` | the keeper's turn at looking | the keeper |
//! | `looks` | a turn at looking at the kernel | each look |
//! | `walks` | all namespaces are walked through | who proves VFs |
//!
//! All are fair: who comes later waits behind who waits already. So nobody may wait for a key with
//! `vfs_stay` in hand: a change of the number of VFs that waits in between would stop all three.
//!
//! One who holds a key waits for another in one place: an attach, for the key of whoever is giving its
//! VF back (`settle_earlier_holder`). Such waits form no circle. The one that is waited for had a
//! record in phase *releasing* when the waiting began; an attach waits for another key only once it
//! has seen that its own key has none (`make_way`), and while it holds its key nobody else makes one.
//! So in a chain of waits each one that is waited for began to wait later than the one that waits for
//! it, and no chain comes back to where it began.

mod caller;
mod config;
mod dpu;
#[cfg(test)]
mod fuzz;
mod milestones;
mod pending;
mod repairs;
mod run;
mod scrape;
mod server;
mod socket;
mod upkeep;
mod verbs;
mod vfs;

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use keyed_locks::KeyedLocks;
use metrics::Calls;
use netlink::{NetSysfs, Netns};
use offload_proto::{
    Failure, Reason,
    v1::{Release, dpu_message::Message, host_message},
};
use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

pub use config::Config;
pub use run::{AgentError, Arguments, run};
pub use socket::ListenError;
pub use vfs::{originals::OriginalsError, records::RecordsError};

use crate::{mover::Announcer, protocol::Key, vf_source::VfSource};
use dpu::{
    calls::detach_request, inventory::SentInventory, session::Session, undelivered::Undelivered,
    welcomed::Welcomed,
};
use pending::Pending;
use repairs::Repairs;
use upkeep::provide::Wanted;
use verbs::detach::Renewal;
use vfs::{
    originals::Originals, pauses::Pauses, proofs, proofs::Proofs, records::Records,
    renewal::Renewals, stacked::Walks,
};

/// Moves under way at the same time: the kernel does them one by one, so that one is being made while
/// one is prepared and one configured. More would only wait, each on a thread with memory of its own.
const MOVES: usize = 3;

/// Looks at the kernel at the same time, of which the keeper, who may have many, has one.
const LOOKS: usize = 2;

/// Threads for what may block: besides moves and looks one for restoring VFs, one for making one anew, and
/// one for a walk through all namespaces.
const BLOCKING_THREADS: usize = MOVES + LOOKS + 3;

/// Examinations at the same time: one that is made, and one that waits, as of a next session.
const EXAMINATIONS: usize = 2;

/// All that the agent's tasks share.
#[derive(Debug)]
struct Agent {
    config: Config,
    source: Arc<dyn VfSource>,
    /// The host's own namespace.
    host: Arc<Netns>,
    boot_id: String,
    records: Records,
    /// What VFs are like while nobody uses them.
    originals: Originals,
    /// Whether free VFs are.
    proofs: Proofs,
    /// The walks through all namespaces that this takes.
    walks: Walks,
    /// Of the host's namespace. `None`: it can't be had.
    sysfs: Option<NetSysfs>,
    announcer: Announcer,
    /// The moves that may be under way.
    moves: Semaphore,
    /// The looks at the kernel that may be under way.
    looks: Semaphore,
    /// Held while the keeper looks at a VF.
    keeping: tokio::sync::Mutex<()>,
    keys: KeyedLocks<Key>,
    session: Session,
    /// That the DPU has welcomed this host since its boot.
    welcomed: Welcomed,
    /// The keys of attaches that the DPU was asked for and nobody was answered.
    pending: Pending,
    /// The keys of attaches that wait for their key's lock.
    repeats: Pending,
    /// Counts the events of VFs in the host's namespace, for those who wait for one.
    vf_events: watch::Sender<u64>,
    /// Asks for a comparison of all records with the kernel.
    poke: Notify,
    /// When such a comparison last came to its end.
    last_pass: Mutex<Instant>,
    inventory_poke: Notify,
    sent_inventory: Mutex<SentInventory>,
    /// The records that are about to be looked at, by attachment id.
    looked_for: Mutex<HashSet<String>>,
    /// How long to wait before a VF is worked at again.
    pauses: Pauses,
    /// The attachments whose pods have lost their VF, by id.
    broken: Mutex<HashSet<String>>,
    /// The attachments that came into their pods while nobody could be told, by id.
    untold: Mutex<HashSet<String>>,
    /// How many VFs the DPU wants.
    wanted_vfs: Mutex<Wanted>,
    /// Held for reading while an attach makes a VF its own, and for writing while the number of VFs
    /// changes.
    vfs_stay: RwLock<()>,
    /// The VFs that are being made anew.
    renewals: Renewals,
    /// Held while a free VF is restored or made anew, and while an attach makes one its own, by PCI address.
    free_vfs: KeyedLocks<String>,
    /// Held while a VF is made anew, whoever has it, and while VFs are given to drivers.
    renewing: tokio::sync::Mutex<()>,
    /// What calls whose answers never came may have left on the DPU.
    undelivered: Undelivered,
    /// What was mended lately.
    repairs: Repairs,
    /// The calls that were answered.
    calls: Arc<Calls>,
    /// Held while all is compared with the kernel.
    passing: tokio::sync::Mutex<()>,
    /// The examinations that may be wanted at a time.
    examinations: Arc<Semaphore>,
    /// Held while all VFs are looked at for somebody.
    examining: tokio::sync::Mutex<()>,
    /// Work that is finished before the agent ends.
    tasks: TaskTracker,
}

impl Agent {
    fn new(
        config: Config,
        source: Arc<dyn VfSource>,
        host: Netns,
        boot_id: String,
        (records, originals): (Records, Originals),
        announcer: Announcer,
    ) -> Self {
        let welcomed = Welcomed::new(&config.state_dir, &boot_id);
        Self {
            config,
            source,
            sysfs: proofs::sysfs_of(&host),
            host: Arc::new(host),
            boot_id,
            records,
            originals,
            proofs: Proofs::default(),
            walks: Walks::default(),
            announcer,
            moves: Semaphore::new(MOVES),
            looks: Semaphore::new(LOOKS),
            keeping: tokio::sync::Mutex::default(),
            keys: KeyedLocks::default(),
            session: Session::new(welcomed.is_noted()),
            welcomed,
            pending: Pending::default(),
            repeats: Pending::default(),
            vf_events: watch::Sender::new(0),
            poke: Notify::new(),
            last_pass: Mutex::new(Instant::now()),
            inventory_poke: Notify::new(),
            sent_inventory: Mutex::default(),
            looked_for: Mutex::default(),
            pauses: Pauses::default(),
            broken: Mutex::default(),
            untold: Mutex::default(),
            wanted_vfs: Mutex::default(),
            vfs_stay: RwLock::default(),
            renewals: Renewals::default(),
            free_vfs: KeyedLocks::default(),
            renewing: tokio::sync::Mutex::default(),
            undelivered: Undelivered::default(),
            repairs: Repairs::default(),
            calls: scrape::calls(),
            passing: tokio::sync::Mutex::default(),
            examinations: Arc::new(Semaphore::new(EXAMINATIONS)),
            examining: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Looks at the kernel on a thread that may block, when it is its turn. However many looks wait, the
    /// moves have their threads.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.looks.acquire().await.map_err(|error| defect(&error))?;
        spawn_blocking(work).await.map_err(|error| defect(&error))
    }

    /// Does a move on a thread of its own, when it is its turn.
    async fn when_its_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.moves.acquire().await.map_err(|error| defect(&error))?;
        spawn_blocking(work).await.map_err(|error| defect(&error))
    }

    fn broken(&self) -> MutexGuard<'_, HashSet<String>> {
        locked(&self.broken)
    }

    fn untold(&self) -> MutexGuard<'_, HashSet<String>> {
        locked(&self.untold)
    }

    fn wanted_vfs(&self) -> MutexGuard<'_, Wanted> {
        locked(&self.wanted_vfs)
    }

    fn looked_for(&self) -> MutexGuard<'_, HashSet<String>> {
        locked(&self.looked_for)
    }

    fn sent_inventory(&self) -> MutexGuard<'_, SentInventory> {
        locked(&self.sent_inventory)
    }

    /// A session began: what waits for the DPU is delivered, and what it wants it says anew.
    fn session_began(&self) {
        self.welcomed.note();
        self.forget_wanted_vfs();
        self.tell_untold();
        self.poke.notify_one();
        self.inventory_changed();
    }

    /// Acts on a message of the DPU.
    fn hear(self: &Arc<Self>, message: Option<Message>) {
        match message {
            Some(Message::Reattach(reattach)) => {
                let id = reattach.attachment.unwrap_or_default().id;
                let agent = Arc::clone(self);
                self.tasks.spawn(async move { agent.reconcile(&id).await });
            }
            Some(Message::Release(release)) => {
                let agent = Arc::clone(self);
                self.tasks.spawn(async move { agent.release_on_request(release).await });
            }
            Some(Message::Draining(draining)) => {
                tracing::warn!(reason = draining.reason, "the DPU takes no new attachments");
            }
            Some(Message::NetworkChanged(changed)) => {
                tracing::info!(
                    network = changed.network,
                    deleted = changed.deleted,
                    "a network changed"
                );
            }
            Some(Message::WantedVfs(wanted)) => self.want_vfs(&wanted),
            Some(Message::Examine(request)) => {
                if let Err(busy) = self.begin_examination(request) {
                    self.session.send(host_message::Message::Examination(busy));
                }
            }
            // Heartbeats are the session's own; a second welcome, or a message of a newer
            // protocol, asks for nothing.
            Some(Message::Welcome(_) | Message::Heartbeat(_)) | None => {}
        }
    }

    /// An operator took the attachment away from its pod, or the DPU gave it up.
    async fn release_on_request(self: &Arc<Self>, release: Release) {
        let told: Key = release.key.clone().unwrap_or_default().into();
        let recorded = self.records.by_id(&release.attachment_id);
        let key = recorded.map_or(told, |record| record.key());
        let _key = self.keys.lock(&key).await;
        match self.records.by_id(&release.attachment_id) {
            Some(record) => {
                tracing::info!(attachment = record.id(), reason = release.reason, "to be released");
                self.release(record, self.config.timeouts.vf_return(), Renewal::Later).await;
            }
            None => self.answer_unknown_release(release).await,
        }
    }

    async fn answer_unknown_release(&self, release: Release) {
        let detach = detach_request(release.key, release.attachment_id, false);
        if let Err(failure) = self.call_detach(detach).await {
            tracing::info!("a release of the DPU is settled later: {failure}");
        }
        self.inventory_wanted();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A failure that no input should be able to cause.
fn defect(error: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::Internal, format!("the agent failed: {error}"))
}

/// What was done, or nothing: what could not be done now is tried again by the next who wants it.
fn done_or_nothing<T: Default>(done: Result<Result<T, netlink::Error>, Failure>, doing: &str) -> T {
    match done {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => {
            tracing::warn!(%error, "can't {doing}");
            T::default()
        }
        Err(error) => {
            tracing::error!(%error, "can't {doing}");
            T::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::DelRequest, vf_source::VirtualCard};

    const CONFIGURATION: &str = "
        netns_folders = []
        [dpu]
        endpoint = '192.168.100.2:7443'
        name = 'dpu-1'
        [tls]
        ca = '/ca.pem'
        certificate = '/host.pem'
        key = '/host.key'
        [timeouts]
        reconnect_ms = 0
    ";

    /// An agent without a session, and the folder of its records.
    pub(super) fn agent() -> (Arc<Agent>, tempfile::TempDir) {
        agent_with(Arc::new(VirtualCard::default()))
    }

    /// The same with a card of that kind.
    pub(super) fn agent_with(source: Arc<dyn VfSource>) -> (Arc<Agent>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let config = bootstrap::parse_config(CONFIGURATION, "/c.toml".as_ref()).unwrap();
        let records = Records::open(folder.path(), "boot").unwrap();
        let host = Netns::current().unwrap();
        let announcer = Announcer::start().unwrap();
        let originals = Originals::open(folder.path().join("vfs.json"), "boot".into()).unwrap();
        let durable = (records, originals);
        let agent = Agent::new(config, source, host, "boot".into(), durable, announcer);
        (Arc::new(agent), folder)
    }

    #[tokio::test]
    async fn what_nobody_hears_is_remembered() {
        let (agent, _folder) = agent();
        let record = Arc::new(vfs::records::tests::record("a", "c"));
        agent.records.keep(&record);
        agent.tell_attached(&record);
        assert!(agent.untold().contains("a"));
        agent.tell_untold();
        assert!(agent.untold().contains("a"), "there is no session yet");
    }

    #[tokio::test]
    async fn a_del_without_a_record_is_told_again_if_nobody_answers() {
        let (agent, _folder) = agent();
        let key = vfs::records::tests::record("a", "c").key();
        agent.detach(DelRequest { key: key.clone(), netns: String::new() }).await;
        assert_eq!(agent.undelivered.keys(), [key]);
    }

    #[tokio::test]
    async fn an_add_that_finds_a_release_untold_says_that_the_dpu_is_away() {
        let (agent, _folder) = agent();
        let record = vfs::records::tests::record("a", "c");
        let told = agent.still_releasing(&record);
        assert_eq!(told.reason, Reason::Releasing);
        assert!(told.message.ends_with(
            "is still being given back: the DPU has not been told yet, since there is no session: \
             the agent has only just started"
        ));
    }

    #[tokio::test]
    async fn what_the_dpu_does_not_understand_is_not_told_again() {
        let (agent, _folder) = agent();
        let key = vfs::records::tests::record("a", "c").attachment.key;
        let failure = Failure::new(Reason::InvalidRequest, "the container's id is too long");
        agent.detach_later(detach_request(key, String::new(), false), &failure);
        assert!(agent.undelivered.keys().is_empty());
    }

    #[tokio::test]
    async fn detaches_wait_for_the_dpu_unless_their_key_is_attached_again() {
        let (agent, _folder) = agent();
        let undelivered = |container: &str| offload_proto::v1::DetachRequest {
            key: vfs::records::tests::record("a", container).attachment.key,
            ..Default::default()
        };
        agent.undelivered.note(undelivered("alone"));
        agent.deliver_detaches().await;
        assert_eq!(agent.undelivered.keys().len(), 1);
        agent.records.keep(&Arc::new(vfs::records::tests::record("a", "alone")));
        agent.deliver_detaches().await;
        assert!(agent.undelivered.keys().is_empty());
    }
}
