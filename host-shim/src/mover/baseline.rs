//! A VF's state in the host's namespace, and the requests that restore it.

use netlink::{Link, LinkChange, MacAddress, Request, VfSettings};
use serde::{Deserialize, Serialize};

use crate::vf_source::OwnState;

/// The part of a VF's state that is restored whenever it returns to the host: what a move changes and what pods often
/// change. Any other difference is found by comparing the link's whole state, and the VF is then reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// The link's name.
    pub name: String,
    /// The MAC address.
    pub mac: Option<MacAddress>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The alternative names.
    pub alternative_names: Vec<String>,
    /// The alias (`IFLA_IFALIAS`).
    pub alias: Option<String>,
    /// Whether the link is promiscuous.
    pub is_promiscuous: bool,
    /// Whether the link receives all multicast frames.
    pub is_all_multicast: bool,
    /// The link's group.
    pub group: u32,
    /// The transmit queue's length in frames.
    pub queue_length: u32,
    /// The PF's settings for the VF. `None`: the DPU enforces them.
    pub port: Option<VfSettings>,
    /// Whether the VF is handed over as a device, for example by vfio. The other fields are then unused: it has no
    /// link.
    pub is_handed_over: bool,
}

impl From<&Link> for Baseline {
    fn from(link: &Link) -> Self {
        Self {
            name: link.name.clone(),
            mac: link.mac,
            mtu: link.mtu,
            alternative_names: link.alternative_names.clone(),
            alias: link.alias.clone(),
            is_promiscuous: link.is_promiscuous,
            is_all_multicast: link.is_all_multicast,
            group: link.group,
            queue_length: link.queue_length,
            port: None,
            is_handed_over: false,
        }
    }
}

impl Baseline {
    /// The state to restore for a link without a recorded one.
    pub(super) fn unrecorded(link: &Link, own: &OwnState) -> Self {
        Self {
            name: own.name.clone(),
            mac: own.mac.or(link.permanent_mac).or(link.mac),
            mtu: own.mtu,
            is_promiscuous: false,
            is_all_multicast: false,
            group: 0,
            ..Self::from(link)
        }
    }

    /// The requests that restore the link, in that order. Values that are right are not sent: the kernel notifies all
    /// listeners of each change.
    pub(super) fn restoring_requests(&self, link: &Link) -> Vec<Request<'static>> {
        let strange =
            link.alternative_names.iter().filter(|name| !self.alternative_names.contains(name));
        let lost =
            self.alternative_names.iter().filter(|name| !link.alternative_names.contains(name));
        let changes = self.restoring_changes(link);
        strange
            .map(|name| Request::delete_alternative_name(link.index, name))
            .chain(changes.iter().map(|change| Request::change_link(link.index, change)))
            .chain(lost.map(|name| Request::add_alternative_name(link.index, name)))
            .collect()
    }

    /// The changes in the order in which drivers accept them: some refuse a MAC address while the link is up, and an
    /// MTU while an XDP program is attached. Another link may have the name, so the rename comes last.
    fn restoring_changes(&self, link: &Link) -> Vec<LinkChange<'static>> {
        let change = LinkChange::new;
        let mut changes = Vec::new();
        changes.extend(link.is_up.then(|| change().down()));
        changes.extend(link.xdp.iter().map(|mode| change().without_xdp(*mode)));
        let mac = self.mac.filter(|mac| link.mac != Some(*mac));
        changes.extend(mac.map(|mac| change().mac(mac)));
        changes.extend((link.mtu != self.mtu).then(|| change().mtu(self.mtu)));
        let has_other_queue = link.queue_length != self.queue_length;
        changes.extend(has_other_queue.then(|| change().queue_length(self.queue_length)));
        changes.extend((link.group != self.group).then(|| change().group(self.group)));
        let promiscuous = (link.is_promiscuous != self.is_promiscuous)
            .then(|| change().promiscuous(self.is_promiscuous));
        changes.extend(promiscuous);
        let all_multicast = (link.is_all_multicast != self.is_all_multicast)
            .then(|| change().all_multicast(self.is_all_multicast));
        changes.extend(all_multicast);
        let alias = || change().alias(self.alias.clone().unwrap_or_default());
        changes.extend((link.alias != self.alias).then(alias));
        changes.extend((link.name != self.name).then(|| change().name(&self.name)));
        changes
    }
}
