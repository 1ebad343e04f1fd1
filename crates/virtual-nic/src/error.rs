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
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum CardError {
    #[error("a card has at most {limit} {what}, not {wanted}")]
    TooMany { what: &'static str, wanted: u16, limit: u16 },
    #[error("host and DPU need two namespaces; both are {0}")]
    SameNetns(netlink::NetnsId),
    /// A card exists: it is running, or died and left links.
    #[error("a card is plugged in already: {link} in {side}; `virtual-nic unplug` removes it")]
    PluggedIn { link: String, side: Side },
    #[error("the card needs the name {name}, but {side} has a link of that name")]
    NameTaken { name: String, side: Side },
    #[error(
        "this kernel has no netdevsim: there is no {bus}; load its module, or plug a card of kind veth"
    )]
    NoNetdevsim { bus: &'static str },
    #[error(
        "a card of kind netdevsim has one PF, because the kernel numbers each as PF 0; not {0}"
    )]
    OnePf(u16),
    #[error("a card is controller 0 to {1} of its DPU, not {0}")]
    NoController(u32, u32),
    #[error(
        "a card of kind netdevsim is controller 0, because the kernel numbers each so; not {0}: plug a card of \
         kind veth"
    )]
    LocalController(u32),
    #[error("cannot {doing}: {path}")]
    File { doing: String, path: String, source: io::Error },
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
