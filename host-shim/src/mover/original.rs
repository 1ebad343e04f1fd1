//! What a VF is like in the host's namespace, and how it becomes that again.

use netlink::{Link, LinkChange, MacAddress, Request, VfSettings};
use serde::{Deserialize, Serialize};

use crate::vf_source::OwnState;

/// What is restored of a VF when it comes back to the host's namespace: what a move needs, and what
/// pods change for good reasons. All else that a pod can change is found by the VF's portrait, and the
/// VF then made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: Option<MacAddress>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its other names.
    pub alternative_names: Vec<String>,
    /// Its alias.
    pub alias: Option<String>,
    /// It receives frames for every address.
    #[serde(default)]
    pub is_promiscuous: bool,
    /// It receives all multicast frames.
    #[serde(default)]
    pub is_all_multicast: bool,
    /// Its group.
    #[serde(default)]
    pub group: u32,
    /// How many frames may wait to be sent. `None`: not known, as in records of earlier versions.
    #[serde(default)]
    pub queue_length: Option<u32>,
    /// What its PF made of it. `None`: that is the DPU's business.
    #[serde(default)]
    pub port: Option<VfSettings>,
    /// It is handed over to programs as a device, and has no link of which the rest tells.
    #[serde(default)]
    pub is_handed_over: bool,
}

impl From<&Link> for Original {
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
            queue_length: Some(link.queue_length),
            port: None,
            is_handed_over: false,
        }
    }
}

impl Original {
    /// What the VF of a link is to be like where nothing tells what it was.
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

    /// What the kernel is to be asked for to restore the link, in that order. What is right already
    /// is not asked for: each change is told to all who watch links.
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

    /// First what the rest may depend on: some drivers refuse a MAC address while up, and a MTU
    /// while an XDP program is attached. The name may be taken by another link, so it comes last.
    fn restoring_changes(&self, link: &Link) -> Vec<LinkChange<'static>> {
        let change = LinkChange::new;
        let mut changes = Vec::new();
        changes.extend(link.is_up.then(|| change().down()));
        changes.extend(link.xdp.iter().map(|mode| change().without_xdp(*mode)));
        let mac = self.mac.filter(|mac| link.mac != Some(*mac));
        changes.extend(mac.map(|mac| change().mac(mac)));
        changes.extend((link.mtu != self.mtu).then(|| change().mtu(self.mtu)));
        let queue_length = self.queue_length.filter(|frames| link.queue_length != *frames);
        changes.extend(queue_length.map(|frames| change().queue_length(frames)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let text = r#"{"name":"p0v3","mac":null,"mtu":1500,"alternative_names":[],"alias":null}"#;
        let original: Original = serde_json::from_str(text).unwrap();
        assert_eq!((original.group, original.queue_length), (0, None));
        let mut link = Link::default();
        (link.name, link.mtu, link.queue_length) = ("p0v3".into(), 1500, 1000);
        assert!(original.restoring_requests(&link).is_empty());
    }
}
