//! A DPU made of software, plugged between a host netns and a DPU netns.
//!
//! Its VFs are known by their [aliases](VirtualVf), as real ones are by PCI address, and a VF comes
//! back to the host when the namespace that it was moved to ends, as a real one does: that is what
//! a [`Card`] adds to veth pairs. So programs meet the same events as with a real card.
//!
//! A DPU may have several cards, a host each, and a host several, a DPU each: they differ in their
//! controller, and each leaves the others' links alone.
//!
//! Each VF is one end of a veth pair; the other, the inner end, stays with the card. In a card of
//! [kind](Kind) veth the inner end is the representor. In one of kind netdevsim it is a wire to the
//! representor, which the kernel's simulated card has made, with its devlink port.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod alias;
pub mod arguments;
mod card;
mod error;
mod netdevsim;
mod plan;
mod plug;
mod wires;

pub use alias::{
    ParseAliasError, PciAddress, RepresentorAlias, UplinkAlias, VirtualVf, controller_of,
};
pub(crate) use alias::{UplinkWireAlias, WireAlias, parsed, vf_of_inner};
pub use card::Card;
pub use error::{CardError, Namespaces, Side};
pub use plan::{Kind, Plan};
pub use plug::unplug;
