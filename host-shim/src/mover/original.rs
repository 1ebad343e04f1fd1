//! What a VF is like in the host's namespace, and how it becomes that again.

use netlink::{Link, LinkChange, MacAddress, Request, VfSettings};
use serde::{Deserialize, Serialize};

use crate::vf_source::{OwnState, VfIdentity, VfSource};

/// What a VF is like in the host's namespace, to be restored when it comes back. All of it goes with
/// a link from namespace to namespace, and so from a pod to the next.
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

    fn has_queue_length_of(&self, link: &Link) -> bool {
        self.queue_length.is_none_or(|frames| frames == link.queue_length)
    }

    /// What of the VF's link is not as it was, if anything.
    pub(super) fn difference(&self, link: &Link) -> Option<String> {
        self.differences(link).into_iter().next()
    }

    /// All that is not as it was of the VF's link. It was switched off, and without XDP programs.
    pub(super) fn differences(&self, link: &Link) -> Vec<String> {
        let mut names = [link.alternative_names.clone(), self.alternative_names.clone()];
        names.iter_mut().for_each(|names| names.sort_unstable());
        let name = || format!("its name is {} instead of {}", link.name, self.name);
        let mtu = || format!("its MTU is {} instead of {}", link.mtu, self.mtu);
        let mac = || format!("its MAC address is {} instead of {}", text(link.mac), text(self.mac));
        let group = || format!("its group is {} instead of {}", link.group, self.group);
        let differences = [
            (link.name != self.name).then(name),
            link.is_up.then(|| "it is up".into()),
            (link.mac != self.mac).then(mac),
            (link.mtu != self.mtu).then(mtu),
            (names[0] != names[1]).then(|| "its alternative names are not restored".into()),
            (link.alias != self.alias).then(|| "its alias is not restored".into()),
            (link.is_promiscuous != self.is_promiscuous)
                .then(|| "its promiscuity is not restored".into()),
            (link.is_all_multicast != self.is_all_multicast)
                .then(|| "its reception of all multicast is not restored".into()),
            (link.group != self.group).then(group),
            (!self.has_queue_length_of(link)).then(|| "its queue length is not restored".into()),
            (!link.xdp.is_empty()).then(|| "an XDP program is attached to it".into()),
        ];
        differences.into_iter().flatten().collect()
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

fn text(mac: Option<MacAddress>) -> String {
    mac.map_or_else(|| "none".into(), |mac| mac.to_string())
}

/// All that is not as it should be of the link of a VF that nobody uses, and of which no record tells
/// what it was like.
#[must_use]
pub fn differences_from_own(link: &Link, own: &OwnState) -> Vec<String> {
    Original::unrecorded(link, own).differences(link)
}

/// Whether the link of a VF is as it should be while nobody uses it.
#[must_use]
pub fn is_clean(source: &dyn VfSource, vf: &VfIdentity, link: &Link) -> bool {
    source.own_state(vf).is_some_and(|own| differences_from_own(link, &own).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vf_source::{OWN_MTU, VirtualCard};

    /// Whatever the doctor tells of a VF, the agent restores before it gives the VF out.
    #[test]
    fn a_vf_is_clean_if_and_only_if_nothing_of_it_differs() {
        let change = |change: fn(&mut Link)| {
            let mut link = Link::default();
            (link.name, link.mtu) = ("p0v3".into(), OWN_MTU);
            link.alias = Some("virtual-nic d000:00:00.4 pf0vf3".into());
            change(&mut link);
            let vf = VirtualCard.vf_of(&link).unwrap();
            is_clean(&VirtualCard, &vf, &link)
        };
        assert!(change(|_| {}));
        assert!(!change(|link| link.name = "eth0".into()));
        assert!(!change(|link| link.is_up = true));
        assert!(!change(|link| link.is_promiscuous = true));
        assert!(!change(|link| link.is_all_multicast = true));
        assert!(!change(|link| link.group = 7));
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let text = r#"{"name":"p0v3","mac":null,"mtu":1500,"alternative_names":[],"alias":null}"#;
        let original: Original = serde_json::from_str(text).unwrap();
        assert_eq!((original.group, original.queue_length), (0, None));
        let mut link = Link::default();
        (link.name, link.mtu, link.queue_length) = ("p0v3".into(), 1500, 1000);
        assert_eq!(original.difference(&link), None);
        assert!(original.restoring_requests(&link).is_empty());
    }
}
