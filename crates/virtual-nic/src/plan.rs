//! What a card is to have, and what its parts are called.

use netlink::MacAddress;
use vf_alloc::{PfId, VfId};

use crate::{CardError, Namespaces, Side};

const PF_LIMIT: u16 = 16;
const VF_LIMIT: u16 = 4096;

/// A VF's first MTU, in bytes.
pub(crate) const FIRST_MTU: u32 = 1500;

/// The name of both ends of the management link.
pub(crate) const MANAGEMENT_NAME: &str = "mgmt0";

/// What the links of a card are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// veth pairs: one end is the VF, the other its representor.
    #[default]
    Veth,
}

/// What a card is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What its links are made of.
    pub kind: Kind,
    /// PFs, at most 16.
    pub pfs: u16,
    /// VFs of each PF, at most 4096.
    pub vfs: u16,
    /// Whether it has a management link.
    pub management: bool,
}

impl Plan {
    /// How many VFs it has in all.
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
        Ok(())
    }

    pub(crate) fn pf_ids(&self) -> impl Iterator<Item = PfId> + use<> {
        (0..self.pfs).map(PfId::local)
    }

    pub(crate) fn vf_ids(&self) -> impl Iterator<Item = VfId> + use<> {
        let vfs = self.vfs;
        self.pf_ids().flat_map(move |pf| (0..vfs).map(move |vf| VfId { pf, vf }))
    }

    /// All names that the card needs when it is plugged in.
    pub(crate) fn names(&self, namespaces: &Namespaces) -> Vec<(Side, String)> {
        let mut names = Vec::new();
        for id in self.vf_ids() {
            names.push((Side::Host, vf_name(id)));
            names.push((Side::Dpu, representor_name(id)));
        }
        if self.management {
            names.extend([Side::Host, Side::Dpu].map(|side| (side, MANAGEMENT_NAME.to_owned())));
        }
        if namespaces.wire.is_some() {
            for id in self.pf_ids() {
                names.push((Side::Dpu, id.to_string()));
                names.push((Side::Wire, wire_name(id)));
            }
        }
        names
    }
}

/// A VF's name on the host, while no pod has given it another.
pub(crate) fn vf_name(id: VfId) -> String {
    format!("{}v{}", id.pf, id.vf)
}

/// A representor's name, for good.
pub(crate) fn representor_name(id: VfId) -> String {
    id.to_string()
}

/// The name of the far end of an uplink.
pub(crate) fn wire_name(id: PfId) -> String {
    format!("wire{}", id.pf)
}

/// A VF's first MAC address: the same whenever the card is plugged into this host, and another on
/// each host. Locally administered.
pub(crate) fn first_mac(id: VfId, namespaces: &Namespaces) -> MacAddress {
    let [.., host_high, host_low] = namespaces.host.id().inode.to_be_bytes();
    let [.., pf] = id.pf.pf.to_be_bytes();
    let [vf_high, vf_low] = id.vf.to_be_bytes();
    MacAddress([0x06, host_high, host_low, pf, vf_high, vf_low])
}
