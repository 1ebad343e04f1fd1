//! What programs a VF's port on the embedded switch: the driver's contract.

pub mod devlink;
mod link;
pub mod veth;

use std::{collections::BTreeMap, fmt};

use netlink::{LinkEvent, MacAddress, Traffic};
use vf_alloc::FunctionId;

pub(crate) use link::{LARGEST_PIECE, LONGEST_BURST, check_rate_tree, gone_is_done};

use crate::{
    driver::{Capability, Reading, Refused, Unsupported},
    model::{Label, PortSettings},
};

/// A VF's port on the DPU, as the kernel has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representor {
    /// The VF behind it.
    pub vf: FunctionId,
    /// Its link's index. Changes when a card makes it anew.
    pub index: u32,
    /// Its link's name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Its group and alias, as far as they are not the driver's own.
    pub label: Label,
    /// Its own MAC address, if it has one; not the VF's.
    pub mac: Option<MacAddress>,
    /// The index of the link that it is a port of. A fabric may have it without one.
    pub master: Option<u32>,
    /// Whether a rate limit of any kind is on it.
    pub is_limited: bool,
    /// Whether its card carries out filters of what comes in at it, and so may be told what to forward by itself.
    pub offloads_filters: bool,
    /// Whether its VF is the other end of a veth pair, from where frames may come past the filters at its ingress.
    pub is_veth: bool,
}

/// What a representor's link has carried and dropped since it was made, as the VF behind it sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// By the VF.
    pub sent: Traffic,
    /// By the VF.
    pub received: Traffic,
    /// How many packets on their way to the VF its limit has dropped.
    pub ingress_limit_drops: u64,
}

/// A card whose VFs the driver serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Which, as the kernel names it: `pci/0000:03:00.0`.
    pub device: String,
    /// How its eswitch works: `switchdev`.
    pub mode: String,
    /// How many VFs have a representor on it.
    pub representors: usize,
    /// What it can do.
    pub capabilities: Vec<Capability>,
}

/// A driver of an embedded switch.
///
/// Every method blocks on the kernel and is idempotent: what is already as wanted stays, and
/// clearing what is not there succeeds. A representor that vanished meanwhile makes a `set` fail and
/// a `clear` succeed. Links are addressed by index, never by name. A `port` that is given is the
/// representor as it was found before the first step of its programming.
pub trait Eswitch: fmt::Debug + Send + Sync + 'static {
    /// The driver's name, as in the configuration.
    fn name(&self) -> &'static str;

    /// Makes the cards as they were configured.
    ///
    /// # Errors
    /// When one of them refuses or is missing.
    fn prepare(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// The cards, as far as is known without asking the kernel. None, for a driver that does not know
    /// of cards.
    fn cards(&self) -> Vec<Card> {
        Vec::new()
    }

    /// The card that the VF is of, by [`Card::device`], as far as is known without asking the kernel. `None`, for a
    /// driver that does not know of cards.
    fn card_of(&self, _vf: FunctionId) -> Option<String> {
        None
    }

    /// Which VFs can't be served though their cards are there, one sentence each, as far as is known
    /// without asking the kernel.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether an event is about a representor, as far as is known without asking the kernel.
    fn concerns(&self, event: &LinkEvent) -> bool {
        matches!(event, LinkEvent::Missed)
    }

    /// Whether its cards are devlink's, whose events tell of them what those of links do not.
    fn has_devlink_cards(&self) -> bool {
        false
    }

    /// What kernel and card can do, as far as is known without asking the kernel.
    fn capabilities(&self) -> Vec<Capability>;

    /// Whether the VF's card can do its part of these settings, as far as is known without asking the kernel. Asked
    /// by [`crate::programmer::Programmer::check`] alone, as the fabric's checks are.
    ///
    /// # Errors
    /// The first setting that it can't be given.
    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported>;

    /// All representors there are, in one look.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn representors(&self) -> Result<Vec<Representor>, Refused>;

    /// The representor of `vf`. `None`: the card has made none (yet).
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused>;

    /// What each representor has carried, by index, in one look at all. Other links may be among them.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused>;

    /// Gives the VF its MAC address. Does nothing where the card leaves that to the host.
    ///
    /// # Errors
    /// When the card refuses.
    fn set_port_mac(&self, _port: &Representor, _mac: MacAddress) -> Result<(), Refused> {
        Ok(())
    }

    /// Takes the VF's MAC address away again.
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

    /// Whether its card limits what that VF sends, as far as is known without asking the kernel. Where it does not,
    /// the fabric does. Of a VF that is not known yet: whether there can be a card that does.
    fn limits_egress(&self, vf: FunctionId) -> bool;

    /// Limits the VF's rates: what it receives, and what it sends if its card does that; alone, and together with
    /// all of its network. Gives it its share of what is sent. A rate of 0 takes its limit, or the share, away.
    ///
    /// # Errors
    /// When the kernel or card refuses.
    fn set_rate(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused>;

    /// Takes all rate limits away, and the share.
    ///
    /// # Errors
    /// When the kernel or card refuses.
    fn clear_rate(&self, port: &Representor) -> Result<(), Refused>;

    /// Whether the VF has those rate limits, and that share.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    fn rate(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused>;

    /// Sets the representor's MTU in bytes.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused>;

    /// Gives the representor its group and alias, or takes them away. What [`Self::check`] refuses of them is not
    /// asked for.
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
