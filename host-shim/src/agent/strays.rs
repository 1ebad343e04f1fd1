//! VFs that came back while no record held them, as when the records were lost.

use std::sync::Arc;

use netlink::{Error, Rtnl};
use tokio::task::spawn_blocking;

use super::Agent;
use crate::{mover::make_clean, vf_source};

impl Agent {
    /// Restores the VFs in the host's namespace that nobody holds, so that they can be given out
    /// again. What a VF's MAC address was nobody knows any more; each attach sets its own.
    pub(super) async fn restore_strays(self: &Arc<Self>) {
        let agent = Arc::clone(self);
        match spawn_blocking(move || agent.restore_strays_now()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the VFs can't be listed"),
            Err(error) => tracing::error!(%error, "restoring VFs failed"),
        }
    }

    fn restore_strays_now(&self) -> Result<(), Error> {
        let mut host = Rtnl::open_in(&self.host)?;
        let links = host.links()?;
        for (vf, link) in vf_source::vfs(&*self.source, &links) {
            let is_in_order = !link.is_up && vf_source::is_clean(&*self.source, &vf, link);
            // Looked for after the listing: a VF that is being attached has a record by now.
            if is_in_order || self.records.by_pci_address(&vf.pci_address).is_some() {
                continue;
            }
            let name = self.source.own_name(&vf);
            match make_clean(&mut host, link, &name) {
                Ok(()) => tracing::info!(vf = vf.pci_address, was = link.name, "restored"),
                Err(error) => tracing::warn!(vf = vf.pci_address, %error, "not restored"),
            }
        }
        Ok(())
    }
}
