//! A DPU made of software, plugged between a host netns and a DPU netns.
//!
//! Its VFs are known by their [aliases](VirtualVf), as real ones are by PCI address, and a VF comes
//! back to the host when the namespace that it was moved to ends, as a real one does: that is what
//! a [`Card`] adds to veth pairs. So programs meet the same events as with a real card.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod alias;
mod card;
mod error;
mod plan;
mod plug;

pub use alias::{
    MANAGEMENT_ALIAS, ParseAliasError, PciAddress, RepresentorAlias, UplinkAlias, VirtualVf,
    is_of_card,
};
pub use card::Card;
pub use error::{CardError, Namespaces, Side};
pub use plan::{Kind, Plan};
pub use plug::unplug;
