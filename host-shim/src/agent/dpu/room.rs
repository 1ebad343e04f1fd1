//! One DPU, and what it is still to be told.

use std::{
    collections::HashSet,
    convert::Infallible,
    mem,
    sync::{Arc, Mutex},
};

use offload_proto::v1::{self, PhysicalFunction, host_message};

use super::{
    session::{FromDpu, Session},
    undelivered::Undelivered,
    welcomed::Welcomed,
};
use crate::{
    agent::{
        config::Config,
        defect::locked,
        pending::{Entered, Pending},
        vfs::{Record, Vfs},
    },
    protocol::Key,
};

/// The DPU that this host's VFs belong to.
#[derive(Debug)]
pub(in crate::agent) struct Dpu {
    pub(super) config: Arc<Config>,
    pub(super) boot_id: String,
    pub(super) vfs: Arc<Vfs>,
    pub(super) session: Session,
    /// That the DPU has welcomed this host since its boot.
    welcomed: Welcomed,
    /// The keys of attaches that the DPU was asked for and nobody was answered.
    pub(super) pending: Pending,
    /// What calls whose answers never came may have left on the DPU.
    pub(super) undelivered: Undelivered,
    /// The attachments that came into their pods while nobody could be told, by id.
    pub(super) untold: Mutex<HashSet<String>>,
    pub(super) sent_inventory: Mutex<SentInventory>,
}

/// What the DPU was told last.
#[derive(Debug, Default)]
pub(super) struct SentInventory {
    pub pfs: Vec<PhysicalFunction>,
    /// It is to be told once more, even if nothing changed.
    pub is_wanted_again: bool,
}

impl SentInventory {
    /// Whether it is wanted again. Whoever wants it from here on wants one that is listed later.
    pub(super) fn begin(&mut self) -> bool {
        mem::take(&mut self.is_wanted_again)
    }
}

impl Dpu {
    /// Nobody has spoken with it yet.
    pub(in crate::agent) fn new(config: Arc<Config>, boot_id: String, vfs: Arc<Vfs>) -> Self {
        let welcomed = Welcomed::new(&config.state_dir, &boot_id);
        Self {
            config,
            boot_id,
            vfs,
            session: Session::new(welcomed.is_noted()),
            welcomed,
            pending: Pending::default(),
            undelivered: Undelivered::default(),
            untold: Mutex::default(),
            sent_inventory: Mutex::default(),
        }
    }

    /// How it stands with the DPU.
    pub(in crate::agent) fn session(&self) -> &Session {
        &self.session
    }

    /// Keeps a session, for ever. `heard` is told what the DPU says, once what waits for it is delivered.
    pub(in crate::agent) async fn keep_session(
        self: &Arc<Self>,
        heard: impl Fn(FromDpu),
    ) -> Infallible {
        let hello = async || self.hello().await;
        let heard = |said: FromDpu| {
            if matches!(said, FromDpu::Welcome) {
                self.session_began();
            }
            heard(said);
        };
        self.session.keep(&self.config, &hello, &heard).await
    }

    /// What waits for the DPU is delivered, as far as that needs no answer.
    pub(super) fn session_began(&self) {
        self.welcomed.note();
        self.tell_untold();
        self.vfs.signals().inventory_changed();
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

    /// The keys of calls of Detach that the DPU is still to be told.
    pub(in crate::agent) fn undelivered_keys(&self) -> Vec<Key> {
        self.undelivered.keys()
    }

    /// What the DPU was told last that the host has.
    pub(in crate::agent) fn told_pfs(&self) -> Vec<PhysicalFunction> {
        locked(&self.sent_inventory).pfs.clone()
    }

    /// Sends the inventory soon, even as it was: the DPU waits for it to learn of a VF.
    pub(in crate::agent) fn inventory_wanted(&self) {
        locked(&self.sent_inventory).is_wanted_again = true;
        self.vfs.signals().inventory_changed();
    }

    /// Tells the DPU that the pod has its VF.
    pub(in crate::agent) fn tell_attached(&self, record: &Record) {
        let attached = v1::Attached { attachment_id: record.id().to_owned() };
        if !self.session.send(host_message::Message::Attached(attached)) {
            locked(&self.untold).insert(record.id().to_owned());
        }
    }

    /// Tells the DPU what it could not be told before its present session.
    fn tell_untold(&self) {
        let untold = mem::take(&mut *locked(&self.untold));
        for record in untold.iter().filter_map(|id| self.vfs.records().by_id(id)) {
            self.tell_attached(&record);
        }
    }
}

#[cfg(test)]
pub(in crate::agent) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::agent::vfs::{
        record,
        tests::{keep, vfs},
    };

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

    impl Dpu {
        /// How many attachments it could not be told of yet.
        pub(in crate::agent) fn untold(&self) -> usize {
            locked(&self.untold).len()
        }

        /// Has it know of these PFs.
        pub(in crate::agent) fn know(&self, pfs: Vec<PhysicalFunction>) {
            locked(&self.sent_inventory).pfs = pfs;
        }
    }

    /// A configuration of a DPU that nobody can reach.
    pub(in crate::agent) fn config() -> Arc<Config> {
        Arc::new(bootstrap::parse_config(CONFIGURATION, "/c.toml".as_ref()).unwrap())
    }

    /// A DPU without a session, and the folder of the host's records.
    pub(in crate::agent) fn dpu() -> (Arc<Dpu>, TempDir) {
        let (vfs, folder) = vfs();
        (Arc::new(Dpu::new(config(), "boot".into(), vfs)), folder)
    }

    #[tokio::test]
    async fn what_nobody_hears_is_remembered() {
        let (dpu, _folder) = dpu();
        let record = record("a", "c");
        keep(dpu.vfs.records(), record.clone());
        dpu.tell_attached(&record);
        assert!(locked(&dpu.untold).contains("a"));
        dpu.tell_untold();
        assert!(locked(&dpu.untold).contains("a"), "there is no session yet");
    }
}
