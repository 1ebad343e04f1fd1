//! Which VFs are kept for ADDs that are under way.
//!
//! An ADD claims the offered VFs that it takes, from before it asks the DPU until they are recorded or the claim is
//! dropped. Claimed VFs are listed as held, and no other ADD gets them.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use vf_alloc::Device;

use super::{cleanliness::Cleanliness, host::Host, renewal::Renewer};

/// What keeps VFs for ADDs.
#[derive(Debug)]
pub(in crate::agent) struct Claims {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    devices: Arc<Mutex<HashSet<Device>>>,
}

/// A VF that is kept for an ADD until this is dropped.
#[derive(Debug)]
pub(in crate::agent) struct Claimed {
    device: Device,
    devices: Arc<Mutex<HashSet<Device>>>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.devices.lock().remove(&self.device);
    }
}

impl Claims {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewer: Arc::clone(renewer),
            devices: Arc::default(),
        }
    }

    /// Claims the VF if it is free and not known to differ from its baseline. A VF that is handed over to programs has
    /// no link to compare.
    pub(in crate::agent) fn try_claim(&self, device: &Device) -> Option<Claimed> {
        let mut devices = self.devices.lock();
        let is_to_be_had = !devices.contains(device)
            && self.host.records().by_device(device).is_none()
            && !self.renewer.is_under_way(device)
            && self.cleanliness.proofs().differences(device).is_empty();
        is_to_be_had.then(|| {
            devices.insert(device.clone());
            Claimed { device: device.clone(), devices: Arc::clone(&self.devices) }
        })
    }

    /// The VFs that are claimed now. To be looked at before the records: a claim ends once there is one.
    pub(in crate::agent) fn devices(&self) -> HashSet<Device> {
        self.devices.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use vf_alloc::FunctionId;

    use super::*;
    use crate::{
        agent::vfs::{
            proofs::Seen,
            records::tests::{keep, record},
            room::tests::vfs,
        },
        vf_source::VfIdentity,
    };

    #[tokio::test]
    async fn free_clean_vf_is_claimed_once() {
        let (vfs, _folder) = vfs();
        let device = Device::from("pci-c");
        let claim = || vfs.claims().try_claim(&device);
        assert!(claim().is_some(), "not all can be looked at");
        vfs.cleanliness().proofs().suspect(&device);
        assert!(claim().is_none());
        let vf = VfIdentity { id: FunctionId::local(0, 1), device: device.clone() };
        let seen = Seen::new(vf, 7, Instant::now(), Vec::new()).made_just_now();
        assert!(vfs.cleanliness().proofs().conclude(seen, &Arc::default()).is_empty());
        let claimed = claim().unwrap();
        assert!(claim().is_none() && vfs.claims().devices().contains(&device));
        drop(claimed);
        assert!(claim().is_some() && vfs.claims().devices().is_empty());
        keep(vfs.records(), record("c", "holder"));
        assert!(claim().is_none());
    }
}
