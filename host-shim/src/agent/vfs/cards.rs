//! The host's cards, as other modules may use them.

use netlink::Link;
use sriov::{Handover, IommuGroup};
use vf_alloc::Device;

use crate::vf_source::{self, OtherVf, PfFacts, VfIdentity, VfPlacement, VfSource};

/// Read access to the host's cards. Only `vfs` itself changes a VF.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct Cards<'a>(&'a dyn VfSource);

impl<'a> Cards<'a> {
    /// The cards of a VF source.
    pub(in crate::agent) fn of(source: &'a dyn VfSource) -> Self {
        Self(source)
    }

    /// Which VF the link is. `None`: it is none.
    pub(in crate::agent) fn vf_of(self, link: &Link) -> Option<VfIdentity> {
        self.0.vf_of(link)
    }

    /// The VFs among links.
    pub(in crate::agent) fn vfs(self, links: &[Link]) -> impl Iterator<Item = (VfIdentity, &Link)> {
        vf_source::vfs(self.0, links)
    }

    /// Whether a VF is among links.
    pub(in crate::agent) fn is_among(self, device: &Device, links: &[Link]) -> bool {
        vf_source::link_of(self.0, links, device).is_some()
    }

    /// The cards' other VFs, for which `is_known` is false.
    pub(in crate::agent) fn others(self, is_known: &dyn Fn(&Device) -> bool) -> Vec<OtherVf> {
        self.0.other_vfs(is_known)
    }

    /// What is known of the PF of a VF.
    pub(in crate::agent) fn pf_of(self, vf: &VfIdentity) -> PfFacts {
        self.0.pf_of(vf)
    }

    /// How a VF is handed over to programs. `None`: it is not.
    ///
    /// # Errors
    /// When sysfs can't be read.
    pub(in crate::agent) fn handover(
        self,
        device: &Device,
    ) -> Result<Option<Handover>, sriov::Error> {
        self.0.handover(device)
    }

    /// The devices that a program has with a VF. `None`: no IOMMU confines the VF.
    ///
    /// # Errors
    /// When sysfs can't be read.
    pub(in crate::agent) fn iommu_group(
        self,
        device: &Device,
    ) -> Result<Option<IommuGroup>, sriov::Error> {
        self.0.iommu_group(device)
    }

    /// Where a VF is in the machine.
    pub(in crate::agent) fn placement(self, device: &Device) -> VfPlacement {
        self.0.placement(device)
    }
}
