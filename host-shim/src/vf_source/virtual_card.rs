//! The VFs of the virtual card. Their alias identifies them, as a PCI address identifies those of a real card.

use netlink::{Link, Request, Rtnl};
use sriov::{PciAddress, SOFTWARE_VF};
use vf_alloc::{
    Device, FunctionId,
    software_card::{CardLink, device_of},
};

use super::{OWN_MTU, OwnState, PfFacts, ResetError, VfIdentity, VfPlacement, VfSource};

/// VFs that `crates/virtual-nic` plugged in.
#[derive(Clone, Debug, Default)]
pub struct VirtualCard {
    /// The PFs whose VFs are used. Empty: all.
    pfs: Vec<Device>,
}

impl VirtualCard {
    /// Restricts the source to the VFs of these PFs. Empty: all.
    #[must_use]
    pub fn of_pfs(pfs: impl IntoIterator<Item = PciAddress>) -> Self {
        Self { pfs: pfs.into_iter().map(|pf| pf.to_string().into()).collect() }
    }

    fn uses(&self, vf: &VfIdentity) -> bool {
        self.pfs.is_empty() || self.pfs.contains(&pf_device(&vf.device))
    }
}

impl VfSource for VirtualCard {
    fn vf_of(&self, link: &Link) -> Option<VfIdentity> {
        let CardLink::Vf(id) = CardLink::of(link.alias.as_deref()?)? else { return None };
        let identity = VfIdentity { id, device: device_of(id) };
        self.uses(&identity).then_some(identity)
    }

    fn usual_state(&self, vf: &VfIdentity) -> Option<OwnState> {
        Some(state(vf))
    }

    fn first_state(&self, vf: &VfIdentity, link: &Link) -> OwnState {
        OwnState { mac: link.mac, ..state(vf) }
    }

    /// Deletes the veth pair, which the card then plugs in again. No program recreates other kinds of links, such as
    /// taps.
    fn reset_vf(&self, _device: &Device, link: &Link, host: &mut Rtnl) -> Result<(), ResetError> {
        match link.kind.as_deref() {
            Some("veth") => Ok(host.change(Request::delete_link(link.index))?),
            kind => Err(ResetError::Unsupported(kind.unwrap_or("link").to_owned())),
        }
    }

    fn pf_of(&self, vf: &VfIdentity) -> PfFacts {
        let (vendor_id, device_id) = SOFTWARE_VF;
        PfFacts {
            device: pf_device(&vf.device),
            vendor_id: vendor_id.into(),
            device_id: device_id.into(),
        }
    }

    fn placement(&self, device: &Device) -> VfPlacement {
        VfPlacement { pf: pf_device(device), numa_node: None }
    }
}

/// Each PF has a PCI domain of its own.
fn pf_device(vf: &Device) -> Device {
    let (domain, _) = vf.as_str().split_once(':').unwrap_or((vf.as_str(), ""));
    format!("{domain}:00:00.0").into()
}

/// Cards of one host differ in their controller; the names of their VFs contain it unless it is 0.
fn state(vf: &VfIdentity) -> OwnState {
    let FunctionId { pf, vf } = vf.id;
    OwnState { name: format!("{pf}v{vf}"), mac: None, mtu: OWN_MTU, link_state: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_identifies_virtual_vf() {
        let mut link = Link::default();
        let card = VirtualCard::default();
        assert_eq!(card.vf_of(&link), None);
        link.alias = Some("virtual-nic d001:00:00.3 pf1vf2".into());
        let vf = card.vf_of(&link).unwrap();
        assert_eq!((vf.id, vf.device.as_str()), (FunctionId::local(1, 2), "d001:00:00.3"));
        assert_eq!(card.usual_state(&vf).unwrap().name, "p1v2");
        assert_eq!(card.pf_of(&vf).device.as_str(), "d001:00:00.0");
    }

    #[test]
    fn vfs_of_unlisted_pfs_are_ignored() {
        let card = VirtualCard::of_pfs(["d010:00:00.0".parse().unwrap()]);
        let mut link = Link::default();
        link.alias = Some("virtual-nic d000:00:00.3 pf0vf2".into());
        assert_eq!(card.vf_of(&link), None);
        link.alias = Some("virtual-nic d010:00:00.3 c1pf0vf2".into());
        let vf = card.vf_of(&link).unwrap();
        assert_eq!(vf.id.to_string(), "c1pf0vf2");
        assert_eq!(card.usual_state(&vf).unwrap().name, "c1p0v2");
    }
}
