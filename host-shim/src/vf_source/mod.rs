//! Where the host's VFs come from.

mod pci;
mod virtual_card;

use std::{fmt::Debug, net::IpAddr};
use vf_alloc::{Device, FunctionId, PfId};

use netlink::{Error, IpNetwork, Link, MacAddress, Portrait, Rtnl};
use offload_proto::{Failure, Reason, v1};
use serde::{Deserialize, Serialize};
use sriov::{Handover, IommuGroup};

pub use pci::{PciCards, PciError, PciPf, PciSettings};
pub use virtual_card::VirtualCard;

/// Which VF a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfIdentity {
    /// How the DPU numbers it.
    pub id: FunctionId,
    /// What it is known by, whatever its link is called and wherever that is.
    pub device: Device,
}

impl From<&VfIdentity> for v1::Vf {
    fn from(VfIdentity { id, device }: &VfIdentity) -> Self {
        Self {
            controller: id.pf.controller,
            pf: id.pf.pf.into(),
            vf: id.vf.into(),
            device: device.to_string(),
        }
    }
}

/// Which VF a message of the DPU names.
///
/// # Errors
/// Of kind *internal*: there can be none of its numbers.
pub(crate) fn identity_of(vf: Option<&v1::Vf>) -> Result<VfIdentity, Failure> {
    let v1::Vf { controller, pf, vf, device } = vf.cloned().unwrap_or_default();
    let refused = |error| {
        Failure::new(Reason::Internal, format!("the DPU names a VF that can't be: {error}"))
    };
    let id = FunctionId::from_numbers(controller, pf, vf);
    id.map(|id| VfIdentity { id, device: device.into() }).map_err(refused)
}

/// What the VF of a message is known by.
pub(crate) fn device_of(vf: Option<&v1::Vf>) -> Device {
    vf.map(|vf| vf.device.as_str().into()).unwrap_or_default()
}

/// What VFs all of a PF are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfFacts {
    /// The PF's own.
    pub device: Device,
    /// The PCI vendor of its VFs, four hexadecimal digits.
    pub vendor_id: String,
    /// The PCI device of its VFs, four hexadecimal digits.
    pub device_id: String,
}

/// What the link of a VF is like while nobody uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnState {
    /// What it is called in the host's namespace.
    pub name: String,
    /// Its MAC address. `None`: any.
    pub mac: Option<MacAddress>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// All that it is like. `None`: it is not known yet, or an earlier version has learned the rest.
    #[serde(default)]
    pub portrait: Option<Portrait>,
}

/// Why a VF can't be made anew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// Nobody would make it again.
    #[error("it is a {0}, which nobody makes again: remove it and make it anew by hand")]
    Unsupported(String),
    /// The card or its driver refused.
    #[error(transparent)]
    Card(#[from] sriov::Error),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// A VF that has no link in the host's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherVf {
    /// Which VF.
    pub identity: VfIdentity,
    /// Why it has none there.
    pub whereabouts: Whereabouts,
}

/// Why a VF has no link in the host's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It has none anywhere, for it is handed over to programs as a device.
    HandedOver(Handover),
    /// Its driver has it, so that its link is elsewhere.
    Elsewhere,
    /// It has no driver.
    Unbound,
}

impl Whereabouts {
    /// Whether somebody uses the VF.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::HandedOver(Handover::Open) | Self::Elsewhere)
    }
}

/// A VF as its PF knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfPort {
    /// The PF.
    pub pf: Device,
    /// The VF's number within its PF.
    pub vf: u32,
}

impl PfPort {
    /// The link of the PF among others.
    #[must_use]
    pub fn link(&self, links: &[Link]) -> Option<Link> {
        links.iter().find(|link| link.parent_device.as_deref() == Some(self.pf.as_str())).cloned()
    }
}

/// Where a VF is in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfPlacement {
    /// Its PF.
    pub pf: Device,
    /// The NUMA node next to it. `None`: none in particular.
    pub numa_node: Option<u32>,
}

/// Why a PF does not have as many VFs as wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvideError {
    /// A card of this kind has the VFs that it has.
    #[error("this card's number of VFs can't be changed")]
    Fixed,
    /// The host has no such PF.
    #[error("this host has no PF of that number, or does not use it")]
    UnknownPf,
    /// The card or its driver refused, or VFs are in use.
    #[error(transparent)]
    Card(#[from] sriov::Error),
    /// The host's links can't be listed.
    #[error(transparent)]
    Links(#[from] Error),
}

/// A kind of card: how its VFs are told from other links.
pub trait VfSource: Debug + Send + Sync {
    /// Which VF the link is. `None`: it is none.
    fn vf_of(&self, link: &Link) -> Option<VfIdentity>;

    /// What the link of a VF that was never seen unused is like while nobody uses it, as far as that
    /// is a rule of the card's. `None`: it is not.
    fn usual_state(&self, _vf: &VfIdentity) -> Option<OwnState> {
        None
    }

    /// What the link of a VF is like while nobody uses it, of a `link` that nobody uses.
    fn first_state(&self, _vf: &VfIdentity, link: &Link) -> OwnState {
        let mac = link.permanent_mac.or(link.mac);
        OwnState { name: link.name.clone(), mac, mtu: link.mtu, portrait: None }
    }

    /// What is known of the PF of a VF.
    fn pf_of(&self, vf: &VfIdentity) -> PfFacts;

    /// Whether the card still has the VF.
    fn exists(&self, _device: &Device) -> bool {
        true
    }

    /// The VFs that a PF has now, by device, where their number can be changed.
    fn vfs_of(&self, _pf: PfId) -> Vec<Device> {
        Vec::new()
    }

    /// Makes a VF anew that nobody uses, and with it its `link` in the host's namespace: all that was
    /// set of it or stacked on it ends. The new link shows up there later.
    ///
    /// # Errors
    /// What is in the way.
    fn make_anew(&self, device: &Device, link: &Link, host: &mut Rtnl) -> Result<(), RenewalError>;

    /// The VFs that the card has besides those that `is_known` tells by device: their links are
    /// in other namespaces, or they have none.
    fn other_vfs(&self, _is_known: &dyn Fn(&Device) -> bool) -> Vec<OtherVf> {
        Vec::new()
    }

    /// Gives a VF that has no driver to the one that it is kept for or, if it is kept for none, to
    /// whichever knows it. Its link shows up in the host's namespace.
    ///
    /// # Errors
    /// Why it has no driver still.
    fn find_driver(&self, _device: &Device) -> Result<(), sriov::Error> {
        Ok(())
    }

    /// How the VF is handed over to programs as a device, and so has no link to move. `None`: it is
    /// not.
    ///
    /// # Errors
    /// When sysfs can't be read.
    fn handover(&self, _device: &Device) -> Result<Option<Handover>, sriov::Error> {
        Ok(None)
    }

    /// The devices that a program has with the VF, if the VF is handed over to it. `None`: no IOMMU confines the VF to
    /// the program's memory.
    ///
    /// # Errors
    /// When sysfs can't be read.
    fn iommu_group(&self, _device: &Device) -> Result<Option<IommuGroup>, sriov::Error> {
        Ok(None)
    }

    /// Where the VF is in the machine, as far as that is known.
    fn placement(&self, _device: &Device) -> VfPlacement {
        VfPlacement::default()
    }

    /// The VF as its PF knows it. `None`: it is not the PF that keeps a pod to its settings, but the
    /// DPU.
    fn pf_port(&self, _device: &Device) -> Option<PfPort> {
        None
    }

    /// Whether a PF has another number of VFs than `count`, and could be given as many. Changes
    /// nothing.
    ///
    /// # Errors
    /// What is in the way, such as a VF of it that is `in_use`, by device.
    fn is_change_due(
        &self,
        _pf: PfId,
        _count: u32,
        _in_use: &[Device],
    ) -> Result<bool, ProvideError> {
        Err(ProvideError::Fixed)
    }

    /// Gives a PF so many VFs, unless one of it is `in_use`, by device. Waits for their links.
    /// Tells whether anything had to be changed.
    ///
    /// # Errors
    /// Why it has another number of VFs still.
    fn provide(&self, _pf: PfId, _count: u32, _in_use: &[Device]) -> Result<bool, ProvideError> {
        Err(ProvideError::Fixed)
    }
}

/// The MTU of a virtual card's VF that nobody uses, in bytes.
pub const OWN_MTU: u32 = 1500;

/// The VFs among links.
pub fn vfs<'a>(
    source: &dyn VfSource,
    links: &'a [Link],
) -> impl Iterator<Item = (VfIdentity, &'a Link)> {
    links.iter().filter_map(|link| Some((source.vf_of(link)?, link)))
}

/// What another program uses a VF for that is handed over to programs.
pub(crate) const OPEN: &str = "a program has it open";

/// What the host itself uses the link of a VF for, of all links and addresses in the link's
/// namespace. `None`: for nothing. A VF that comes back from a pod has neither a bridge nor addresses,
/// and what the pod has stacked on it is not in this namespace.
#[must_use]
pub fn use_by_host(link: &Link, links: &[Link], addresses: &[(u32, IpNetwork)]) -> Option<String> {
    if let Some(master) = link.master {
        return Some(format!("it is a port of link {master}"));
    }
    if let Some(other) = stacked_by_host(link, links) {
        return Some(format!("link {other} is stacked on it"));
    }
    let mut own = addresses.iter().filter(|(index, _)| *index == link.index);
    let (_, address) = own.find(|(_, address)| !is_link_local(address.ip()))?;
    Some(format!("it has the address {address}"))
}

/// Kinds of links whose other end is a link, and which are stacked on nothing.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// The index of the link that a link is stacked on, in whatever namespace that is.
pub(crate) fn lower_of(link: &Link) -> Option<u32> {
    let kind = link.kind.as_deref().unwrap_or_default();
    link.peer.filter(|lower| *lower != 0 && !PAIRS.contains(&kind))
}

/// Whether a link of the host's namespace is stacked on another there.
pub(crate) fn is_stacked_by_host(link: &Link) -> bool {
    link.peer_netns.is_none() && lower_of(link).is_some()
}

/// The name of what the host itself has stacked on a link, of all links of the link's namespace.
fn stacked_by_host<'a>(link: &Link, links: &'a [Link]) -> Option<&'a str> {
    let is_on_link =
        |other: &&Link| is_stacked_by_host(other) && lower_of(other) == Some(link.index);
    links.iter().find(is_on_link).map(|other| other.name.as_str())
}

/// The kernel gives such an address to each link that is switched on.
const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The link of the VF among others.
#[must_use]
pub fn link_of<'a>(source: &dyn VfSource, links: &'a [Link], device: &Device) -> Option<&'a Link> {
    links.iter().find(|link| is(source, link, device))
}

/// Likewise, first by the name that it is expected to have: to tell of a link which VF's it is may take a look at sysfs.
#[must_use]
pub fn link_called<'a>(
    source: &dyn VfSource,
    links: &'a [Link],
    device: &Device,
    expected_name: Option<&str>,
) -> Option<&'a Link> {
    let expected = links.iter().find(|link| Some(link.name.as_str()) == expected_name);
    expected.filter(|link| is(source, link, device)).or_else(|| link_of(source, links, device))
}

/// Finds the link of a VF in a namespace: first where it is expected, then everywhere.
///
/// # Errors
/// The kernel's refusal.
pub fn find(
    source: &dyn VfSource,
    rtnl: &mut Rtnl,
    device: &Device,
    expected_name: Option<&str>,
) -> Result<Option<Link>, Error> {
    let expected = expected_name.map(|name| rtnl.link_by_name(name)).transpose()?.flatten();
    if let Some(link) = expected.filter(|link| is(source, link, device)) {
        return Ok(Some(link));
    }
    let links = rtnl.links()?;
    Ok(link_of(source, &links, device).cloned())
}

fn is(source: &dyn VfSource, link: &Link, device: &Device) -> bool {
    source.vf_of(link).is_some_and(|vf| vf.device == *device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vf_with_a_master_or_an_address_is_the_hosts_own() {
        let mut link = Link::default();
        link.index = 7;
        let of = |index, address: &str| (index, address.parse::<IpNetwork>().unwrap());
        let addresses = [of(6, "10.0.0.1/24"), of(7, "fe80::1/64")];
        assert_eq!(use_by_host(&link, &[], &addresses), None);
        let used = use_by_host(&link, &[], &[of(7, "fe80::1/64"), of(7, "10.0.0.2/24")]);
        assert!(used.unwrap().ends_with(" 10.0.0.2/24"));
        let mut other = Link::default();
        (other.name, other.peer, other.kind) = ("v7".into(), Some(7), Some("veth".into()));
        assert_eq!(use_by_host(&link, std::slice::from_ref(&other), &[]), None, "its other end");
        other.kind = Some("vlan".into());
        let used = use_by_host(&link, &[other], &[]).unwrap();
        assert!(used.starts_with("link v7 is stacked"), "{used}");
        link.master = Some(3);
        assert!(use_by_host(&link, &[], &[]).unwrap().ends_with("port of link 3"));
    }
}
