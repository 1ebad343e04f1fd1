//! Messages that the host sends to its DPU unasked: inventory, attached pods, declined offers.

use std::{collections::HashSet, convert::Infallible, mem, sync::Arc, time::Duration};

use offload_proto::{
    Failure, capability,
    v1::{self, Hello, Inventory, PhysicalFunction, VfCondition, host_message},
};
use parking_lot::Mutex;
use tokio::time::timeout;
use vf_alloc::VfOffer;

use super::{
    inventory::{Held, functions_of, live, log_uses},
    session::{Session, protocol_versions},
    vf_offers::offer_message,
};
use crate::{
    agent::{
        kill_points::KillPoint,
        pending::{Entered, Pending},
        vfs::{HostLinks, Phase, Record, Vfs},
    },
    protocol::Key,
};

/// Links change in bursts, and with every attach. The inventory is taken after this time without a change, because
/// taking it delays the next attach.
const CALM: Duration = Duration::from_millis(100);
/// The longest time for which changes are gathered.
const GATHER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::agent) struct Reports {
    vfs: Arc<Vfs>,
    boot_id: String,
    session: Arc<Session>,
    /// The keys of unanswered Attach calls.
    pending: Pending,
    /// The ids of attachments that entered their pods while there was no session.
    unreported: Mutex<HashSet<String>>,
    sent: Mutex<SentInventory>,
}

/// The last inventory that the DPU got.
#[derive(Debug, Default)]
struct SentInventory {
    pfs: Vec<PhysicalFunction>,
    /// The inventory must be sent again even if unchanged.
    is_wanted_again: bool,
    /// A requested inventory is being taken.
    is_on_its_way: bool,
}

impl SentInventory {
    /// Whether an inventory was requested. Later requests get a later inventory.
    fn begin(&mut self) -> bool {
        self.is_on_its_way = mem::take(&mut self.is_wanted_again);
        self.is_on_its_way
    }

    /// Whether VFs are missing now that were not missing before.
    fn lacks_more_in(&self, pfs: &[PhysicalFunction]) -> bool {
        !missing(pfs).is_subset(&missing(&self.pfs))
    }
}

fn missing(pfs: &[PhysicalFunction]) -> HashSet<&str> {
    let vfs = pfs.iter().flat_map(|pf| &pf.vfs);
    let missing = vfs.filter(|vf| vf.condition() == VfCondition::Missing);
    missing.map(|vf| vf.device.as_str()).collect()
}

impl Reports {
    pub(super) fn new(vfs: Arc<Vfs>, boot_id: String, session: Arc<Session>) -> Self {
        Self {
            vfs,
            boot_id,
            session,
            pending: Pending::default(),
            unreported: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// Marks an Attach of the key as unanswered until the guard is dropped. Every hello lists the key, so that the DPU
    /// does not release the attachment as unknown to the host.
    pub(in crate::agent) fn enter_pending(&self, key: &Key) -> Entered {
        self.pending.enter(key)
    }

    /// The keys of unanswered Attach calls.
    pub(in crate::agent) fn pending_keys(&self) -> Vec<Key> {
        self.pending.keys()
    }

    pub(in crate::agent) fn reported_pfs(&self) -> Vec<PhysicalFunction> {
        self.sent.lock().pfs.clone()
    }

    /// Sends the inventory soon, even if unchanged: the DPU waits for the state of a VF.
    pub(in crate::agent) fn inventory_wanted(&self) {
        self.sent.lock().is_wanted_again = true;
        self.vfs.signals().inventory_changed();
    }

    /// Whether an inventory is still to be sent: until then the DPU may take a returned VF for one in use.
    pub(in crate::agent) fn is_inventory_wanted(&self) -> bool {
        let sent = self.sent.lock();
        sent.is_wanted_again || sent.is_on_its_way
    }

    /// Reports that the pod has its VF.
    pub(in crate::agent) fn report_attached(&self, record: &Record) {
        let attached = v1::Attached { attachment_id: record.id().to_owned() };
        if !self.session.send(host_message::Message::Attached(attached)) {
            self.unreported.lock().insert(record.id().to_owned());
        }
    }

    /// Reports that taken VF offers are not used. Without a session there is nothing to decline: its end ends its
    /// offers. A session that began in between has listed the VFs as in use; the inventory corrects that.
    pub(in crate::agent) fn report_declined(&self, offers: &[VfOffer]) {
        if !offers.is_empty() {
            let offers = offers.iter().map(offer_message).collect();
            self.session.send(host_message::Message::DeclinedOffers(v1::DeclinedOffers { offers }));
            self.inventory_wanted();
        }
    }

    /// Sends reports of attachments that waited for a session.
    pub(super) fn report_waiting(&self) {
        let unreported = mem::take(&mut *self.unreported.lock());
        for record in unreported.iter().filter_map(|id| self.vfs.records().by_id(id)) {
            self.report_attached(&record);
        }
    }

    /// Builds a session's first message. Calls in progress are listed before records, so that an attach in between is
    /// in at least one list.
    ///
    /// # Errors
    /// The host's links cannot be listed.
    pub(in crate::agent) async fn hello(&self) -> Result<Hello, Failure> {
        // The hello lists attachments in their pods. Clear before listing: an attachment that enters its pod later is
        // reported after the session has begun.
        self.unreported.lock().clear();
        let mut pending: HashSet<Key> = self.pending.keys().into_iter().collect();
        let (as_of_ns, present) = self.proven_links().await?;
        let vfs = Arc::clone(&self.vfs);
        let list = move || {
            let held = Held::at_hello(&vfs);
            let records = &held.records;
            let at_home: Vec<_> = vfs.host().cards().vfs(&present.links).collect();
            let pfs = functions_of(&vfs, &at_home, &present, &held);
            let inventory = Inventory { pfs, as_of_ns };
            let live = live(vfs.host(), &at_home, records);
            // A record in phase *attaching* may have no call in progress: an ADD that was cut off waits for its repeat.
            let attaching = records.iter().filter(|record| record.phase == Phase::Attaching);
            let attaching: Vec<_> = attaching.map(|record| record.key()).collect();
            (inventory, live, attaching)
        };
        let (inventory, live, attaching) = self.vfs.host().look(list).await?;
        pending.extend(attaching);
        log_uses(&inventory.pfs);
        self.note_reported(&mut self.sent.lock(), inventory.pfs.clone());
        Ok(Hello {
            protocol: Some(protocol_versions()),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            boot_id: self.boot_id.clone(),
            capabilities: capability::ALL.iter().map(ToString::to_string).collect(),
            inventory: Some(inventory),
            live,
            pending: pending.into_iter().map(Into::into).collect(),
            renewed_session_id: String::new(),
        })
    }

    /// Takes the host's inventory.
    ///
    /// # Errors
    /// The host's links cannot be listed.
    pub(in crate::agent) async fn list(&self) -> Result<Inventory, Failure> {
        let (as_of_ns, present) = self.proven_links().await?;
        let vfs = Arc::clone(&self.vfs);
        let list = move || {
            let at_home: Vec<_> = vfs.host().cards().vfs(&present.links).collect();
            let held = Held::in_session(&vfs);
            Inventory { pfs: functions_of(&vfs, &at_home, &present, &held), as_of_ns }
        };
        self.vfs.host().look(list).await
    }

    /// Sends the inventory unless the DPU has it.
    ///
    /// # Errors
    /// The host's links cannot be listed.
    async fn send_inventory(&self) -> Result<(), Failure> {
        // Taken before listing and restored if nothing was sent: a request during the listing needs a later inventory.
        let is_wanted_again = self.sent.lock().begin();
        let has_it = self.report_inventory(is_wanted_again).await;
        let mut sent = self.sent.lock();
        sent.is_wanted_again |= is_wanted_again && !matches!(has_it, Ok(true));
        sent.is_on_its_way = false;
        has_it.map(drop)
    }

    /// Takes the inventory and sends it if it changed. Returns whether the DPU has it.
    async fn report_inventory(&self, is_wanted_again: bool) -> Result<bool, Failure> {
        let inventory = self.list().await?;
        let mut sent = self.sent.lock();
        if sent.pfs == inventory.pfs && !is_wanted_again {
            return Ok(true);
        }
        if !self.session.send(host_message::Message::Inventory(inventory.clone())) {
            return Ok(false);
        }
        KillPoint::InventorySent.pass();
        log_uses(&inventory.pfs);
        self.note_reported(&mut sent, inventory.pfs);
        Ok(true)
    }

    /// Requests a pass if more VFs are missing, which brings them back. The kernel does not report every change of a
    /// link, so that this listing may be the first to notice.
    fn note_reported(&self, sent: &mut SentInventory, pfs: Vec<PhysicalFunction>) {
        if sent.lacks_more_in(&pfs) {
            self.vfs.signals().ask_for_pass();
        }
        sent.pfs = pfs;
    }

    async fn proven_links(&self) -> Result<(u64, HostLinks), Failure> {
        let proven = self.vfs.cleanliness().proven_links().await?;
        if proven.is_any_refuted {
            // The next pass starts the VF's reset.
            self.vfs.signals().ask_for_pass();
        }
        Ok((proven.as_of_ns, proven.present))
    }

    /// Sends the inventory after every change, forever.
    pub(in crate::agent) async fn keep_inventory(&self) -> Infallible {
        let signals = self.vfs.signals();
        loop {
            signals.changed_inventory().await;
            let calm = async { while timeout(CALM, signals.changed_inventory()).await.is_ok() {} };
            // Bounded, because on a busy host links never stop changing.
            let _ = timeout(GATHER, calm).await;
            if let Err(failure) = self.send_inventory().await {
                tracing::warn!(%failure, "cannot list the host's VFs");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{
        dpu::tests::dpu,
        vfs::{record, tests::keep},
    };

    impl Reports {
        /// The number of attachments that are not reported yet.
        pub(in crate::agent) fn unreported(&self) -> usize {
            self.unreported.lock().len()
        }

        /// Pretends that the DPU got these PFs.
        pub(in crate::agent) fn know(&self, pfs: Vec<PhysicalFunction>) {
            self.sent.lock().pfs = pfs;
        }
    }

    #[tokio::test]
    async fn attached_report_waits_for_a_session() {
        let (dpu, _folder) = dpu();
        let (reports, record) = (dpu.reports(), record("a", "c"));
        keep(reports.vfs.records(), record.clone());
        reports.report_attached(&record);
        assert!(reports.unreported.lock().contains("a"));
        reports.report_waiting();
        assert!(reports.unreported.lock().contains("a"), "there is no session yet");
    }

    #[test]
    fn only_newly_missing_vfs_count() {
        let pfs = |conditions: &[VfCondition]| {
            let vf = |(number, condition): (usize, &VfCondition)| v1::VirtualFunction {
                device: format!("vf{number}"),
                condition: (*condition).into(),
                ..Default::default()
            };
            let vfs = conditions.iter().enumerate().map(vf).collect();
            vec![PhysicalFunction { vfs, ..Default::default() }]
        };
        let (clean, missing) = (VfCondition::Clean, VfCondition::Missing);
        let sent = SentInventory { pfs: pfs(&[clean, missing]), ..SentInventory::default() };
        assert!(sent.lacks_more_in(&pfs(&[missing, clean])));
        assert!(!sent.lacks_more_in(&pfs(&[clean, missing])));
        assert!(!sent.lacks_more_in(&pfs(&[VfCondition::InUse, missing])));
        assert!(SentInventory::default().lacks_more_in(&sent.pfs));
    }

    #[tokio::test]
    async fn unsent_inventory_stays_requested() {
        let (dpu, _folder) = dpu();
        dpu.reports().inventory_wanted();
        dpu.reports().send_inventory().await.unwrap();
        assert!(dpu.reports().is_inventory_wanted(), "there is no session yet");
    }
}
