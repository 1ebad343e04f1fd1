//! The plan of a card: its size and the names of its links.

use clap::ValueEnum;
use netlink::MacAddress;
use vf_alloc::{
    FunctionId, PfId,
    software_card::{CardLink, PF_LIMIT, pf_number},
};

use crate::{CardError, Namespaces, Side};

const CONTROLLER_LIMIT: u32 = 15;
const VF_LIMIT: u16 = 4096;

/// Initial MTU of a VF, in bytes.
pub(crate) const FIRST_MTU: u32 = 1500;

/// Technique of a card's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Veth pairs, which any kernel has.
    // One end is the VF, the other its representor.
    Veth,
    /// The kernel's simulated switchdev card, with devlink ports, one PF, and always an uplink `p0`. Needs the kernel
    /// module netdevsim, and debugfs for more than 4 VFs.
    // Redirections join its representors to the VFs' veth pairs.
    Netdevsim,
}

impl Kind {
    /// Name of the inner end of a VF's pair.
    pub(crate) fn inner_name(self, id: FunctionId) -> String {
        match self {
            Self::Veth => id.to_string(),
            Self::Netdevsim => format!("wire-{id}"),
        }
    }

    /// Alias of the inner end of a VF's pair.
    pub(crate) const fn inner_link(self, id: FunctionId) -> CardLink {
        match self {
            Self::Veth => CardLink::Representor(id),
            Self::Netdevsim => CardLink::Wire(id),
        }
    }

    /// Name of the inner end of an uplink's pair.
    pub(crate) fn inner_uplink_name(self, id: PfId) -> String {
        match self {
            Self::Veth => uplink_name(id),
            Self::Netdevsim => format!("wire-{id}"),
        }
    }

    /// Alias of the inner end of an uplink's pair.
    pub(crate) const fn inner_uplink(self, id: PfId) -> CardLink {
        match self {
            Self::Veth => CardLink::Uplink(id),
            Self::Netdevsim => CardLink::UplinkWire(id),
        }
    }
}

/// Size and kind of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Technique of the links.
    pub kind: Kind,
    /// Number of the host's controller on the DPU, at most 15. Cards of one host, or of one DPU, need different
    /// numbers.
    pub controller: u32,
    /// Number of PFs, at most 16.
    pub pfs: u16,
    /// Number of VFs of each PF, at most 4096.
    pub vfs: u16,
    /// Whether the card has a management link.
    pub management: bool,
    /// Whether VFs complete the checksums of what they send, as a real card does. On a veth pair the kernel leaves this
    /// to the receiver, but Open vSwitch's userspace datapath does not do it.
    pub whole_checksums: bool,
}

impl Plan {
    /// Number of VFs of all PFs.
    #[must_use]
    pub fn total_vfs(&self) -> u32 {
        u32::from(self.pfs) * u32::from(self.vfs)
    }

    pub(crate) fn check(&self) -> Result<(), CardError> {
        let limits = [("PFs", self.pfs, PF_LIMIT), ("VFs for each PF", self.vfs, VF_LIMIT)];
        for (what, wanted, limit) in limits {
            if wanted > limit {
                return Err(CardError::TooMany { what, wanted, limit });
            }
        }
        if self.controller > CONTROLLER_LIMIT {
            return Err(CardError::NoController(self.controller, CONTROLLER_LIMIT));
        }
        match (self.kind, self.pfs, self.controller) {
            (Kind::Veth, ..) | (Kind::Netdevsim, 1, 0) => Ok(()),
            (Kind::Netdevsim, 1, controller) => Err(CardError::LocalController(controller)),
            (Kind::Netdevsim, pfs, _) => Err(CardError::OnePf(pfs)),
        }
    }

    pub(crate) fn pf_ids(&self) -> impl Iterator<Item = PfId> + use<> {
        let controller = self.controller;
        (0..self.pfs).map(move |pf| PfId { controller, pf })
    }

    pub(crate) fn vf_ids(&self) -> impl Iterator<Item = FunctionId> + use<> {
        let vfs = self.vfs;
        self.pf_ids().flat_map(move |pf| (0..vfs).map(move |vf| FunctionId { pf, vf }))
    }

    /// All names of links that the card needs.
    pub(crate) fn names(&self, namespaces: &Namespaces) -> Vec<(Side, String)> {
        let mut names = Vec::new();
        for id in self.vf_ids() {
            names.push((Side::Host, vf_name(id)));
            names.push((Side::Dpu, self.kind.inner_name(id)));
        }
        if self.management {
            let name = management_name(self.controller);
            names.extend([Side::Host, Side::Dpu].map(|side| (side, name.clone())));
        }
        for id in self.pf_ids() {
            if self.kind == Kind::Netdevsim {
                names.push((Side::Dpu, uplink_name(id)));
            }
            if namespaces.wire.is_some() {
                names.push((Side::Dpu, self.kind.inner_uplink_name(id)));
                names.push((Side::Wire, wire_name(id)));
            }
        }
        names
    }
}

/// Name of both ends of the management link.
pub(crate) fn management_name(controller: u32) -> String {
    format!("mgmt{controller}")
}

/// Initial name of a VF on the host.
pub(crate) fn vf_name(id: FunctionId) -> String {
    format!("{}v{}", id.pf, id.vf)
}

pub(crate) fn uplink_name(id: PfId) -> String {
    id.to_string()
}

/// Name of an uplink's far end.
pub(crate) fn wire_name(id: PfId) -> String {
    format!("wire{}", id.pf)
}

/// Initial MAC address of a VF, locally administered. It is the same each time the card is plugged into this host, and
/// differs between hosts.
pub(crate) fn first_mac(id: FunctionId, namespaces: &Namespaces) -> MacAddress {
    let [.., host_high, host_low] = namespaces.host.id().inode.to_be_bytes();
    let [.., pf] = pf_number(id.pf).to_be_bytes();
    let [vf_high, vf_low] = id.vf.to_be_bytes();
    MacAddress([0x06, host_high, host_low, pf, vf_high, vf_low])
}
