//! What the host tells its DPU unasked: what it has, and which pods have their VFs.

use std::{
    collections::HashSet,
    convert::Infallible,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use offload_proto::{
    Failure, capability,
    v1::{self, Hello, Inventory, PhysicalFunction, VfCondition, host_message},
};
use tokio::time::timeout;
use vf_alloc::VfPromise;

use super::{
    calls::told,
    inventory::{Held, functions_of, live, log_uses},
    session::{Session, protocol_versions},
};
use crate::{
    agent::{
        defect::locked,
        kill_points::KillPoint,
        pending::{Entered, Pending},
        repairs::Repairs,
        vfs::{HostLinks, Phase, Record, Records, Vfs},
    },
    protocol::Key,
};

/// Links change in swarms, and with every attach: the inventory is listed when none did for so long,
/// for that is in the way of the next attach.
const CALM: Duration = Duration::from_millis(100);
/// How long changes are gathered at most.
const GATHER: Duration = Duration::from_secs(1);

/// What the DPU is told in its sessions.
#[derive(Debug)]
pub(in crate::agent) struct Reports {
    vfs: Arc<Vfs>,
    boot_id: String,
    session: Arc<Session>,
    /// The keys of attaches that the DPU was asked for and nobody was answered.
    pending: Pending,
    /// The attachments that came into their pods while nobody could be told, by id.
    untold: Mutex<HashSet<String>>,
    sent: Mutex<SentInventory>,
}

/// What the DPU was told last.
#[derive(Debug, Default)]
struct SentInventory {
    pfs: Vec<PhysicalFunction>,
    /// It is to be told once more, even if nothing changed.
    is_wanted_again: bool,
    /// It was, and is being listed.
    is_on_its_way: bool,
}

impl SentInventory {
    /// Whether it is wanted again. Whoever wants it from here on wants one that is listed later.
    fn begin(&mut self) -> bool {
        self.is_on_its_way = mem::take(&mut self.is_wanted_again);
        self.is_on_its_way
    }

    /// Whether VFs are missing by now that were not.
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
    /// Of a host in that boot. Nothing has been told yet.
    pub(super) fn new(vfs: Arc<Vfs>, boot_id: String, session: Arc<Session>) -> Self {
        Self {
            vfs,
            boot_id,
            session,
            pending: Pending::default(),
            untold: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// The host's records.
    pub(super) fn records(&self) -> &Records {
        self.vfs.records()
    }

    /// What the agent has repaired by itself.
    pub(super) fn repairs(&self) -> &Repairs {
        self.vfs.repairs()
    }

    /// Says that the DPU is asked for an attachment and nobody was answered, until the answer is dropped:
    /// every hello lists it, so that the DPU does not take it for one that this host has forgotten.
    pub(in crate::agent) fn enter_pending(&self, key: &Key) -> Entered {
        self.pending.enter(key)
    }

    /// The keys of attaches that the DPU was asked for and nobody was answered.
    pub(in crate::agent) fn pending_keys(&self) -> Vec<Key> {
        self.pending.keys()
    }

    /// What the DPU was told last that the host has.
    pub(in crate::agent) fn told_pfs(&self) -> Vec<PhysicalFunction> {
        locked(&self.sent).pfs.clone()
    }

    /// Sends the inventory soon, even as it was: the DPU waits for it to learn of a VF.
    pub(in crate::agent) fn inventory_wanted(&self) {
        locked(&self.sent).is_wanted_again = true;
        self.vfs.signals().inventory_changed();
    }

    /// Whether the DPU is still to be told what the host has: it may take a VF for one in use that is at home.
    pub(in crate::agent) fn is_inventory_wanted(&self) -> bool {
        let sent = locked(&self.sent);
        sent.is_wanted_again || sent.is_on_its_way
    }

    /// Tells the DPU that the pod has its VF.
    pub(in crate::agent) fn tell_attached(&self, record: &Record) {
        let attached = v1::Attached { attachment_id: record.id().to_owned() };
        if !self.session.send(host_message::Message::Attached(attached)) {
            locked(&self.untold).insert(record.id().to_owned());
        }
    }

    /// Tells the DPU that promised VFs were taken and are not used. Where nobody hears it, the session is over, and with
    /// it all that was promised. The hello of a session that began meanwhile has listed them as in use: of these the
    /// inventory tells.
    pub(in crate::agent) fn tell_untaken(&self, promises: &[VfPromise]) {
        if !promises.is_empty() {
            let promises = promises.iter().map(told).collect();
            self.session.send(host_message::Message::Untaken(v1::Untaken { promises }));
            self.inventory_wanted();
        }
    }

    /// Tells the DPU what it could not be told before its present session.
    pub(super) fn tell_untold(&self) {
        let untold = mem::take(&mut *locked(&self.untold));
        for record in untold.iter().filter_map(|id| self.vfs.records().by_id(id)) {
            self.tell_attached(&record);
        }
    }

    /// The first message of a session. What is under way is listed before what is recorded, so that
    /// an attach in between is in one of the lists at least.
    ///
    /// # Errors
    /// When the host's links can't be listed.
    pub(in crate::agent) async fn hello(&self) -> Result<Hello, Failure> {
        // What is in its pod by now is listed as such. Cleared before the listing: what comes into its pod after
        // it is told once this session has begun.
        locked(&self.untold).clear();
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
            // Between the ADD that began it and the one that goes on with it no call is under way.
            let attaching = records.iter().filter(|record| record.phase == Phase::Attaching);
            let attaching: Vec<_> = attaching.map(|record| record.key()).collect();
            (inventory, live, attaching)
        };
        let (inventory, live, attaching) = self.vfs.host().look(list).await?;
        pending.extend(attaching);
        log_uses(&inventory.pfs);
        self.note_told(&mut locked(&self.sent), inventory.pfs.clone());
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

    /// Lists what the host has now.
    ///
    /// # Errors
    /// When the host's links can't be listed.
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

    /// Sends the inventory, unless the DPU has it.
    ///
    /// # Errors
    /// When the host's links can't be listed.
    async fn send_inventory(&self) -> Result<(), Failure> {
        // Taken before the listing and put back if nothing was sent: who wants it meanwhile wants a later one.
        let is_wanted_again = locked(&self.sent).begin();
        let has_it = self.tell_inventory(is_wanted_again).await;
        let mut sent = locked(&self.sent);
        sent.is_wanted_again |= is_wanted_again && !matches!(has_it, Ok(true));
        sent.is_on_its_way = false;
        has_it.map(drop)
    }

    /// Lists the inventory and sends it, unless it is as it was. Returns whether the DPU has it.
    async fn tell_inventory(&self, is_wanted_again: bool) -> Result<bool, Failure> {
        let inventory = self.list().await?;
        let mut sent = locked(&self.sent);
        if sent.pfs == inventory.pfs && !is_wanted_again {
            return Ok(true);
        }
        if !self.session.send(host_message::Message::Inventory(inventory.clone())) {
            return Ok(false);
        }
        KillPoint::InventorySent.pass();
        log_uses(&inventory.pfs);
        self.note_told(&mut sent, inventory.pfs);
        Ok(true)
    }

    /// A VF that is missing is brought back by the next pass. Nobody else may ask for it: of some changes of a
    /// link the kernel tells nobody, so that this listing was the first look.
    fn note_told(&self, sent: &mut SentInventory, pfs: Vec<PhysicalFunction>) {
        if sent.lacks_more_in(&pfs) {
            self.vfs.signals().ask_for_pass();
        }
        sent.pfs = pfs;
    }

    async fn proven_links(&self) -> Result<(u64, HostLinks), Failure> {
        let proven = self.vfs.cleanliness().proven_links().await?;
        if proven.is_any_refuted {
            // The next pass begins to make it anew.
            self.vfs.signals().ask_for_pass();
        }
        Ok((proven.as_of_ns, proven.present))
    }

    /// Sends the inventory whenever it changed, for ever.
    pub(in crate::agent) async fn keep_inventory(&self) -> Infallible {
        let signals = self.vfs.signals();
        loop {
            signals.changed_inventory().await;
            let calm = async { while timeout(CALM, signals.changed_inventory()).await.is_ok() {} };
            let _ = timeout(GATHER, calm).await;
            if let Err(failure) = self.send_inventory().await {
                tracing::warn!("the VFs can't be listed: {failure}");
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
        /// How many attachments the DPU could not be told of yet.
        pub(in crate::agent) fn untold(&self) -> usize {
            locked(&self.untold).len()
        }

        /// Has the DPU know of these PFs.
        pub(in crate::agent) fn know(&self, pfs: Vec<PhysicalFunction>) {
            locked(&self.sent).pfs = pfs;
        }
    }

    #[tokio::test]
    async fn what_nobody_hears_is_remembered() {
        let (dpu, _folder) = dpu();
        let (reports, record) = (dpu.reports(), record("a", "c"));
        keep(reports.vfs.records(), record.clone());
        reports.tell_attached(&record);
        assert!(locked(&reports.untold).contains("a"));
        reports.tell_untold();
        assert!(locked(&reports.untold).contains("a"), "there is no session yet");
    }

    #[test]
    fn only_a_vf_that_was_not_missing_before_is_news() {
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
        let told = SentInventory { pfs: pfs(&[clean, missing]), ..SentInventory::default() };
        assert!(told.lacks_more_in(&pfs(&[missing, clean])));
        assert!(!told.lacks_more_in(&pfs(&[clean, missing])));
        assert!(!told.lacks_more_in(&pfs(&[VfCondition::InUse, missing])));
        assert!(SentInventory::default().lacks_more_in(&told.pfs));
    }

    #[tokio::test]
    async fn an_inventory_that_nobody_hears_is_wanted_still() {
        let (dpu, _folder) = dpu();
        dpu.reports().inventory_wanted();
        dpu.reports().send_inventory().await.unwrap();
        assert!(dpu.reports().is_inventory_wanted(), "there is no session yet");
    }
}
