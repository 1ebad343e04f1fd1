//! How the rooms wake each other without knowing each other. A signal says that something may have changed
//! and never what, so that a hundred of them cost whoever is woken one look.

use tokio::sync::{Notify, watch};

/// What wakes the agent's keepers.
#[derive(Debug)]
pub(super) struct Signals {
    /// Counts the events of VFs in the host's namespace, for those who wait for one.
    vf_events: watch::Sender<u64>,
    pass: Notify,
    free_vf: Notify,
    inventory: Notify,
    host_ports: Notify,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            vf_events: watch::Sender::new(0),
            pass: Notify::new(),
            free_vf: Notify::new(),
            inventory: Notify::new(),
            host_ports: Notify::new(),
        }
    }
}

impl Signals {
    /// A VF showed up in the host's namespace, or changed there.
    pub(super) fn vf_seen(&self) {
        self.vf_events.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Tells of VFs that show up from now on. To be had before the look that may find none yet: one that
    /// comes in between would be missed otherwise.
    pub(super) fn vf_events(&self) -> watch::Receiver<u64> {
        self.vf_events.subscribe()
    }

    /// Asks for a comparison of all records with the kernel.
    pub(super) fn ask_for_pass(&self) {
        self.pass.notify_one();
    }

    /// Waits until somebody asks for a comparison, or has done so since the last one began.
    pub(super) async fn pass_wanted(&self) {
        self.pass.notified().await;
    }

    /// A VF is free again: whoever could not do something because all were taken may try again.
    pub(super) fn vf_became_free(&self) {
        self.free_vf.notify_one();
    }

    /// Waits until a VF is free again.
    pub(super) async fn free_vf(&self) {
        self.free_vf.notified().await;
    }

    /// The DPU is to be told soon what the host has, unless that is as it was.
    pub(super) fn inventory_changed(&self) {
        self.inventory.notify_one();
    }

    /// Something may be amiss with a host port, or nothing in its way any more.
    pub(super) fn look_at_host_ports(&self) {
        self.host_ports.notify_one();
    }

    /// Waits until host ports are to be looked at.
    pub(super) async fn host_ports_wanted(&self) {
        self.host_ports.notified().await;
    }

    /// Waits until the inventory may have changed.
    pub(super) async fn changed_inventory(&self) {
        self.inventory.notified().await;
    }
}
