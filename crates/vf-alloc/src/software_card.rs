//! Names of the software card: aliases of its links, and the devices of its VFs.

use std::fmt;

use crate::{Device, FunctionId, PfId};

/// The first word of each alias.
const CARD: &str = "virtual-nic";

/// Limit of PFs for each controller.
pub const PF_LIMIT: u16 = 16;

/// A link of the card, shown as its alias. Aliases survive renames and moves, so links are recognised by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardLink {
    /// A VF, on the host's side: `virtual-nic d000:00:00.1 pf0vf0`.
    Vf(FunctionId),
    /// A VF's representor, on the DPU's side: `virtual-nic representor pf0vf0`.
    Representor(FunctionId),
    /// An uplink, on the DPU's side: `virtual-nic uplink p0`.
    Uplink(PfId),
    /// The inner end of a VF's pair if the representor is another link: `virtual-nic wire pf0vf0`.
    Wire(FunctionId),
    /// The inner end of an uplink's pair if the uplink is another link: `virtual-nic wire p0`.
    UplinkWire(PfId),
    /// Either end of a controller's management link: `virtual-nic management c1`. Controller 0 has no number.
    Management(u32),
}

impl CardLink {
    /// The link with this alias. `None`: it belongs to no card.
    #[must_use]
    pub fn of(alias: &str) -> Option<Self> {
        let words: Vec<_> = alias.split(' ').collect();
        match *words {
            [CARD, "management"] => Some(Self::Management(0)),
            [CARD, "management", id] => id.strip_prefix('c')?.parse().ok().map(Self::Management),
            [CARD, "representor", id] => id.parse().ok().map(Self::Representor),
            [CARD, "uplink", id] => id.parse().ok().map(Self::Uplink),
            [CARD, "wire", id] => match id.parse() {
                Ok(vf) => Some(Self::Wire(vf)),
                Err(_) => id.parse().ok().map(Self::UplinkWire),
            },
            [CARD, device, id] => {
                let vf = id.parse().ok()?;
                (device_of(vf).as_str() == device).then_some(Self::Vf(vf))
            }
            _ => None,
        }
    }

    /// The controller of its card.
    #[must_use]
    pub const fn controller(self) -> u32 {
        match self {
            Self::Vf(vf) | Self::Representor(vf) | Self::Wire(vf) => vf.pf.controller,
            Self::Uplink(pf) | Self::UplinkWire(pf) => pf.controller,
            Self::Management(controller) => controller,
        }
    }
}

impl fmt::Display for CardLink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vf(vf) => write!(out, "{CARD} {} {vf}", device_of(*vf)),
            Self::Representor(vf) => write!(out, "{CARD} representor {vf}"),
            Self::Uplink(pf) => write!(out, "{CARD} uplink {pf}"),
            Self::Wire(vf) => write!(out, "{CARD} wire {vf}"),
            Self::UplinkWire(pf) => write!(out, "{CARD} wire {pf}"),
            Self::Management(0) => write!(out, "{CARD} management"),
            Self::Management(controller) => write!(out, "{CARD} management c{controller}"),
        }
    }
}

/// The PCI address of a VF, such as `d000:00:00.1`. No real card has it: domains from `d000` on stand for PFs, 16 for
/// each controller, so the addresses of a host's cards differ. VFs are numbered as on a card with ARI, after the PF.
#[must_use]
pub fn device_of(vf: FunctionId) -> Device {
    const FIRST_DOMAIN: u32 = 0xd000;
    let domain = FIRST_DOMAIN.saturating_add(pf_number(vf.pf));
    let function = u32::from(vf.vf) + 1;
    let (bus, device) = (function >> 8, (function >> 3) & 0x1f);
    format!("{domain:04x}:{bus:02x}:{device:02x}.{}", function & 7).into()
}

/// Numbers the PFs of all controllers. Saturates, because a pod can write any number into an alias.
#[must_use]
pub fn pf_number(id: PfId) -> u32 {
    id.controller.saturating_mul(PF_LIMIT.into()).saturating_add(id.pf.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_vf_addresses_count_like_ari() {
        let address = |pf, vf| device_of(FunctionId::local(pf, vf)).to_string();
        assert_eq!(address(0, 0), "d000:00:00.1");
        assert_eq!(address(0, 6), "d000:00:00.7");
        assert_eq!(address(0, 7), "d000:00:01.0");
        assert_eq!(address(1, 255), "d001:01:00.0");
        assert_eq!(address(0, 1023), "d000:04:00.0");
    }

    #[test]
    fn controllers_have_different_pci_addresses() {
        let address = |text: &str| device_of(text.parse().unwrap()).to_string();
        assert_eq!(address("c1pf0vf0"), "d010:00:00.1");
        assert_eq!(address("c15pf15vf0"), "d0ff:00:00.1");
    }

    #[test]
    fn aliases_name_links_and_controllers() {
        let second = PfId { controller: 1, pf: 0 };
        let links = [
            (CardLink::Vf(FunctionId::local(1, 17)), "virtual-nic d001:00:02.2 pf1vf17", 0),
            (
                CardLink::Vf(FunctionId { pf: second, vf: 0 }),
                "virtual-nic d010:00:00.1 c1pf0vf0",
                1,
            ),
            (CardLink::Representor(FunctionId::local(0, 3)), "virtual-nic representor pf0vf3", 0),
            (CardLink::Uplink(PfId::local(2)), "virtual-nic uplink p2", 0),
            (CardLink::Uplink(second), "virtual-nic uplink c1p0", 1),
            (CardLink::Wire(FunctionId::local(0, 3)), "virtual-nic wire pf0vf3", 0),
            (CardLink::UplinkWire(PfId::local(0)), "virtual-nic wire p0", 0),
            (CardLink::Management(0), "virtual-nic management", 0),
            (CardLink::Management(1), "virtual-nic management c1", 1),
        ];
        for (link, alias, controller) in links {
            assert_eq!(link.to_string(), alias);
            assert_eq!((CardLink::of(alias), link.controller()), (Some(link), controller));
        }
    }

    #[test]
    fn foreign_aliases_are_refused() {
        let others = [
            "",
            "virtual-nic",
            "virtual-nics x",
            "virtual-nic d000:00:00.1",
            "virtual-nic d000:00:00.2 pf0vf0",
            "virtual-nic d000:00:00.1 c1pf0vf0",
            "virtual-nic d000:00:00.1 pf0vf0 more",
            "virtual-nic d000:00:00.1 c4294967295pf65535vf65535",
            "virtual-nic representor p0",
            "another-nic d000:00:00.1 pf0vf0",
        ];
        for alias in others {
            assert_eq!(CardLink::of(alias), None, "{alias}");
        }
    }
}
