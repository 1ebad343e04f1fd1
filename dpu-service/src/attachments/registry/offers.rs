//! VFs that the registry offers to a host.

use vf_alloc::{PfId, Policy, VfOffer};

/// A VF offered to its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedVf {
    /// The VF's device on its host and the number of the offer.
    pub offer: VfOffer,
    /// The pools from which an attach without a chosen VF may get it.
    pub pools: Vec<OpenPool>,
    pub pf: PfId,
}

/// A pool that serves attaches without a chosen VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPool {
    pub name: String,
    /// The policy that selects the PF.
    pub policy: Policy,
}
