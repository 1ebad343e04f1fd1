//! The VFs of the virtual card, which their alias tells as a PCI address tells those of a real one.

use netlink::{Link, Rtnl};
use virtual_nic::VirtualVf;

use super::{OWN_MTU, OwnState, PfFacts, RenewalError, VfIdentity, VfSource};

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

    fn usual_state(&self, vf: &VfIdentity) -> Option<OwnState> {
        Some(state(vf))
    }

    fn first_state(&self, vf: &VfIdentity, link: &Link) -> OwnState {
        OwnState { mac: link.mac, ..state(vf) }
    }

    /// The card plugs the pair in again of which one end is deleted. Nobody does that with other kinds
    /// of links, such as taps.
    fn make_anew(
        &self,
        _pci_address: &str,
        link: &Link,
        host: &mut Rtnl,
    ) -> Result<(), RenewalError> {
        match link.kind.as_deref() {
            Some("veth") => Ok(host.delete_link(link.index)?),
            kind => Err(RenewalError::Unsupported(kind.unwrap_or("link").to_owned())),
        }
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

fn state(vf: &VfIdentity) -> OwnState {
    let name = format!("p{}v{}", vf.pf, vf.vf);
    OwnState { name, mac: None, mtu: OWN_MTU, portrait: None }
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
        assert_eq!(VirtualCard.usual_state(&vf).unwrap().name, "p1v2");
        assert_eq!(VirtualCard.pf_of(&vf).pci_address, "d001:00:00.0");
    }
}
