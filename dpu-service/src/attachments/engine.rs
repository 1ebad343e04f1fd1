//! What all flows share: the state, the locks, and how kernel work is run.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bootstrap::Chain;
use jiff::Timestamp;
use keyed_locks::KeyedLocks;
use offload_proto::{Failure, Reason};
use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;
use vf_alloc::VfId;

use super::{Attachments, overtaken::Overtaken, registry::Registry};
use crate::{
    events::Events,
    model::{AttachmentKey, PortSettings},
    programmer::{Leftover, ProgramError, Programmer},
    records::Records,
    sessions::Sessions,
};

/// How often a representor that is missing is looked for, should the kernel not tell of it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The state behind [`Attachments`].
///
/// Who may race, and what orders them:
/// - Two flows of one attachment: the lock of its key, held from beginning to end.
/// - Two attachments that want the same VF, MAC or address: `registry`, held for each reservation,
///   never across an await.
/// - Two flows that program one representor, such as an attach and the reconciler: the lock of the
///   VF. Whoever has it looks into the registry again for who holds the VF now.
/// - A flow of an old session and the hello of a new one: an attach looks at the session in force
///   within the same hold of `registry` that reserves. A hello opens its session before it looks for
///   attachments that the host does not know, so that it sees all that earlier sessions have made.
///
/// A key's lock is taken before a VF's, and `registry` before `overtaken`. Commits wait for the disk
/// without `registry`, so that concurrent flows share a transaction.
#[derive(Debug)]
pub(super) struct Engine {
    registry: Mutex<Registry>,
    pub(super) records: Records,
    pub(super) programmer: Programmer,
    pub(super) sessions: Sessions,
    pub(super) events: Arc<Events>,
    pub(super) keys: KeyedLocks<AttachmentKey>,
    pub(super) vfs: KeyedLocks<VfId>,
    overtaken: Mutex<Overtaken>,
    /// Held while networks change.
    pub(super) networks: tokio::sync::Mutex<()>,
    pub(super) flows: TaskTracker,
    /// Why the fabric can't be prepared. `None`: it is.
    fabric_problem: Mutex<Option<String>>,
    /// When the reconciler's latest pass ended.
    reconciled_at: Mutex<Instant>,
    /// A host said something that the reconciler should look at.
    pub(super) host_spoke: Notify,
    /// Counts the kernel's reports.
    pub(super) kernel_reports: watch::Sender<u64>,
}

impl Engine {
    pub(super) fn new(registry: Registry, records: Records, programmer: Programmer) -> Self {
        Self {
            registry: Mutex::new(registry),
            records,
            programmer,
            sessions: Sessions::default(),
            events: Arc::default(),
            keys: KeyedLocks::default(),
            vfs: KeyedLocks::default(),
            overtaken: Mutex::default(),
            networks: tokio::sync::Mutex::default(),
            flows: TaskTracker::new(),
            fabric_problem: Mutex::default(),
            reconciled_at: Mutex::new(Instant::now()),
            host_spoke: Notify::new(),
            kernel_reports: watch::Sender::new(0),
        }
    }

    /// Used under the key's lock.
    pub(super) fn overtaken(&self) -> MutexGuard<'_, Overtaken> {
        self.overtaken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fabric_problem(&self) -> Option<String> {
        self.fabric_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_fabric_problem(&self, problem: Option<String>) {
        *self.fabric_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    pub(super) fn note_reconciled(&self) {
        *self.reconciled_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn since_reconciled(&self) -> Duration {
        self.reconciled_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Lets the programmer do `work` on the representor. A card may be late with it: it is waited
    /// for, within bounds. The caller holds the VF's lock.
    pub(super) async fn program<T: Send + 'static>(
        &self,
        settings: PortSettings,
        work: fn(&Programmer, &PortSettings) -> Result<T, ProgramError>,
    ) -> Result<T, ProgramError> {
        let until = Instant::now() + self.registry().settings.representor_wait;
        let mut reports = self.kernel_reports.subscribe();
        loop {
            let (programmer, settings) = (self.programmer.clone(), settings.clone());
            match on_blocking_thread(move || work(&programmer, &settings)).await {
                Err(ProgramError::NoRepresentor(_)) if Instant::now() < until => {
                    // Whether the kernel reported something or time went by: look again.
                    let _ = timeout(LOOK_AGAIN, reports.changed()).await;
                }
                result => return result,
            }
        }
    }

    /// Takes the representor's programming back. The caller holds the VF's lock. What can't be taken
    /// back puts the VF into quarantine; the reconciler goes on trying.
    pub(super) async fn unprogram(&self, vf: VfId) {
        let programmer = self.programmer.clone();
        match on_blocking_thread(move || programmer.unprogram(vf)).await {
            Ok(()) => {
                self.registry().unclean.remove(&vf);
            }
            Err(leftover) => self.note_leftover(&leftover),
        }
    }

    /// A VF whose representor keeps some of its programming is not to be given out.
    pub(super) fn note_leftover(&self, leftover: &Leftover) {
        self.registry().unclean.insert(leftover.vf);
        self.quarantine(leftover.vf, &Chain(leftover).to_string());
    }

    pub(super) fn quarantine(&self, vf: VfId, reason: &str) {
        self.registry().vfs.quarantine(vf, reason);
        self.events.record(crate::events::EventKind::VfQuarantined, vf, reason);
    }
}

impl Attachments {
    /// Runs a flow to its end, whatever becomes of the caller that waits for it.
    pub(super) async fn flow<T, F>(&self, run: impl FnOnce(Arc<Engine>) -> F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let flow = self.0.flows.spawn(run(Arc::clone(&self.0)));
        flow.await.unwrap_or_else(|error| {
            Err(Failure::new(Reason::Internal, format!("the call broke off: {error}")))
        })
    }
}

/// Runs what blocks on the kernel. A panic there is the caller's panic.
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Seconds since 1970, UTC: the clock of all pools, so that rests outlive a restart.
pub(super) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}
