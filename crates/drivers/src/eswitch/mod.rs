//! The contract of an eswitch driver, which programs VFs' ports on the embedded switch.

pub mod devlink;
mod link;
pub mod veth;

use std::{collections::BTreeMap, fmt};

use netlink::{LinkEvent, MacAddress, Traffic};
use vf_alloc::FunctionId;

pub use link::{LARGEST_PIECE, LONGEST_BURST, check_rate_tree};

use crate::driver::{Capability, Reading, Refused, Unsupported};
use model::{Label, PortSettings};

/// A VF's port on the DPU, as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representor {
    /// The VF behind it.
    pub vf: FunctionId,
    /// The index of its link. Changes when the card creates the link again.
    pub index: u32,
    /// The name of its link.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Its group and alias, unless the driver uses them itself.
    pub label: Label,
    /// Its own MAC address, if it has one. This is not the VF's address.
    pub mac: Option<MacAddress>,
    /// The index of its master. A fabric can have it as a port without a master.
    pub master: Option<u32>,
    /// Whether any rate limit is set on it.
    pub is_limited: bool,
    /// Whether its card carries out ingress filters, so that filters can limit what the card forwards in hardware.
    pub offloads_filters: bool,
    /// Whether its VF is the other end of a veth pair, which can send frames that bypass the filters at its
    /// ingress.
    pub is_veth: bool,
}

/// The traffic of a representor's link since the link was created, from the VF's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Traffic that the VF sent.
    pub sent: Traffic,
    /// Traffic that the VF received.
    pub received: Traffic,
    /// The packets to the VF that its limit has dropped.
    pub ingress_limit_drops: u64,
}

/// A card whose VFs the driver serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The kernel's name of the card: `pci/0000:03:00.0`.
    pub device: String,
    /// The mode of its eswitch: `switchdev`.
    pub mode: String,
    /// How many of its VFs have a representor.
    pub representors: usize,
    /// What it supports.
    pub capabilities: Vec<Capability>,
}

/// A driver of an embedded switch.
///
/// Every method blocks on the kernel unless it says otherwise, and is idempotent: a `set` leaves correct state
/// unchanged, and a `clear` of something absent succeeds. For a representor that has vanished, a `set` fails and a
/// `clear` succeeds. Links are addressed by index, never by name. A `port` argument is the representor as it was
/// before the first step of its programming.
pub trait Eswitch: fmt::Debug + Send + Sync + 'static {
    /// The driver's name in the configuration.
    fn name(&self) -> &'static str;

    /// Puts the cards into their configured state.
    ///
    /// # Errors
    /// When a card refuses or is missing.
    fn prepare(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// The cards. Does not ask the kernel. Empty for a driver that does not know of cards.
    fn cards(&self) -> Vec<Card> {
        Vec::new()
    }

    /// The [`Card::device`] of the VF's card. Does not ask the kernel. `None` for a driver that does not know of
    /// cards.
    fn card_of(&self, _vf: FunctionId) -> Option<String> {
        None
    }

    /// One sentence per group of VFs that can't be served although their cards are there. Does not ask the kernel.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether an event concerns a representor. Does not ask the kernel.
    fn concerns(&self, event: &LinkEvent) -> bool {
        matches!(event, LinkEvent::Missed)
    }

    /// Whether the driver's cards are devlink devices, whose events report changes that link events do not.
    fn has_devlink_cards(&self) -> bool {
        false
    }

    /// What kernel and card support. Does not ask the kernel.
    fn capabilities(&self) -> Vec<Capability>;

    /// Checks the part of the settings that the VF's card carries out. Does not ask the kernel. Only
    /// [`crate::programmer::Programmer::check`] calls it.
    ///
    /// # Errors
    /// The first setting that the card does not support.
    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported>;

    /// All representors, read in one pass.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn representors(&self) -> Result<Vec<Representor>, Refused>;

    /// The representor of `vf`. `None`: the card has not created one.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused>;

    /// The traffic of each representor, by index, read in one pass. The result can contain other links.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused>;

    /// Sets the VF's MAC address. Does nothing where the host sets it.
    ///
    /// # Errors
    /// When the card refuses.
    fn set_port_mac(&self, _port: &Representor, _mac: MacAddress) -> Result<(), Refused> {
        Ok(())
    }

    /// Resets the VF's MAC address.
    ///
    /// # Errors
    /// When the card refuses.
    fn clear_port_mac(&self, _port: &Representor) -> Result<(), Refused> {
        Ok(())
    }

    /// Whether the VF has that MAC address.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn port_mac(&self, _port: &Representor, _mac: MacAddress) -> Result<Reading, Refused> {
        Ok(Reading::in_place("set by the host"))
    }

    /// Whether the card limits what the VF sends. Where it does not, the fabric does. Does not ask the kernel. For
    /// an unknown VF: whether any card could.
    fn limits_egress(&self, vf: FunctionId) -> bool;

    /// Limits the VF's rates: what it receives, and what it sends if its card limits that, alone and together with
    /// its network. Sets its guaranteed share. A rate of 0 removes the limit or share.
    ///
    /// # Errors
    /// When the kernel or card refuses.
    fn set_rate(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Removes all rate limits and the share.
    ///
    /// # Errors
    /// When the kernel or card refuses.
    fn clear_rate(&self, port: &Representor) -> Result<(), Refused>;

    /// Whether the VF has these rate limits and this share.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn rate(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused>;

    /// Sets the representor's MTU in bytes.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused>;

    /// Sets or clears the representor's group and alias. Callers pass only labels that [`Self::check`] accepts.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_label(&self, port: &Representor, label: &Label) -> Result<(), Refused>;

    /// Sets the representor administratively up or down.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused>;
}
