//! Aliases of the card's links. They survive renames and moves, so links are recognised by them.

use std::{fmt, str::FromStr};

use vf_alloc::{FunctionId, PfId};

/// The first word of each alias.
const CARD: &str = "virtual-nic";

const MANAGEMENT: &str = "management";

/// Limit of PFs for each controller.
pub(crate) const PF_LIMIT: u16 = 16;

/// A PCI address that no real card has. Domains from `d000` on stand for PFs, 16 for each controller, so the addresses
/// of a host's cards differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress(String);

impl PciAddress {
    /// Domain of PF 0 of controller 0.
    const DOMAIN: u32 = 0xd000;

    /// The address of a VF. VFs are numbered as on a card with ARI, after the PF.
    #[must_use]
    pub fn of(id: FunctionId) -> Self {
        let domain = Self::DOMAIN.saturating_add(pf_number(id.pf));
        let function = u32::from(id.vf) + 1;
        let (bus, device) = (function >> 8, (function >> 3) & 0x1f);
        Self(format!("{domain:04x}:{bus:02x}:{device:02x}.{}", function & 7))
    }

    /// The address as text, such as `d000:00:00.1`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The alias of a VF, on the host's side: `virtual-nic d000:00:00.1 pf0vf0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualVf {
    /// PCI address.
    pub pci: PciAddress,
    /// Controller, PF and VF number.
    pub id: FunctionId,
}

/// The alias of a VF's representor, on the DPU's side: `virtual-nic representor pf0vf0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepresentorAlias(pub FunctionId);

/// The alias of an uplink, on the DPU's side: `virtual-nic uplink p0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UplinkAlias(pub PfId);

/// The alias of the inner end of a VF's pair if the representor is another link: `virtual-nic wire pf0vf0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WireAlias(pub(crate) FunctionId);

/// The alias of the inner end of an uplink's pair if the uplink is another link: `virtual-nic wire p0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UplinkWireAlias(pub(crate) PfId);

/// The alias of both ends of a card's management link: `virtual-nic management c1`. Controller 0 has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ManagementAlias(pub(crate) u32);

/// A text is not an alias of the virtual card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an alias of the virtual card")]
pub struct ParseAliasError;

impl VirtualVf {
    /// The VF with this ID, at its PCI address.
    #[must_use]
    pub fn new(id: FunctionId) -> Self {
        Self { pci: PciAddress::of(id), id }
    }
}

impl fmt::Display for VirtualVf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{CARD} {} {}", self.pci, self.id)
    }
}

impl fmt::Display for RepresentorAlias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{CARD} representor {}", self.0)
    }
}

impl fmt::Display for UplinkAlias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{CARD} uplink {}", self.0)
    }
}

impl fmt::Display for WireAlias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{CARD} wire {}", self.0)
    }
}

impl fmt::Display for UplinkWireAlias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{CARD} wire {}", self.0)
    }
}

impl fmt::Display for ManagementAlias {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(out, "{CARD} {MANAGEMENT}"),
            controller => write!(out, "{CARD} {MANAGEMENT} c{controller}"),
        }
    }
}

impl FromStr for VirtualVf {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        let (pci, id) = words(alias)?;
        let vf = Self::new(id.parse().map_err(|_| ParseAliasError)?);
        if vf.pci.as_str() == pci { Ok(vf) } else { Err(ParseAliasError) }
    }
}

impl FromStr for RepresentorAlias {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        id_of("representor", alias).map(Self)
    }
}

impl FromStr for UplinkAlias {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        id_of("uplink", alias).map(Self)
    }
}

impl FromStr for WireAlias {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        id_of("wire", alias).map(Self)
    }
}

impl FromStr for UplinkWireAlias {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        id_of("wire", alias).map(Self)
    }
}

impl FromStr for ManagementAlias {
    type Err = ParseAliasError;

    fn from_str(alias: &str) -> Result<Self, ParseAliasError> {
        let role = alias.strip_prefix(CARD).and_then(|rest| rest.strip_prefix(' '));
        let rest = role.and_then(|role| role.strip_prefix(MANAGEMENT)).ok_or(ParseAliasError)?;
        let number = if rest.is_empty() { Some("0") } else { rest.strip_prefix(" c") };
        let controller = number.and_then(|number| number.parse().ok());
        controller.map(Self).ok_or(ParseAliasError)
    }
}

/// Numbers the PFs of all controllers. Saturates, because a pod can write any number into an alias.
pub(crate) fn pf_number(id: PfId) -> u32 {
    id.controller.saturating_mul(PF_LIMIT.into()).saturating_add(id.pf.into())
}

/// Parses the ID from an alias with this role.
fn id_of<I: FromStr>(role: &str, alias: &str) -> Result<I, ParseAliasError> {
    match words(alias)? {
        (found, id) if found == role => id.parse().map_err(|_| ParseAliasError),
        _ => Err(ParseAliasError),
    }
}

/// The two words after the first.
fn words(alias: &str) -> Result<(&str, &str), ParseAliasError> {
    let mut words = alias.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(CARD), Some(first), Some(second), None) => Ok((first, second)),
        _ => Err(ParseAliasError),
    }
}

pub(crate) fn parsed<A: FromStr>(alias: Option<&str>) -> Option<A> {
    alias?.parse().ok()
}

/// The VF whose inner end has this alias.
pub(crate) fn vf_of_inner(alias: Option<&str>) -> Option<FunctionId> {
    let wired = || parsed(alias).map(|WireAlias(id)| id);
    parsed(alias).map(|RepresentorAlias(id)| id).or_else(wired)
}

/// The controller of the card to which a link with this alias belongs.
#[must_use]
pub fn controller_of(alias: &str) -> Option<u32> {
    let vf = || alias.parse().ok().map(|VirtualVf { id, .. }| id.pf);
    let inner = || vf_of_inner(Some(alias)).map(|id| id.pf);
    let uplink = || alias.parse().ok().map(|UplinkAlias(pf)| pf);
    let uplink_wire = || alias.parse().ok().map(|UplinkWireAlias(pf)| pf);
    let pf = vf().or_else(inner).or_else(uplink).or_else(uplink_wire);
    let management = || alias.parse().ok().map(|ManagementAlias(controller)| controller);
    pf.map(|pf| pf.controller).or_else(management)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_vf_addresses_count_like_ari() {
        let address = |pf, vf| PciAddress::of(FunctionId::local(pf, vf)).to_string();
        assert_eq!(address(0, 0), "d000:00:00.1");
        assert_eq!(address(0, 6), "d000:00:00.7");
        assert_eq!(address(0, 7), "d000:00:01.0");
        assert_eq!(address(1, 255), "d001:01:00.0");
        assert_eq!(address(0, 1023), "d000:04:00.0");
    }

    #[test]
    fn controllers_have_different_pci_addresses() {
        let address = |text: &str| PciAddress::of(text.parse().unwrap()).to_string();
        assert_eq!(address("c1pf0vf0"), "d010:00:00.1");
        assert_eq!(address("c15pf15vf0"), "d0ff:00:00.1");
    }

    #[test]
    fn aliases_survive_display() {
        let vf = VirtualVf::new(FunctionId::local(1, 17));
        assert_eq!(vf.to_string(), "virtual-nic d001:00:02.2 pf1vf17");
        assert_eq!(vf.to_string().parse(), Ok(vf));
        let representor = RepresentorAlias(FunctionId::local(0, 3));
        assert_eq!(representor.to_string(), "virtual-nic representor pf0vf3");
        assert_eq!(representor.to_string().parse(), Ok(representor));
        let uplink = UplinkAlias(PfId::local(2));
        assert_eq!(uplink.to_string(), "virtual-nic uplink p2");
        assert_eq!(uplink.to_string().parse(), Ok(uplink));
        let wire = WireAlias(FunctionId::local(0, 3));
        assert_eq!(wire.to_string(), "virtual-nic wire pf0vf3");
        assert_eq!(wire.to_string().parse(), Ok(wire));
        assert_eq!("virtual-nic wire p0".parse(), Ok(UplinkWireAlias(PfId::local(0))));
        assert!("virtual-nic wire p0".parse::<WireAlias>().is_err());
    }

    #[test]
    fn foreign_aliases_are_refused() {
        let others = [
            "",
            "virtual-nic",
            "virtual-nic d000:00:00.1",
            "virtual-nic d000:00:00.2 pf0vf0",
            "virtual-nic d000:00:00.1 pf0vf0 more",
            "virtual-nic d000:00:00.1 c4294967295pf65535vf65535",
            "virtual-nic representor pf0vf0",
            "another-nic d000:00:00.1 pf0vf0",
        ];
        for alias in others {
            assert!(alias.parse::<VirtualVf>().is_err(), "{alias}");
        }
        assert!("virtual-nic d000:00:00.1 pf0vf0".parse::<RepresentorAlias>().is_err());
    }

    #[test]
    fn every_alias_names_its_controller() {
        let first = [
            "virtual-nic d000:00:00.1 pf0vf0",
            "virtual-nic representor pf0vf0",
            "virtual-nic wire p0",
            "virtual-nic management",
        ];
        let second = [
            "virtual-nic d010:00:00.1 c1pf0vf0",
            "virtual-nic representor c1pf0vf0",
            "virtual-nic uplink c1p0",
            "virtual-nic management c1",
        ];
        for (controller, aliases) in [(0, first), (1, second)] {
            for alias in aliases {
                assert_eq!(controller_of(alias), Some(controller), "{alias}");
            }
            assert_eq!(controller_of(&ManagementAlias(controller).to_string()), Some(controller));
        }
        for alias in ["", "virtual-nics x", "virtual-nic d000:00:00.1 c1pf0vf0"] {
            assert_eq!(controller_of(alias), None, "{alias}");
        }
    }
}
