//! The VFs of the virtual card, which their alias tells as a PCI address tells those of a real one.

use netlink::Link;
use virtual_nic::VirtualVf;

use super::{OWN_MTU, OwnState, PfFacts, VfIdentity, VfSource};

/// PCI ids of the card that the virtual one stands in for: a ConnectX family VF.
const VENDOR: &str = "15b3";
const DEVICE: &str = "101e";

/// VFs that crates/virtual-nic plugged in.
#[derive(Clone, Copy, Debug, Default)]
pub struct VirtualCard;

impl VfSource for VirtualCard {
    fn vf_of(&self, link: &Link) -> Option<VfIdentity> {
        let vf: VirtualVf = link.alias.as_deref()?.parse().ok()?;
        Some(VfIdentity {
            controller: vf.id.pf.controller,
            pf: u32::from(vf.id.pf.pf),
            vf: u32::from(vf.id.vf),
            pci_address: vf.pci.to_string(),
        })
    }

    fn own_state(&self, vf: &VfIdentity) -> Option<OwnState> {
        let name = format!("p{}v{}", vf.pf, vf.vf);
        Some(OwnState { name, mac: None, mtu: OWN_MTU })
    }

    fn pf_of(&self, vf: &VfIdentity) -> PfFacts {
        let (domain, _) = vf.pci_address.split_once(':').unwrap_or((&vf.pci_address, ""));
        PfFacts {
            pci_address: format!("{domain}:00:00.0"),
            vendor_id: VENDOR.into(),
            device_id: DEVICE.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vf_is_told_by_its_alias() {
        let mut link = Link::default();
        assert_eq!(VirtualCard.vf_of(&link), None);
        link.alias = Some("virtual-nic d001:00:00.3 pf1vf2".into());
        let vf = VirtualCard.vf_of(&link).unwrap();
        assert_eq!((vf.pf, vf.vf, vf.pci_address.as_str()), (1, 2, "d001:00:00.3"));
        assert_eq!(VirtualCard.own_state(&vf).unwrap().name, "p1v2");
        assert_eq!(VirtualCard.pf_of(&vf).pci_address, "d001:00:00.0");
    }
}
