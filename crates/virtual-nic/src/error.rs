//! Errors of the virtual card.

use std::{fmt, io};

use netlink::{Netns, NetnsError};

/// A namespace of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host's: it has the VFs.
    Host,
    /// The DPU's: it has the representors.
    Dpu,
    /// The network's: it has the far ends of the uplinks.
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

/// Why a card cannot be plugged in, unplugged or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The plan exceeds a limit.
    #[error("a card has at most {limit} {what}, not {wanted}")]
    TooMany {
        /// What exceeds it.
        what: &'static str,
        /// Requested number.
        wanted: u16,
        /// Largest number.
        limit: u16,
    },
    /// Host and DPU are the same namespace.
    #[error("host and DPU need two namespaces; both are {0}")]
    SameNetns(netlink::NetnsId),
    /// A card exists: it is running, or died and left links.
    #[error("a card is plugged in already: {link} in {side}; `virtual-nic unplug` removes it")]
    PluggedIn {
        /// One of its links.
        link: String,
        /// Namespace of the link.
        side: Side,
    },
    /// A name that the card needs is taken.
    #[error("the card needs the name {name}, but {side} has a link of that name")]
    NameTaken {
        /// The name.
        name: String,
        /// Namespace of the existing link.
        side: Side,
    },
    /// The kernel lacks netdevsim.
    #[error(
        "this kernel has no netdevsim: there is no {bus}; load its module, or plug a card of kind veth"
    )]
    NoNetdevsim {
        /// Path of the missing bus.
        bus: &'static str,
    },
    /// A card of kind netdevsim with a number of PFs other than one.
    #[error(
        "a card of kind netdevsim has one PF, because the kernel numbers each as PF 0; not {0}"
    )]
    OnePf(u16),
    /// The controller number is out of range.
    #[error("a card is controller 0 to {1} of its DPU, not {0}")]
    NoController(u32, u32),
    /// A card of kind netdevsim with another controller than 0.
    #[error(
        "a card of kind netdevsim is controller 0, because the kernel numbers each so; not {0}: plug a card of \
         kind veth"
    )]
    LocalController(u32),
    /// A kernel file cannot be read or written.
    #[error("cannot {doing}: {path}")]
    File {
        /// The operation.
        doing: String,
        /// Path of the file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A namespace does not exist.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
}

/// The namespaces of a card, which it keeps alive.
#[derive(Debug)]
pub struct Namespaces {
    /// Namespace of the VFs.
    pub host: Netns,
    /// Namespace of the representors.
    pub dpu: Netns,
    /// Namespace of the uplinks' far ends. `None`: the card has no uplinks.
    pub wire: Option<Netns>,
}

impl Namespaces {
    pub(crate) fn sides(&self) -> impl Iterator<Item = (Side, &Netns)> {
        let both = [(Side::Host, &self.host), (Side::Dpu, &self.dpu)];
        both.into_iter().chain(self.wire.iter().map(|wire| (Side::Wire, wire)))
    }
}
