//! Representors: each is programmed by one flow at a time.
//!
//! Locks: one for each VF. Attach, detach and the reconciler program the same representors. A flow locks the VF and
//! then asks the registry again, because the previous holder may have ended the attachment or started another on the
//! same VF. All work blocks on the kernel and runs on blocking threads.
//!
//! The kernel serves all threads in turn, so a host with sixteen attaches would get sixteen times the share of a host
//! with one. Each host therefore programs only as many ports at a time as the fabric handles best; its others wait.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bootstrap::Chain;
use keyed_locks::{Held, KeyedLocks};
use offload_proto::{Failure, Reason};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};
use vf_alloc::FunctionId;

use crate::tasks::blocking;
use drivers::{
    counters::{PortCounters, PortTraffic},
    driver::Refused,
    eswitch::Representor,
    programmer::{Inspection, Leftover, ProgramError, Programmer, Repaired, Surveyed, Uplink},
};
use model::{HostName, PortSettings, Record};

/// How often a missing representor is looked up in case the kernel's report was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// After this long a slow port no longer holds up its host's other ports. It includes the wait for a thread, which is
/// long while many hosts are busy: with a shorter limit, one host would fill the threads.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// One survey of the kernel, by VF.
pub(super) type Survey = BTreeMap<FunctionId, Surveyed>;

pub(super) type PortNames = BTreeMap<FunctionId, String>;

#[derive(Debug)]
pub(super) struct Ports {
    programmer: Programmer,
    locks: KeyedLocks<FunctionId>,
    /// Number of reports by the kernel. A counter, so that a subscriber also sees reports between two waits.
    reports: watch::Sender<u64>,
    /// How long an attach waits for a representor that the card has not created yet.
    representor_wait: Duration,
    /// One permit for each port of a host that may be programmed concurrently.
    turns: Mutex<HashMap<HostName, Arc<Semaphore>>>,
}

impl Ports {
    pub(super) fn new(programmer: Programmer, representor_wait: Duration) -> Self {
        let (locks, reports) = (KeyedLocks::default(), watch::Sender::new(0));
        Self { programmer, locks, reports, representor_wait, turns: Mutex::default() }
    }

    pub(super) const fn programmer(&self) -> &Programmer {
        &self.programmer
    }

    /// Locks a VF. Taken after the lock of a key if both are needed.
    pub(super) async fn lock(&self, vf: FunctionId) -> Held {
        self.locks.lock(&vf).await
    }

    /// Locks several VFs, in their sort order: two calls with the same VFs cannot deadlock.
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

    /// Runs all programming steps or undoes them. Returns the representor's ifindex. The caller holds the VF's lock.
    pub(super) async fn program(&self, record: &Record) -> Result<u32, ProgramError> {
        self.once_there(record, Programmer::program).await
    }

    /// Waits for the representor and runs the steps that are not in place. The caller holds the VF's lock.
    pub(super) async fn program_rest(&self, record: &Record) -> Result<Repaired, ProgramError> {
        self.once_there(record, Programmer::repair).await
    }

    /// Runs the steps that are not in place, without waiting for a missing representor: a card in reset must not block
    /// the reconciler.
    pub(super) async fn repair(&self, record: &Record) -> Result<Repaired, ProgramError> {
        let settings = record.port_settings();
        self.on_thread(move |programmer| programmer.repair(&settings)).await
    }

    /// Removes the representor's programming. The caller holds the VF's lock.
    pub(super) async fn unprogram(&self, vf: FunctionId) -> Result<(), Leftover> {
        self.on_thread(move |programmer| programmer.unprogram(vf)).await
    }

    /// Runs `work` on a port of the host once the host has a free permit.
    pub(super) async fn in_turn<T>(&self, host: &HostName, work: impl Future<Output = T>) -> T {
        let turns = {
            let mut all = self.turns.lock();
            let together = || Arc::new(Semaphore::new(self.programmer.together()));
            Arc::clone(all.entry(host.clone()).or_insert_with(together))
        };
        let turn = turns.acquire().await;
        let mut work = pin!(work);
        match timeout(LONGEST_TURN, work.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                // The work continues without its permit: it blocks in the kernel and cannot be cancelled.
                drop(turn);
                work.await
            }
        }
    }

    /// Each programming step with its state in the kernel, as far as that can be read.
    pub(super) async fn inspect(&self, record: &Record) -> Result<Inspection, ProgramError> {
        let settings = record.port_settings();
        self.on_thread(move |programmer| programmer.inspect(&settings)).await
    }

    /// Whether the VF's representor has programming to remove. True if that cannot be determined.
    pub(super) async fn is_programmed(&self, vf: FunctionId) -> bool {
        self.on_thread(move |programmer| programmer.is_programmed(vf)).await.unwrap_or(true)
    }

    /// Whether the VF's representor is joined to the fabric. True if that cannot be determined.
    pub(super) async fn is_joined(&self, vf: FunctionId) -> bool {
        self.on_thread(move |programmer| programmer.is_joined(vf)).await.unwrap_or(true)
    }

    /// Whether the programmed port with that ifindex forwards frames.
    pub(super) async fn forwards(&self, index: u32) -> bool {
        self.on_thread(move |programmer| programmer.forwards(index)).await.unwrap_or(false)
    }

    /// The names of all representors. Does not ask the fabric.
    pub(super) async fn names(&self) -> Result<PortNames, Failure> {
        let representors = self.on_thread(Programmer::representors).await.map_err(unreadable)?;
        Ok(representors.into_iter().map(|port| (port.vf, port.name)).collect())
    }

    /// All representors and how they are joined.
    pub(super) async fn survey(&self) -> Result<Survey, Failure> {
        self.on_thread(Programmer::survey).await.map_err(unreadable)
    }

    pub(super) async fn counters(&self) -> Result<BTreeMap<FunctionId, PortCounters>, Failure> {
        self.on_thread(Programmer::counters).await.map_err(unreadable)
    }

    /// Traffic and drops of these VFs' ports, and the share that the hardware handled.
    pub(super) async fn traffic(
        &self,
        vfs: BTreeSet<FunctionId>,
    ) -> Result<BTreeMap<FunctionId, PortTraffic>, Failure> {
        self.on_thread(move |programmer| programmer.traffic(&vfs)).await.map_err(unreadable)
    }

    pub(super) async fn uplinks(&self) -> Result<Vec<Uplink>, Failure> {
        self.on_thread(Programmer::uplink_states).await.map_err(unreadable)
    }

    /// State of the uplinks' links, without asking the fabric.
    pub(super) async fn uplink_links(&self) -> Result<Vec<Uplink>, Failure> {
        self.on_thread(Programmer::uplink_links).await.map_err(unreadable)
    }

    /// The representors that are ports of other programs' bridges or bonds, each with the name of that bridge or bond.
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

    /// Whether the guards have lost rules in nftables.
    pub(super) async fn lost_rules(&self) -> bool {
        self.on_thread(Programmer::lost_rules).await
    }

    pub(super) async fn prepare(&self) -> Result<(), Refused> {
        self.on_thread(Programmer::prepare).await
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Programmer) -> T + Send + 'static,
    ) -> T {
        let programmer = self.programmer.clone();
        blocking(traces::in_span(move || work(&programmer))).await
    }

    /// Runs `work` in the host's turn, and waits for a representor that the card has not created yet.
    async fn once_there<T: Send + 'static>(
        &self,
        record: &Record,
        work: fn(&Programmer, &PortSettings) -> Result<T, ProgramError>,
    ) -> Result<T, ProgramError> {
        let until = Instant::now() + self.representor_wait;
        // Subscribed before the first attempt, so that no report falls in between.
        let mut reports = self.reports();
        loop {
            let settings = record.port_settings();
            let worked = self.on_thread(move |programmer| work(programmer, &settings));
            // A turn for each attempt: the wait for a representor must not delay the host's other ports.
            match self.in_turn(&record.key.host, worked).await {
                Err(ProgramError::NoRepresentor(_)) if Instant::now() < until => {
                    // On a report or after `LOOK_AGAIN`, whichever comes first: reports may be lost.
                    let _ = timeout(LOOK_AGAIN, reports.changed()).await;
                }
                result => return result,
            }
        }
    }
}

/// The kernel or the fabric could not be asked.
#[expect(clippy::needless_pass_by_value, reason = "what it makes an error of")]
fn unreadable(refused: Refused) -> Failure {
    Failure::new(Reason::PortsUnreadable, Chain(&refused).to_string())
}
