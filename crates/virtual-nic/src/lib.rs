//! A software DPU, plugged between the network namespaces of a host and a DPU.
//!
//! - VFs are recognised by their [aliases](vf_alloc::software_card), as real ones are by PCI address.
//! - When the namespace of a moved VF ends, the VF comes back to the host, as a real one does. [`Card`] adds this to
//!   veth pairs, so programs see the same events as with a real card.
//! - A DPU may have cards of several hosts, and a host those of several DPUs. Their controller numbers differ, and each
//!   card leaves the others' links alone.
//! - A VF is the outer end of a veth pair. The inner end stays with the card. For [kind](Kind) veth it is the
//!   representor. For kind netdevsim it is a wire to the representor of the kernel's simulated card, which has devlink
//!   ports.
//!
//! A card runs in one task and owns its netlink sockets; there are no locks.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod arguments;
mod card;
mod error;
mod netdevsim;
mod plan;
mod plug;
mod wires;

pub use card::Card;
pub use error::{CardError, Namespaces, Side};
pub use plan::{Kind, Plan};
pub use plug::unplug;
