//! VF sources: how the host finds its VFs, resets them and sets their number. A source has no lock that is held across
//! a call.

mod pci;
mod virtual_card;

use std::{fmt::Debug, net::IpAddr};
use vf_alloc::{Device, FunctionId, PfId};

use netlink::{Error, IpNetwork, Link, LinkState, MacAddress, Rtnl};
use offload_proto::{Failure, Reason, v1};
use serde::{Deserialize, Serialize};
use sriov::{Handover, IommuGroup};

pub use pci::{PciCards, PciError, PciPf, PciSettings};
pub use virtual_card::VirtualCard;

/// The identity of a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfIdentity {
    /// The VF's numbers, as the DPU uses them.
    pub id: FunctionId,
    /// The VF's address, independent of its link's name and namespace.
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

/// Reads the VF that the DPU's message names.
///
/// # Errors
/// [`Reason::Internal`]: no VF can have these numbers.
pub(crate) fn identity_of(vf: Option<&v1::Vf>) -> Result<VfIdentity, Failure> {
    let v1::Vf { controller, pf, vf, device } = vf.cloned().unwrap_or_default();
    let refused =
        |error| Failure::new(Reason::Internal, format!("the DPU names an impossible VF: {error}"));
    let id = FunctionId::from_numbers(controller, pf, vf);
    id.map(|id| VfIdentity { id, device: device.into() }).map_err(refused)
}

/// The device of a message's VF; empty without a VF.
pub(crate) fn device_of(vf: Option<&v1::Vf>) -> Device {
    vf.map(|vf| vf.device.as_str().into()).unwrap_or_default()
}

/// What all VFs of a PF have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfFacts {
    /// The PF's own device.
    pub device: Device,
    /// The PCI vendor id of the VFs, four hexadecimal digits.
    pub vendor_id: String,
    /// The PCI device id of the VFs, four hexadecimal digits.
    pub device_id: String,
}

/// The state of an unused VF's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnState {
    /// The link's name in the host's namespace.
    pub name: String,
    /// The MAC address. `None`: any.
    pub mac: Option<MacAddress>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The link's whole state. `None`: not observed yet.
    #[serde(default)]
    pub link_state: Option<LinkState>,
}

/// Why a VF cannot be reset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResetError {
    /// The VF is a kind of link that no program creates again.
    #[error(
        "the VF is a {0} link, which the agent cannot recreate: delete and recreate it by hand"
    )]
    Unsupported(String),
    /// The card or its driver refused.
    #[error(transparent)]
    Card(#[from] sriov::Error),
    /// The kernel refused a request.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// A VF without a link in the host's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherVf {
    /// The VF.
    pub identity: VfIdentity,
    /// Why its link is not in the host's namespace.
    pub whereabouts: Whereabouts,
}

/// Why a VF has no link in the host's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// The VF has no link in any namespace: a program such as a hypervisor gets it as a device.
    HandedOver(Handover),
    /// The VF has a network driver, so its link is in another namespace.
    Elsewhere,
    /// The VF has no driver.
    Unbound,
}

impl Whereabouts {
    /// Whether a pod or a program uses the VF.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::HandedOver(Handover::Open) | Self::Elsewhere)
    }
}

/// A VF's port on its PF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfPort {
    /// The PF's device.
    pub pf: Device,
    /// The VF's number on its PF.
    pub vf: u32,
}

impl PfPort {
    /// Finds the PF's link among `links`.
    #[must_use]
    pub fn link(&self, links: &[Link]) -> Option<Link> {
        links.iter().find(|link| link.parent_device.as_deref() == Some(self.pf.as_str())).cloned()
    }
}

/// The VF's place in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfPlacement {
    /// The VF's PF.
    pub pf: Device,
    /// The NUMA node of the card. `None`: unknown, or the machine has none.
    pub numa_node: Option<u32>,
}

/// Why a PF does not have the wanted number of VFs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvideError {
    /// The card's number of VFs is fixed.
    #[error("this card's number of VFs is fixed")]
    Fixed,
    /// The host has no such PF, or does not use it.
    #[error("this host has no PF of that number, or `vf_source.pfs` does not list it")]
    UnknownPf,
    /// The card or its driver refused, or VFs are in use.
    #[error(transparent)]
    Card(#[from] sriov::Error),
    /// The host's links cannot be listed.
    #[error(transparent)]
    Links(#[from] Error),
}

/// One kind of card: finds its VFs among the links and manages them.
pub trait VfSource: Debug + Send + Sync {
    /// Returns the identity of a link's VF. `None`: the link is no VF of this source.
    fn vf_of(&self, link: &Link) -> Option<VfIdentity>;

    /// Returns the unused state that the card prescribes for a VF, for VFs that were never observed unused. `None`: the
    /// card prescribes none.
    fn usual_state(&self, _vf: &VfIdentity) -> Option<OwnState> {
        None
    }

    /// Derives the unused state from a `link` that is unused now.
    fn first_state(&self, _vf: &VfIdentity, link: &Link) -> OwnState {
        let mac = link.permanent_mac.or(link.mac);
        OwnState { name: link.name.clone(), mac, mtu: link.mtu, link_state: None }
    }

    /// Returns what is known of the VF's PF.
    fn pf_of(&self, vf: &VfIdentity) -> PfFacts;

    /// Whether the card still has the VF.
    fn exists(&self, _device: &Device) -> bool {
        true
    }

    /// Lists the VFs that a PF has now. Empty where their number cannot be changed.
    fn vfs_of(&self, _pf: PfId) -> Vec<Device> {
        Vec::new()
    }

    /// Resets an unused VF and its `link` in the host's namespace: settings and upper devices are lost. The new link
    /// appears asynchronously.
    ///
    /// # Errors
    /// The card, its driver or the kernel refuses.
    fn reset_vf(&self, device: &Device, link: &Link, host: &mut Rtnl) -> Result<(), ResetError>;

    /// Lists the card's other VFs, for which `is_known` is false: their links are in other namespaces, or they have
    /// none.
    fn other_vfs(&self, _is_known: &dyn Fn(&Device) -> bool) -> Vec<OtherVf> {
        Vec::new()
    }

    /// Binds a VF without a driver: to the driver of its `driver_override`, or else to any that matches. The link
    /// appears in the host's namespace.
    ///
    /// # Errors
    /// The VF still has no driver.
    fn find_driver(&self, _device: &Device) -> Result<(), sriov::Error> {
        Ok(())
    }

    /// How the VF is handed over to programs as a device. `None`: it has a link.
    ///
    /// # Errors
    /// Sysfs cannot be read.
    fn handover(&self, _device: &Device) -> Result<Option<Handover>, sriov::Error> {
        Ok(None)
    }

    /// The VF's IOMMU group: the devices that a program gets together with it. `None`: no IOMMU confines the VF to the
    /// program's memory.
    ///
    /// # Errors
    /// Sysfs cannot be read.
    fn iommu_group(&self, _device: &Device) -> Result<Option<IommuGroup>, sriov::Error> {
        Ok(None)
    }

    /// The VF's place in the machine, as far as it is known.
    fn placement(&self, _device: &Device) -> VfPlacement {
        VfPlacement::default()
    }

    /// The VF's port on its PF, if the PF enforces a pod's settings. `None`: the DPU does.
    fn pf_port(&self, _device: &Device) -> Option<PfPort> {
        None
    }

    /// Whether a PF has another number of VFs than `count` and can be changed. Changes nothing.
    ///
    /// # Errors
    /// The change is impossible, for example because a VF of the PF is `in_use`.
    fn is_change_due(
        &self,
        _pf: PfId,
        _count: u32,
        _in_use: &[Device],
    ) -> Result<bool, ProvideError> {
        Err(ProvideError::Fixed)
    }

    /// Sets the PF's number of VFs unless one of them is `in_use`, and waits for their links. Returns whether anything
    /// changed.
    ///
    /// # Errors
    /// The PF still has another number of VFs.
    fn provide(&self, _pf: PfId, _count: u32, _in_use: &[Device]) -> Result<bool, ProvideError> {
        Err(ProvideError::Fixed)
    }
}

/// The MTU of a virtual card's unused VF, in bytes.
pub const OWN_MTU: u32 = 1500;

/// Yields the VFs among links.
pub fn vfs<'a>(
    source: &dyn VfSource,
    links: &'a [Link],
) -> impl Iterator<Item = (VfIdentity, &'a Link)> {
    links.iter().filter_map(|link| Some((source.vf_of(link)?, link)))
}

/// Why a handed-over VF is in use.
pub(crate) const OPEN: &str = "a program has it open";

/// Names what the host itself uses a VF's link for. `None`: nothing. Pass all links and addresses of the link's
/// namespace. A VF that returns from a pod has no master and no addresses, and its upper devices stay in the pod.
#[must_use]
pub fn use_by_host(link: &Link, links: &[Link], addresses: &[(u32, IpNetwork)]) -> Option<String> {
    if let Some(master) = link.master {
        return Some(format!("it is a port of link {master}"));
    }
    if let Some(other) = stacked_by_host(link, links) {
        return Some(format!("link {other} is an upper device of it"));
    }
    let mut own = addresses.iter().filter(|(index, _)| *index == link.index);
    // The kernel assigns link-local addresses by itself; they are no sign of use.
    let (_, address) = own.find(|(_, address)| !is_link_local(address.ip()))?;
    Some(format!("it has the address {address}"))
}

/// Kinds of links whose `IFLA_LINK` is a peer, not a lower device.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// The index of a link's lower device, in whatever namespace that is.
pub(crate) fn lower_of(link: &Link) -> Option<u32> {
    let kind = link.kind.as_deref().unwrap_or_default();
    link.peer.filter(|lower| *lower != 0 && !PAIRS.contains(&kind))
}

/// Whether a link of the host's namespace has a lower device there.
pub(crate) fn is_stacked_by_host(link: &Link) -> bool {
    link.peer_netns.is_none() && lower_of(link).is_some()
}

/// The name of an upper device of the link in the same namespace.
fn stacked_by_host<'a>(link: &Link, links: &'a [Link]) -> Option<&'a str> {
    let is_on_link =
        |other: &&Link| is_stacked_by_host(other) && lower_of(other) == Some(link.index);
    links.iter().find(is_on_link).map(|other| other.name.as_str())
}

/// The kernel gives every link that is up a link-local address.
const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Finds the VF's link among `links`.
#[must_use]
pub fn link_of<'a>(source: &dyn VfSource, links: &'a [Link], device: &Device) -> Option<&'a Link> {
    links.iter().find(|link| is(source, link, device))
}

/// Finds the VF's link, first by its expected name: identifying a link may read sysfs.
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

/// Finds the VF's link in a namespace: first by its expected name, then among all links.
///
/// # Errors
/// The kernel refuses the request.
pub fn find(
    source: &dyn VfSource,
    rtnl: &mut Rtnl,
    device: &Device,
    expected_name: Option<&str>,
) -> Result<Option<Link>, Error> {
    let expected = expected_name.map(|name| rtnl.link_by_name(name)).transpose()?.flatten();
    // The name is only a hint: another link may have it by now.
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
    fn vf_with_master_or_address_belongs_to_host() {
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
        assert!(used.starts_with("link v7 is an upper device"), "{used}");
        link.master = Some(3);
        assert!(use_by_host(&link, &[], &[]).unwrap().ends_with("port of link 3"));
    }
}
