//! Keeps records and kernel in agreement, without being told what happened: at start, whenever a VF
//! shows up in the host's namespace, when the DPU comes back, and on a timer.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Error, Link, LinkEvent, LinkMonitor, Rtnl};
use offload_proto::Failure;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::vfs_abroad::Obstacles;
use crate::agent::{
    Agent, locked,
    milestones::Milestone,
    verbs::detach::Renewal,
    vfs::place::{Place, place_in},
    vfs::records::{Phase, Record},
};
use crate::vf_source;

/// Longest comparison of all records with the kernel: it waits for attaches that are under way,
/// and for the DPU.
const LONGEST_PASS: Duration = Duration::from_secs(120);
/// Links change in swarms, and with every attach: the inventory is listed when none did for so long,
/// for that is in the way of the next attach.
const CALM: Duration = Duration::from_millis(100);
/// How long changes are gathered at most.
const GATHER: Duration = Duration::from_secs(1);

impl Agent {
    /// Compares every record with the kernel, and waits for all.
    pub(in crate::agent) async fn reconcile_all(self: &Arc<Self>) {
        let begin = |record: Arc<Record>| {
            let agent = Arc::clone(self);
            self.tasks.spawn(async move { agent.reconcile_unless_renewed(&record).await })
        };
        let begun: Vec<_> = self.records.all().into_iter().map(begin).collect();
        for comparison in begun {
            if let Err(error) = comparison.await {
                tracing::error!(%error, "comparing a record with the kernel failed");
            }
        }
    }

    /// Compares one record with the kernel, and makes the kernel agree. Waits for a VF that is made
    /// anew.
    pub(in crate::agent) async fn reconcile(self: &Arc<Self>, id: &str) {
        let Some(record) = self.records.by_id(id) else { return };
        let _key = self.keys.lock(&record.key()).await;
        self.reconcile_locked(id, Renewal::Now).await;
    }

    /// Likewise, without waiting for a VF that is made anew: there may be many, one at a time.
    async fn reconcile_unless_renewed(self: &Arc<Self>, record: &Record) {
        let key = record.key();
        let _key = tokio::select! {
            biased;
            () = self.renewals.begun(record.pci_address()) => return,
            key = self.keys.lock(&key) => key,
        };
        self.reconcile_locked(record.id(), Renewal::Later).await;
    }

    async fn reconcile_locked(self: &Arc<Self>, id: &str, renewal: Renewal) {
        let Some(record) = self.records.by_id(id) else { return };
        // Its ADD holds the key for as long as it is at work.
        if record.phase == Phase::Attaching {
            return self.take_back_unanswered(&record.key()).await;
        }
        if record.phase == Phase::Releasing || record.boot_id != self.boot_id {
            return self.release(record, Duration::ZERO, renewal).await;
        }
        if let Err(failure) = self.reconcile_live(record, renewal).await {
            tracing::warn!(attachment = id, "not in order: {failure}");
        }
    }

    /// Likewise, without waiting for it.
    pub(in crate::agent) fn reconcile_soon(self: &Arc<Self>, record: Arc<Record>) {
        let agent = Arc::clone(self);
        self.tasks.spawn(async move { agent.reconcile(record.id()).await });
    }

    async fn reconcile_live(
        self: &Arc<Self>,
        record: Arc<Record>,
        renewal: Renewal,
    ) -> Result<(), Failure> {
        let looked = {
            let _one_at_a_time = self.keeping.lock().await;
            let agent = Arc::clone(self);
            let record = Arc::clone(&record);
            self.look(move || agent.look_for(&record)).await?
        };
        let (place, has_pod) = looked
            .map_err(|error| Failure::new(offload_proto::Reason::MoveFailed, error.to_string()))?;
        match (place, has_pod) {
            (Place::Pod, _) => {
                self.pauses.succeeded(record.id());
                self.broken().remove(record.id());
                Ok(())
            }
            (Place::Host | Place::Unfinished, true) => self.put_back(&record).await,
            (Place::Host, false) => {
                tracing::info!(attachment = record.id(), "its pod's namespace has ended");
                self.release(record, Duration::ZERO, renewal).await;
                Ok(())
            }
            (Place::Nowhere, true) => {
                self.broken().insert(record.id().to_owned());
                Ok(())
            }
            (Place::Unfinished | Place::Nowhere, false) => Ok(()),
        }
    }

    /// Where the VF is, and whether its pod's namespace is still there.
    fn look_for(&self, record: &Record) -> Result<(Place, bool), Error> {
        let mut host = Rtnl::open_in(&self.host)?;
        let name = Some(record.original.name.as_str());
        let pod = record.netns.living();
        if record.original.is_handed_over {
            return Ok((if pod.is_some() { Place::Pod } else { Place::Host }, pod.is_some()));
        }
        if vf_source::find(&*self.source, &mut host, record.pci_address(), name)?.is_some() {
            return Ok((Place::Host, pod.is_some()));
        }
        match pod {
            Some(pod) => Ok((place_in(&*self.source, &pod, record)?, true)),
            None => Ok((Place::Nowhere, false)),
        }
    }

    /// A VF that fell out of a living pod, as when its card was reset, or that a crash kept from
    /// getting there.
    async fn put_back(self: &Arc<Self>, record: &Arc<Record>) -> Result<(), Failure> {
        self.broken().insert(record.id().to_owned());
        if let Err(failure) = self.move_in(record).await {
            self.pauses.failed(record.id());
            return Err(failure);
        }
        Milestone::PutBack.pass();
        self.pauses.succeeded(record.id());
        self.broken().remove(record.id());
        self.tell_put_back(record);
        Ok(())
    }

    /// Tells that a VF is in its pod again, unless the pod's namespace ended during the move: then the VF
    /// comes back to the host.
    fn tell_put_back(&self, record: &Record) {
        if record.netns.living().is_some() {
            self.repairs.note(record.id(), "its VF is in its pod again".into());
            self.tell_attached(record);
        }
    }

    /// Watches the VFs in the host's namespace, for ever.
    pub(in crate::agent) async fn watch_vfs(self: &Arc<Self>, mut monitor: LinkMonitor) -> Error {
        let mut ticks = interval(self.config.timeouts.reconcile());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = monitor.next() => match event {
                    Ok(LinkEvent::Changed(link)) => self.vf_seen(&link),
                    Ok(LinkEvent::Gone { alias, index, name, parent }) => {
                        let mut link = Link::default();
                        (link.index, link.name, link.alias) = (index, name, alias);
                        (link.parent_bus, link.parent_device) = parent.unzip();
                        self.vf_gone(&link);
                    }
                    Ok(LinkEvent::Missed) => self.poke.notify_one(),
                    Err(error) => return error,
                },
                _ = ticks.tick() => self.poke.notify_one(),
            }
        }
    }

    /// Compares all with the kernel whenever somebody asks for it, for ever. Whoever asks during a
    /// pass is served by one more, however many they are.
    pub(in crate::agent) async fn keep_agreement(self: &Arc<Self>) -> Infallible {
        loop {
            self.poke.notified().await;
            self.pass().await;
            self.inventory_changed();
            Milestone::PassEnded.pass();
        }
    }

    /// Compares all with the kernel, and makes the kernel agree: one pass at a time, whoever wants it.
    /// Tells which VFs could not be restored, and why. Those that are to be made anew are only begun.
    pub(in crate::agent) async fn pass(self: &Arc<Self>) -> Obstacles {
        let _one_at_a_time = self.passing.lock().await;
        self.begin_to_finish_renewals();
        self.proofs.forget_older_than(self.config.timeouts.reconcile());
        self.reconcile_all().await;
        let obstacles = self.restore_free_vfs().await;
        self.provide_vfs().await;
        self.deliver_detaches().await;
        *locked(&self.last_pass) = Instant::now();
        obstacles
    }

    /// Whether comparisons with the kernel still come to an end. One that doesn't means that the
    /// kernel, the disk or the agent hangs.
    pub(in crate::agent) fn is_healthy(&self, now: Instant) -> bool {
        now.saturating_duration_since(*locked(&self.last_pass))
            < self.config.timeouts.reconcile() * 3 + LONGEST_PASS
    }

    /// A VF showed up in the host's namespace, or changed there.
    fn vf_seen(self: &Arc<Self>, link: &Link) {
        let Some(vf) = self.source.vf_of(link) else { return };
        self.vf_events.send_modify(|count| *count = count.wrapping_add(1));
        let Some(record) = self.records.by_pci_address(&vf.pci_address) else {
            if !self.looks_clean(&vf, link) {
                self.poke.notify_one();
            }
            return self.inventory_changed();
        };
        if self.looked_for().insert(record.id().to_owned()) {
            // Not among the work that is finished before the agent ends: mostly it waits.
            tokio::spawn(Arc::clone(self).look_after_pause(record));
        }
    }

    /// Compares a record with the kernel after what is under way with it, and after its pause.
    async fn look_after_pause(self: Arc<Self>, record: Arc<Record>) {
        drop(self.keys.lock(&record.key()).await);
        sleep(self.pauses.of(record.id())).await;
        let key = self.keys.lock(&record.key()).await;
        self.looked_for().remove(record.id());
        drop(key);
        self.reconcile_soon(record);
    }

    fn vf_gone(&self, link: &Link) {
        let Some(vf) = self.source.vf_of(link) else { return };
        self.proofs.forget_link(&vf.pci_address, link.index);
        if self.records.by_pci_address(&vf.pci_address).is_none() {
            self.inventory_changed();
        }
    }

    /// Sends the inventory soon, unless it is as it was.
    pub(in crate::agent) fn inventory_changed(&self) {
        self.inventory_poke.notify_one();
    }

    /// Sends the inventory soon, even as it was: the DPU waits for it to learn of a VF.
    pub(in crate::agent) fn inventory_wanted(&self) {
        self.sent_inventory().is_wanted_again = true;
        self.inventory_changed();
    }

    /// Sends the inventory whenever it changed, for ever.
    pub(in crate::agent) async fn keep_inventory(self: &Arc<Self>) -> Infallible {
        loop {
            self.inventory_poke.notified().await;
            let calm =
                async { while timeout(CALM, self.inventory_poke.notified()).await.is_ok() {} };
            let _ = timeout(GATHER, calm).await;
            if let Err(failure) = self.send_inventory().await {
                tracing::warn!("the VFs can't be listed: {failure}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::future::join_all;
    use netlink::{Netns, NetnsId};
    use offload_proto::v1::Examine;
    use tokio::{runtime::Builder, task::yield_now};

    use super::*;
    use crate::{
        agent::{
            BLOCKING_THREADS, MOVES,
            tests::{agent, agent_with},
            vfs::records::{PodNetns, tests::record},
        },
        vf_source::{PfFacts, RenewalError, VfIdentity, VfSource},
    };

    /// A card at which no look comes to its end until it is told.
    #[derive(Debug, Default)]
    struct SlowCard {
        looks: AtomicUsize,
        is_over: Mutex<bool>,
        told: Condvar,
    }

    impl SlowCard {
        fn end(&self) {
            *self.is_over.lock().unwrap() = true;
            self.told.notify_all();
        }
    }

    impl VfSource for SlowCard {
        fn vf_of(&self, _link: &Link) -> Option<VfIdentity> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let is_over = self.is_over.lock().unwrap();
            drop(self.told.wait_while(is_over, |is_over| !*is_over).unwrap());
            None
        }

        fn make_anew(&self, _: &str, _: &Link, _: &mut Rtnl) -> Result<(), RenewalError> {
            Ok(())
        }

        fn pf_of(&self, _vf: &VfIdentity) -> PfFacts {
            PfFacts::default()
        }
    }

    #[test]
    fn a_move_never_waits_behind_the_looks_of_the_keeper() {
        let card = Arc::new(SlowCard::default());
        let threads = Builder::new_current_thread()
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .unwrap();
        threads.block_on(async {
            let (agent, _folder) = agent_with(Arc::clone(&card) as Arc<dyn VfSource>);
            for number in 0..1000 {
                agent.records.keep(&Arc::new(record(&number.to_string(), &number.to_string())));
            }
            let all = tokio::spawn({
                let agent = Arc::clone(&agent);
                async move { agent.reconcile_all().await }
            });
            while card.looks.load(Ordering::Relaxed) == 0 {
                yield_now().await;
            }
            let limit = Duration::from_secs(20);
            let moves = (0..MOVES).map(|_| timeout(limit, agent.when_its_turn(|| ())));
            for moved in join_all(moves).await {
                moved.expect("a move waits behind the looks").unwrap();
            }
            let other_look = timeout(limit, agent.look(|| ())).await;
            other_look.expect("a look waits behind those of the keeper").unwrap();
            card.end();
            all.await.unwrap();
        });
    }

    #[tokio::test]
    async fn the_first_pass_waits_for_no_session() {
        let (agent, _folder) = agent();
        let untold = Record { phase: Phase::Releasing, is_returned: true, ..record("a", "c") };
        agent.records.keep(&Arc::new(untold));
        let pass = timeout(Duration::from_secs(3), agent.reconcile_all());
        pass.await.expect("nobody calls the DPU before the first pass is over");
        assert!(agent.records.by_id("a").is_some(), "the DPU is told later");
    }

    #[tokio::test]
    async fn an_agent_whose_passes_hang_is_not_healthy() {
        let (agent, _folder) = agent();
        assert!(agent.is_healthy(Instant::now()));
        assert!(!agent.is_healthy(Instant::now() + Duration::from_secs(3600)));
    }

    #[tokio::test]
    async fn a_vf_is_not_told_to_be_in_a_pod_that_has_ended() {
        let (agent, _folder) = agent();
        let own = Netns::current().unwrap().id();
        let record = |inode| Record {
            netns: PodNetns { path: "/proc/self/ns/net".into(), id: NetnsId { inode, ..own } },
            ..record("a", "c")
        };
        agent.tell_put_back(&record(own.inode + 1));
        assert_eq!((agent.repairs.count(), agent.untold().len()), (0, 0));
        agent.tell_put_back(&record(own.inode));
        assert_eq!((agent.repairs.count(), agent.untold().len()), (1, 1));
    }

    #[tokio::test]
    async fn who_mends_for_an_operator_waits_for_the_pass_under_way() {
        let (agent, _folder) = agent();
        let pass = agent.passing.lock().await;
        let request = Examine { mend: true, ..Examine::default() };
        let mut mending = std::pin::pin!(agent.examine(request));
        assert!(timeout(Duration::from_millis(200), &mut mending).await.is_err());
        drop(pass);
        assert_eq!(mending.await.problem, "");
    }
}
