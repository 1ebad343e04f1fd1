//! XDP programs of links.

use netlink_packet_route::link::{LinkAttribute, LinkXdp};

/// Where a link's XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the kernel, with any driver.
    Generic,
    /// In the driver.
    Driver,
    /// On the card.
    Hardware,
}

impl XdpMode {
    fn flag(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Driver => 1 << 2,
            Self::Hardware => 1 << 3,
        }
    }
}

pub(crate) fn attached(attributes: &[LinkXdp]) -> Vec<XdpMode> {
    let mode = |attribute: &LinkXdp| match attribute {
        LinkXdp::SkbProgId(_) => Some(XdpMode::Generic),
        LinkXdp::DrvProgId(_) => Some(XdpMode::Driver),
        LinkXdp::HwProgId(_) => Some(XdpMode::Hardware),
        _ => None,
    };
    attributes.iter().filter_map(mode).collect()
}

/// Detaches in one mode, because the kernel handles one mode at a time. Descriptor -1 means no program.
pub(crate) fn detachment(mode: XdpMode) -> LinkAttribute {
    LinkAttribute::Xdp(vec![LinkXdp::Fd(-1), LinkXdp::Flags(mode.flag())])
}
