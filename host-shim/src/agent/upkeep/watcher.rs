//! Wakes the keeper when the kernel reports VFs that arrive, change or leave.

use std::{collections::HashSet, sync::Arc};

use netlink::{Error, Link, LinkEvent, LinkMonitor};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::keeper::Keeper;
use crate::agent::{
    config::Timeouts,
    vfs::{Record, Vfs},
};

/// Watches the VFs in the host's namespace.
#[derive(Debug)]
pub(in crate::agent) struct Watcher {
    vfs: Arc<Vfs>,
    keeper: Arc<Keeper>,
    timeouts: Timeouts,
    /// The records that are about to be looked at, by attachment id: events come in swarms.
    looked_for: Mutex<HashSet<String>>,
}

impl Watcher {
    pub(super) fn new(vfs: Arc<Vfs>, keeper: Arc<Keeper>, timeouts: Timeouts) -> Self {
        Self { vfs, keeper, timeouts, looked_for: Mutex::default() }
    }

    /// Watches the VFs in the host's namespace, for ever; and has all compared with the kernel now and then,
    /// for what is not told.
    pub(in crate::agent) async fn watch(self: &Arc<Self>, mut monitor: LinkMonitor) -> Error {
        let mut ticks = interval(self.timeouts.reconcile());
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
                    Ok(LinkEvent::PortChanged { .. }) => {}
                    Ok(LinkEvent::Missed) => self.vfs.signals().ask_for_pass(),
                    Err(error) => return error,
                },
                _ = ticks.tick() => self.vfs.signals().ask_for_pass(),
            }
        }
    }

    /// A VF showed up in the host's namespace, or changed there.
    fn vf_seen(self: &Arc<Self>, link: &Link) {
        let Some(vf) = self.vfs.host().cards().vf_of(link) else { return };
        self.vfs.signals().vf_seen();
        let Some(record) = self.vfs.records().by_device(&vf.device) else {
            if !self.vfs.cleanliness().looks_clean(&vf, link) {
                self.vfs.signals().ask_for_pass();
            }
            return self.vfs.signals().inventory_changed();
        };
        if self.looked_for.lock().insert(record.id().to_owned()) {
            // Not among the work that is finished before the agent ends: mostly it waits.
            tokio::spawn(Arc::clone(self).look_after_pause(record));
        }
    }

    /// Compares a record with the kernel after what is under way with it, and after its pause.
    async fn look_after_pause(self: Arc<Self>, record: Arc<Record>) {
        drop(self.vfs.keys().lock(&record.key()).await);
        sleep(self.vfs.pause_of(record.id())).await;
        let key = self.vfs.keys().lock(&record.key()).await;
        // Before the look: what changes from here on asks for another.
        self.looked_for.lock().remove(record.id());
        drop(key);
        self.keeper.reconcile_soon(record);
    }

    fn vf_gone(&self, link: &Link) {
        let Some(vf) = self.vfs.host().cards().vf_of(link) else { return };
        self.vfs.cleanliness().forget_link(&vf.device, link.index);
        match self.vfs.records().by_device(&vf.device) {
            None => self.vfs.signals().inventory_changed(),
            Some(record) if record.key().is_of_host_port() => {
                self.vfs.signals().look_at_host_ports();
            }
            Some(_) => {}
        }
    }
}
