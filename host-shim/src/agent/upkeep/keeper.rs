//! Keeps records and kernel in agreement, without being told what happened: at start, whenever a VF
//! shows up in the host's namespace, when the DPU comes back, and on a timer.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{
    Failure,
    v1::{ExaminedVf, Finding},
};
use parking_lot::Mutex;

use super::{examine::told, provide::Provider};
use crate::agent::{
    kill_points::KillPoint,
    repairs::Obstacles,
    verbs::{
        Doors, Renewal, release, release_untaken, release_without_del, repair_delegated,
        take_back_unanswered,
    },
    vfs::{Phase, Record, VfLocation, Vfs},
};
use crate::mover::PodState;

/// Longest comparison of all records with the kernel: it waits for attaches that are under way,
/// and for the DPU.
const LONGEST_PASS: Duration = Duration::from_secs(120);

/// Keeps records and kernel in agreement.
#[derive(Debug)]
pub(in crate::agent) struct Keeper {
    doors: Doors,
    provider: Arc<Provider>,
    boot_id: String,
    /// When the last pass came to its end.
    last_pass: Mutex<Instant>,
    /// Held while all is compared with the kernel.
    passing: tokio::sync::Mutex<()>,
    /// Held while the keeper looks at a VF: it may have a thousand to look at, and others want a turn.
    keeping: tokio::sync::Mutex<()>,
}

impl Keeper {
    pub(super) fn new(doors: Doors, provider: Arc<Provider>, boot_id: String) -> Self {
        Self {
            doors,
            provider,
            boot_id,
            last_pass: Mutex::new(Instant::now()),
            passing: tokio::sync::Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
        }
    }

    /// What the keeper works through.
    #[cfg(test)]
    pub(super) fn doors(&self) -> &Doors {
        &self.doors
    }

    fn vfs(&self) -> &Arc<Vfs> {
        &self.doors.vfs
    }

    /// Compares every record with the kernel, and waits for all.
    pub(in crate::agent) async fn reconcile_all(self: &Arc<Self>) {
        let begin = |record: Arc<Record>| {
            let keeper = Arc::clone(self);
            let compare = async move { keeper.reconcile_unless_renewed(&record).await };
            self.doors.tasks.spawn(compare)
        };
        let begun: Vec<_> = self.vfs().records().all().into_iter().map(begin).collect();
        for comparison in begun {
            if let Err(error) = comparison.await {
                tracing::error!(%error, "comparing a record with the kernel failed");
            }
        }
    }

    /// Compares one record with the kernel and makes the kernel agree. Waits for a VF's reset.
    pub(in crate::agent) async fn reconcile(self: &Arc<Self>, id: &str) {
        let Some(record) = self.vfs().records().by_id(id) else { return };
        let _key = self.vfs().keys().lock(&record.key()).await;
        self.reconcile_locked(id, Renewal::Now).await;
    }

    /// Reconciles a record without waiting for a VF's reset: there may be many, one at a time.
    async fn reconcile_unless_renewed(self: &Arc<Self>, record: &Record) {
        let key = record.key();
        // The task that resets the VF marks it before it waits for its turn with the key locked.
        let _key = tokio::select! {
            biased;
            () = self.vfs().renewer().begun(record.device()) => return,
            key = self.vfs().keys().lock(&key) => key,
        };
        self.reconcile_locked(record.id(), Renewal::Later).await;
    }

    async fn reconcile_locked(self: &Arc<Self>, id: &str, renewal: Renewal) {
        let Some(record) = self.vfs().records().by_id(id) else { return };
        // Its ADD holds the key for as long as it is at work.
        if record.phase == Phase::Attaching {
            return take_back_unanswered(&self.doors, &record.key()).await;
        }
        if record.phase == Phase::Releasing || record.boot_id != self.boot_id {
            return release(&self.doors, record, Duration::ZERO, renewal).await;
        }
        if let Err(failure) = self.reconcile_live(Arc::clone(&record), renewal).await {
            tracing::warn!(attachment = id, %failure, "an attachment is not in order");
            self.note(told::pod_differs(&record, &failure.message));
        }
    }

    /// Reconciles a record in the background.
    pub(super) fn reconcile_soon(self: &Arc<Self>, record: Arc<Record>) {
        let keeper = Arc::clone(self);
        self.doors.tasks.spawn(async move { keeper.reconcile(record.id()).await });
    }

    async fn reconcile_live(
        self: &Arc<Self>,
        record: Arc<Record>,
        renewal: Renewal,
    ) -> Result<(), Failure> {
        let located = {
            let _one_at_a_time = self.keeping.lock().await;
            self.vfs().locate(&record).await
        };
        let Some(located) = looked(&record, located) else { return Ok(()) };
        match located {
            (VfLocation::Host | VfLocation::Unfinished, true) => self.put_back(&record).await,
            (VfLocation::Host, false) => {
                tracing::info!(
                    attachment = record.id(),
                    "the attachment's network namespace has ended"
                );
                release_without_del(&self.doors, record, renewal).await;
                Ok(())
            }
            (VfLocation::Pod, true) => self.complete(&record).await,
            (VfLocation::Nowhere, true) => {
                self.note(told::vf_missing(&record, &ExaminedVf::default()));
                Ok(())
            }
            (VfLocation::Pod | VfLocation::Nowhere | VfLocation::Unfinished, false) => Ok(()),
        }
    }

    /// Restores what a pod's interface has lost, for example by being switched off and on. No event reports that: a
    /// listener in the pod's namespace would keep the namespace alive.
    async fn complete(self: &Arc<Self>, record: &Arc<Record>) -> Result<(), Failure> {
        let state = {
            let _one_at_a_time = self.keeping.lock().await;
            self.vfs().state_in_pod(record).await
        };
        let Some(state) = looked(record, state) else { return Ok(()) };
        match state {
            PodState::Complete => {}
            PodState::Lost(lost) => {
                let port = self.doors.dpu.calls().await_port(&record.attachment);
                self.vfs().intake().move_in(record, port).await?;
                self.vfs().repairs().note(record.id(), lost);
            }
            PodState::Differs(what) => {
                self.note(told::pod_differs(record, &what));
                return Ok(());
            }
        }
        self.doors.dpu.pod_findings().clear(record.id());
        Ok(())
    }

    /// Has the DPU know what is wrong with a pod, from the end of the pass on.
    fn note(&self, found: Finding) {
        self.doors.dpu.pod_findings().note(found);
    }

    /// A VF that fell out of a living pod, as when its card was reset, or that a crash kept from
    /// getting there.
    async fn put_back(self: &Arc<Self>, record: &Arc<Record>) -> Result<(), Failure> {
        let port = self.doors.dpu.calls().await_port(&record.attachment);
        self.vfs().put_back(record, port).await?;
        self.doors.dpu.pod_findings().clear(record.id());
        self.tell_put_back(record);
        Ok(())
    }

    /// Tells that a VF is in its pod again, unless the pod's namespace ended during the move: then the VF
    /// comes back to the host.
    fn tell_put_back(&self, record: &Record) {
        if record.netns.living().is_some() {
            self.vfs().repairs().note(record.id(), "its VF is in its pod again".into());
            self.doors.dpu.reports().report_attached(record);
        }
    }

    /// Runs a pass after each request, forever. All requests during a pass share the next one.
    pub(in crate::agent) async fn keep_agreement(self: &Arc<Self>) -> Infallible {
        loop {
            self.pass_wanted().await;
            self.pass().await;
            self.vfs().signals().inventory_changed();
            self.vfs().signals().look_at_host_ports();
            KillPoint::PassEnded.pass();
        }
    }

    /// Waits until a pass is needed: it was requested, or a VF became free that may have blocked a change of the number
    /// of VFs.
    async fn pass_wanted(&self) {
        let signals = self.vfs().signals();
        loop {
            tokio::select! {
                () = signals.pass_wanted() => return,
                () = signals.free_vf() => if self.provider.is_any_in_the_way() { return },
            }
        }
    }

    /// Compares all records with the kernel and makes the kernel agree, one pass at a time. Returns which VFs could not
    /// be restored, and why. Resets are only started.
    pub(in crate::agent) async fn pass(self: &Arc<Self>) -> Obstacles {
        let _one_at_a_time = self.passing.lock().await;
        self.vfs().renewer().begin_to_finish();
        self.vfs().cleanliness().forget_older_than(self.doors.timeouts.reconcile());
        // Records first: a VF that comes home by that is free afterwards, and no longer in the way of another
        // number of VFs. What only the DPU waits for comes last.
        self.reconcile_all().await;
        release_untaken(&self.doors);
        repair_delegated(&self.doors).await;
        let obstacles = self.vfs().free_vfs().restore().await;
        self.provider.provide().await;
        self.doors.dpu.calls().deliver_detaches().await;
        self.doors.dpu.report_pod_findings();
        *self.last_pass.lock() = Instant::now();
        obstacles
    }

    /// Whether comparisons with the kernel still come to an end. One that doesn't means that the
    /// kernel, the disk or the agent hangs.
    pub(in crate::agent) fn is_healthy(&self, now: Instant) -> bool {
        now.saturating_duration_since(*self.last_pass.lock())
            < self.doors.timeouts.reconcile() * 3 + LONGEST_PASS
    }
}

/// What a look at an attachment found. `None`: the look failed, which says nothing of the pod.
fn looked<T>(record: &Record, look: Result<T, Failure>) -> Option<T> {
    let warn = |failure: &Failure| {
        tracing::warn!(attachment = record.id(), %failure, "cannot inspect an attachment");
    };
    look.inspect_err(warn).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use netlink::{Link, Netns, NetnsId, Rtnl};
    use offload_proto::v1::WantedVfs;
    use tempfile::TempDir;
    use test_clock::within;
    use tokio::{runtime::Builder, task::yield_now};
    use vf_alloc::Device;

    use parking_lot::Condvar;

    use super::*;
    use crate::{
        agent::{
            verbs::tests::{doors, doors_of},
            vfs::{
                BLOCKING_THREADS, MOVES, PodNetns, record,
                tests::{hold_renewals, keep, leave_unfinished, turn_at_moving, unfinished},
            },
        },
        vf_source::{PfFacts, ResetError, VfIdentity, VfSource},
    };

    const VF: &str = "0000:03:00.2";

    /// The keeper of a host without VFs, and the folder of its records.
    pub(in crate::agent) fn keeper() -> (Arc<Keeper>, TempDir) {
        of(doors())
    }

    fn keeper_of(source: Arc<dyn VfSource>) -> (Arc<Keeper>, TempDir) {
        of(doors_of(source))
    }

    fn of((doors, folder): (Doors, TempDir)) -> (Arc<Keeper>, TempDir) {
        let provider = Arc::new(Provider::new(Arc::clone(&doors.vfs)));
        (Arc::new(Keeper::new(doors, provider, "boot".into())), folder)
    }

    /// Has no pass begin until the answer is dropped.
    pub(in crate::agent) async fn hold_passes(keeper: &Keeper) -> tokio::sync::MutexGuard<'_, ()> {
        keeper.passing.lock().await
    }

    /// When the last pass came to its end.
    pub(in crate::agent) fn last_pass(keeper: &Keeper) -> Instant {
        *keeper.last_pass.lock()
    }

    /// A card whose reads block until they are released.
    #[derive(Debug, Default)]
    struct SlowCard {
        looks: AtomicUsize,
        is_over: Mutex<bool>,
        told: Condvar,
    }

    impl SlowCard {
        fn end(&self) {
            *self.is_over.lock() = true;
            self.told.notify_all();
        }
    }

    impl VfSource for SlowCard {
        fn vf_of(&self, _link: &Link) -> Option<VfIdentity> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            self.told.wait_while(&mut self.is_over.lock(), |is_over| !*is_over);
            None
        }

        fn reset_vf(&self, _: &Device, _: &Link, _: &mut Rtnl) -> Result<(), ResetError> {
            Ok(())
        }

        fn pf_of(&self, _vf: &VfIdentity) -> PfFacts {
            PfFacts::default()
        }
    }

    #[test]
    fn moves_do_not_wait_for_the_keeper() {
        let card = Arc::new(SlowCard::default());
        let threads = Builder::new_current_thread()
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .unwrap();
        threads.block_on(async {
            let (keeper, _folder) = keeper_of(Arc::clone(&card) as Arc<dyn VfSource>);
            for number in 0..1000 {
                keep(keeper.vfs().records(), record(&number.to_string(), &number.to_string()));
            }
            let all = tokio::spawn({
                let keeper = Arc::clone(&keeper);
                async move { keeper.reconcile_all().await }
            });
            while card.looks.load(Ordering::Relaxed) == 0 {
                yield_now().await;
            }
            let limit = Duration::from_secs(20);
            let moves = (0..MOVES).map(|_| within(limit, turn_at_moving(keeper.vfs())));
            for moved in join_all(moves).await {
                moved.expect("a move waits behind the looks").unwrap();
            }
            let other_look = within(limit, keeper.vfs().host().look(|| ())).await;
            other_look.expect("a look waits behind those of the keeper").unwrap();
            card.end();
            all.await.unwrap();
        });
    }

    #[tokio::test]
    async fn first_pass_needs_no_session() {
        let (keeper, _folder) = keeper();
        let unreported = Record { phase: Phase::Releasing, is_returned: true, ..record("a", "c") };
        keep(keeper.vfs().records(), unreported);
        let pass = within(Duration::from_secs(3), keeper.reconcile_all());
        pass.await.expect("no call goes to the DPU before the first pass is over");
        assert!(keeper.vfs().records().by_id("a").is_some(), "the DPU gets the report later");
    }

    #[tokio::test]
    async fn hanging_passes_make_agent_unhealthy() {
        let (keeper, _folder) = keeper();
        assert!(keeper.is_healthy(Instant::now()));
        assert!(!keeper.is_healthy(Instant::now() + Duration::from_secs(3600)));
    }

    #[tokio::test]
    async fn ended_pod_is_not_reported_attached() {
        let (keeper, _folder) = keeper();
        let own = Netns::current().unwrap().id();
        let record = |inode| Record {
            netns: PodNetns { path: "/proc/self/ns/net".into(), id: NetnsId { inode, ..own } },
            ..record("a", "c")
        };
        keeper.tell_put_back(&record(own.inode + 1));
        assert_eq!(
            (keeper.vfs().repairs().count(), keeper.doors.dpu.reports().unreported()),
            (0, 0)
        );
        keeper.tell_put_back(&record(own.inode));
        assert_eq!(
            (keeper.vfs().repairs().count(), keeper.doors.dpu.reports().unreported()),
            (1, 1)
        );
    }

    #[tokio::test]
    async fn passes_do_not_wait_for_resets() {
        let (keeper, _folder) = keeper();
        let vfs = keeper.vfs();
        let turn = hold_renewals(vfs).await;
        leave_unfinished(vfs, &VF.into());
        let record = record("a", "c");
        keep(vfs.records(), record.clone());
        let key = vfs.keys().lock(&record.key()).await;
        let under_way = vfs.renewer().begin(record.device()).unwrap();
        within(Duration::from_secs(20), keeper.pass()).await.expect("the pass waits");
        assert!(vfs.renewer().begin(&VF.into()).is_none(), "it is to be finished");
        drop((key, under_way, turn));
        within(Duration::from_secs(20), vfs.renewer().await_all()).await.unwrap();
        assert!(unfinished(vfs).is_empty());
    }

    #[tokio::test]
    async fn free_vf_requests_pass_only_when_needed() {
        let (keeper, _folder) = keeper();
        let signals = keeper.vfs().signals();
        signals.vf_became_free();
        let limit = Duration::from_millis(100);
        assert!(within(limit, keeper.pass_wanted()).await.is_none());
        keeper.provider.want(&WantedVfs { controller: 0, pf: 1, count: 16 });
        signals.pass_wanted().await;
        keeper.provider.provide().await;
        signals.vf_became_free();
        within(Duration::from_secs(20), keeper.pass_wanted()).await.expect("no retry");
    }
}
