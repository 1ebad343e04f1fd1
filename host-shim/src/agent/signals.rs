//! Signals by which modules wake each other without a dependency. A signal says that something may have changed, never
//! what: a hundred signals cause one look.

use tokio::sync::{Notify, watch};

#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Counts events of VFs in the host's namespace; receivers wait for a change.
    vf_events: watch::Sender<u64>,
    pass: Notify,
    free_vf: Notify,
    inventory: Notify,
    host_ports: Notify,
}

impl Signals {
    /// A VF appeared in the host's namespace, or changed there.
    pub(super) fn vf_seen(&self) {
        self.vf_events.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Subscribes to VFs that appear from now on. Subscribe before looking for a VF: an event between the look and the
    /// subscription would be missed.
    pub(super) fn vf_events(&self) -> watch::Receiver<u64> {
        self.vf_events.subscribe()
    }

    /// Requests a comparison of all records with the kernel.
    pub(super) fn ask_for_pass(&self) {
        self.pass.notify_one();
    }

    /// Waits for a request for a comparison, including one since the last comparison began.
    pub(super) async fn pass_wanted(&self) {
        self.pass.notified().await;
    }

    /// A VF became free: work that failed without a free VF may be retried.
    pub(super) fn vf_became_free(&self) {
        self.free_vf.notify_one();
    }

    /// Waits until a VF becomes free.
    pub(super) async fn free_vf(&self) {
        self.free_vf.notified().await;
    }

    /// The host's inventory may have changed: the session reports it to the DPU if it did.
    pub(super) fn inventory_changed(&self) {
        self.inventory.notify_one();
    }

    /// A host port may need work, or an obstacle to one is gone.
    pub(super) fn look_at_host_ports(&self) {
        self.host_ports.notify_one();
    }

    /// Waits until host ports need a look.
    pub(super) async fn host_ports_wanted(&self) {
        self.host_ports.notified().await;
    }

    /// Waits until the inventory may have changed.
    pub(super) async fn changed_inventory(&self) {
        self.inventory.notified().await;
    }
}
