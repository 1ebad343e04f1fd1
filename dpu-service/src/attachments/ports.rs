//! The representors, each worked at by one flow at a time.
//!
//! Attach, detach and the reconciler program the same representors. Whoever does holds the lock of
//! the VF, and looks into the registry again once it has it: whoever had it before may have ended the
//! attachment, or begun another one on the same VF. All work blocks on the kernel, and so is done on
//! threads of its own.
//!
//! The kernel serves all threads in turn, so a host with sixteen attaches would get sixteen times what a host with one
//! gets. So each host has as many ports programmed at a time as the fabric does best together, and its others wait.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bootstrap::Chain;
use keyed_locks::{Held, KeyedLocks};
use offload_proto::{Failure, Reason};
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::{Instant, timeout},
};
use vf_alloc::FunctionId;

use crate::{
    counters::{PortCounters, PortTraffic},
    driver::Refused,
    eswitch::Representor,
    model::{HostName, PortSettings, Record},
    programmer::{Inspection, Leftover, ProgramError, Programmer, Repaired, Surveyed, Uplink},
};

/// How often a representor that is missing is looked for, should the kernel not tell of it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A port that the kernel is slow with keeps the host's others waiting no longer than this. It covers the wait for a
/// thread, which is long while many hosts are busy: a turn that ended meanwhile would let one host fill the threads.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// Representors by VF, as one look at the kernel finds them.
pub(super) type Survey = BTreeMap<FunctionId, Surveyed>;

/// The names of representors by VF.
pub(super) type PortNames = BTreeMap<FunctionId, String>;

/// All representors.
#[derive(Debug)]
pub(super) struct Ports {
    programmer: Programmer,
    locks: KeyedLocks<FunctionId>,
    /// Counts the kernel's reports.
    reports: watch::Sender<u64>,
    /// How long an attach waits for a representor that the card has not made yet.
    patience: Duration,
    /// A permit for each port of a host that may be programmed at the same time.
    turns: Mutex<HashMap<HostName, Arc<Semaphore>>>,
}

impl Ports {
    pub(super) fn new(programmer: Programmer, patience: Duration) -> Self {
        let (locks, reports) = (KeyedLocks::default(), watch::Sender::new(0));
        Self { programmer, locks, reports, patience, turns: Mutex::default() }
    }

    pub(super) const fn programmer(&self) -> &Programmer {
        &self.programmer
    }

    /// The lock of a VF. Taken after that of a key, where both are needed.
    pub(super) async fn lock(&self, vf: FunctionId) -> Held {
        self.locks.lock(&vf).await
    }

    /// The locks of several VFs.
    pub(super) async fn lock_all(&self, vfs: impl IntoIterator<Item = &FunctionId>) -> Vec<Held> {
        self.locks.lock_all(vfs).await
    }

    /// The kernel reported a change of links.
    pub(super) fn note_report(&self) {
        self.reports.send_modify(|count| *count += 1);
    }

    pub(super) fn reports(&self) -> watch::Receiver<u64> {
        self.reports.subscribe()
    }

    /// Runs all programming steps, or undoes them, and returns the representor's index. The caller
    /// holds the VF's lock.
    pub(super) async fn program(&self, record: &Record) -> Result<u32, ProgramError> {
        self.once_there(record, Programmer::program).await
    }

    /// Runs the steps that are not in place, once there is a representor. The caller holds the VF's
    /// lock.
    pub(super) async fn program_rest(&self, record: &Record) -> Result<Repaired, ProgramError> {
        self.once_there(record, Programmer::repair).await
    }

    /// Likewise, if there is a representor now: a card that is reset must not hold up the reconciler.
    pub(super) async fn repair(&self, record: &Record) -> Result<Repaired, ProgramError> {
        let settings = record.port_settings();
        self.on_thread(move |programmer| programmer.repair(&settings)).await
    }

    /// Takes the representor's programming back. The caller holds the VF's lock.
    pub(super) async fn unprogram(&self, vf: FunctionId) -> Result<(), Leftover> {
        self.on_thread(move |programmer| programmer.unprogram(vf)).await
    }

    /// Does `work` on a port of the host when it is its turn.
    pub(super) async fn in_turn<T>(&self, host: &HostName, work: impl Future<Output = T>) -> T {
        let turns = {
            let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            let together = || Arc::new(Semaphore::new(self.programmer.together()));
            Arc::clone(all.entry(host.clone()).or_insert_with(together))
        };
        let turn = turns.acquire().await;
        let mut work = pin!(work);
        match timeout(LONGEST_TURN, work.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                drop(turn);
                work.await
            }
        }
    }

    /// Each step, and what the kernel has of it, as far as that can be read.
    pub(super) async fn inspect(&self, record: &Record) -> Result<Inspection, ProgramError> {
        let settings = record.port_settings();
        self.on_thread(move |programmer| programmer.inspect(&settings)).await
    }

    /// Whether the VF's representor has anything that is undone when it serves nobody. One that can't be asked for
    /// might have.
    pub(super) async fn is_programmed(&self, vf: FunctionId) -> bool {
        self.on_thread(move |programmer| programmer.is_programmed(vf)).await.unwrap_or(true)
    }

    /// Whether the VF's representor is joined to the fabric. One that can't be asked for might be.
    pub(super) async fn is_joined(&self, vf: FunctionId) -> bool {
        self.on_thread(move |programmer| programmer.is_joined(vf)).await.unwrap_or(true)
    }

    /// Whether frames pass the programmed port whose representor has that index.
    pub(super) async fn forwards(&self, index: u32) -> bool {
        self.on_thread(move |programmer| programmer.forwards(index)).await.unwrap_or(false)
    }

    /// The names of the representors that there are. The fabric is not asked.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(super) async fn names(&self) -> Result<PortNames, Failure> {
        let representors = self.on_thread(Programmer::representors).await.map_err(unreadable)?;
        Ok(representors.into_iter().map(|port| (port.vf, port.name)).collect())
    }

    /// The representors that there are, and how they are joined.
    ///
    /// # Errors
    /// When the kernel or the fabric can't be asked.
    pub(super) async fn survey(&self) -> Result<Survey, Failure> {
        self.on_thread(Programmer::survey).await.map_err(unreadable)
    }

    /// What each port has carried and dropped.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(super) async fn counters(&self) -> Result<BTreeMap<FunctionId, PortCounters>, Failure> {
        self.on_thread(Programmer::counters).await.map_err(unreadable)
    }

    /// The same of the ports of these VFs, and what of that is done in hardware.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(super) async fn traffic(
        &self,
        vfs: BTreeSet<FunctionId>,
    ) -> Result<BTreeMap<FunctionId, PortTraffic>, Failure> {
        self.on_thread(move |programmer| programmer.traffic(&vfs)).await.map_err(unreadable)
    }

    /// How the uplinks are.
    ///
    /// # Errors
    /// When the kernel or the fabric can't be asked.
    pub(super) async fn uplinks(&self) -> Result<Vec<Uplink>, Failure> {
        self.on_thread(Programmer::uplink_states).await.map_err(unreadable)
    }

    /// The same without a look at what is in the fabric.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(super) async fn uplink_links(&self) -> Result<Vec<Uplink>, Failure> {
        self.on_thread(Programmer::uplink_links).await.map_err(unreadable)
    }

    /// Those of the representors that other programs' bridges or bonds have as ports, each with the name of what has it.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(super) async fn occupied(
        &self,
        ports: Vec<Representor>,
    ) -> Result<Vec<(Representor, String)>, Failure> {
        let look = |programmer: &Programmer| {
            let mut occupied = Vec::new();
            for port in ports {
                let occupant = programmer.occupant(&port)?;
                occupied.extend(occupant.map(|occupant| (port, occupant)));
            }
            Ok(occupied)
        };
        self.on_thread(look).await.map_err(unreadable)
    }

    /// Whether guards have lost what they had in nftables.
    pub(super) async fn lost_rules(&self) -> bool {
        self.on_thread(Programmer::lost_rules).await
    }

    /// Makes what all ports share.
    pub(super) async fn prepare(&self) -> Result<(), Refused> {
        self.on_thread(Programmer::prepare).await
    }

    /// Does something on a thread that may block on the kernel. A panic there is the caller's panic.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Programmer) -> T + Send + 'static,
    ) -> T {
        let programmer = self.programmer.clone();
        match spawn_blocking(traces::in_span(move || work(&programmer))).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// A card may be late with a representor: it is waited for, within bounds.
    async fn once_there<T: Send + 'static>(
        &self,
        record: &Record,
        work: fn(&Programmer, &PortSettings) -> Result<T, ProgramError>,
    ) -> Result<T, ProgramError> {
        let until = Instant::now() + self.patience;
        // From before the first look, so that no report falls in between.
        let mut reports = self.reports();
        loop {
            let settings = record.port_settings();
            let worked = self.on_thread(move |programmer| work(programmer, &settings));
            match self.in_turn(&record.key.host, worked).await {
                Err(ProgramError::NoRepresentor(_)) if Instant::now() < until => {
                    // Whether the kernel reported something or time went by: look again.
                    let _ = timeout(LOOK_AGAIN, reports.changed()).await;
                }
                result => return result,
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what it makes an error of")]
fn unreadable(refused: Refused) -> Failure {
    Failure::new(Reason::PortsUnreadable, Chain(&refused).to_string())
}
