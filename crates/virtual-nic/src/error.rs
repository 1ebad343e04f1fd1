//! Why a card can't be plugged in.

use std::{fmt, io};

use netlink::{Netns, NetnsError};

/// One of the namespaces that a card is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the VFs are.
    Host,
    /// Where their representors are.
    Dpu,
    /// Where the far ends of the uplinks are.
    Wire,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Host => "the host's namespace",
            Self::Dpu => "the DPU's namespace",
            Self::Wire => "the namespace of the wires",
        })
    }
}

/// Why a card can't be plugged in, pulled out or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// More than a card has.
    #[error("a card has at most {limit} {what}, not {wanted}")]
    TooMany {
        /// What is too many.
        what: &'static str,
        /// How many were wanted.
        wanted: u16,
        /// How many there can be.
        limit: u16,
    },
    /// Both ends in one place.
    #[error("host and DPU need two namespaces; both are {0}")]
    SameNetns(netlink::NetnsId),
    /// There is a card, running or left by one that died.
    #[error("a card is plugged in already: {link} in {side}; `virtual-nic unplug` removes it")]
    PluggedIn {
        /// A link of it.
        link: String,
        /// Where.
        side: Side,
    },
    /// A name that the card needs is in use.
    #[error("the card needs the name {name}, but {side} has a link of that name")]
    NameTaken {
        /// The name.
        name: String,
        /// Where.
        side: Side,
    },
    /// A card of kind netdevsim on a kernel without it.
    #[error(
        "this kernel has no netdevsim: there is no {bus}; load its module, or plug a card of kind veth"
    )]
    NoNetdevsim {
        /// Where it would be.
        bus: &'static str,
    },
    /// A card of kind netdevsim with more or fewer PFs than the kernel can tell apart.
    #[error("a card of kind netdevsim has one PF, for the kernel calls each the PF 0; not {0}")]
    OnePf(u16),
    /// A number that no controller has.
    #[error("a card is controller 0 to {1} of its DPU, not {0}")]
    NoController(u32, u32),
    /// A card of kind netdevsim of another controller than the kernel's representors are of.
    #[error(
        "a card of kind netdevsim is controller 0, for the kernel calls each so; not {0}: plug a card of \
         kind veth"
    )]
    LocalController(u32),
    /// A file of the kernel's that could not be read or written.
    #[error("cannot {doing}: {path}")]
    File {
        /// What for.
        doing: String,
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// There is no such namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
}

/// The namespaces that a card is plugged into, kept alive by it.
#[derive(Debug)]
pub struct Namespaces {
    /// Where the VFs are.
    pub host: Netns,
    /// Where their representors are.
    pub dpu: Netns,
    /// Where the far ends of the uplinks are. `None`: the card has no uplinks.
    pub wire: Option<Netns>,
}

impl Namespaces {
    pub(crate) fn sides(&self) -> impl Iterator<Item = (Side, &Netns)> {
        let both = [(Side::Host, &self.host), (Side::Dpu, &self.dpu)];
        both.into_iter().chain(self.wire.iter().map(|wire| (Side::Wire, wire)))
    }
}
