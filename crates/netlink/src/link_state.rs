//! The comparable state of a link.
//!
//! [`LinkState`] records every setting as text, including those that this crate does not interpret. A pod can change
//! any of them, and a driver may have settings that no list here names. The host's agent compares the state of a
//! returned VF with its baseline.

mod aspects;
mod ethtool;
mod link;
mod programs;
mod sysfs;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use sysfs::NetSysfs;

use crate::{Error, Link, MacAddress, Netns, Rtnl};
use aspects::{Aspects, differences};

/// The state of a link: each aspect by name, as text. Counters and momentary values such as index, carrier and up state
/// are left out.
///
/// The state has parts: the kernel's link description, the driver's settings (ethtool), files in sysfs, and tcx
/// programs. A part that cannot be read is missing and is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkState {
    parts: BTreeMap<Part, Aspects>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// Attributes of `RTM_GETLINK`.
    Link,
    /// The driver's settings, read by the ethtool family.
    Ethtool,
    /// Files of the link and its queues.
    Sysfs,
    /// Programs attached by tcx.
    Programs,
}

/// Reads the states of a namespace's links. Its sockets keep the namespace alive.
#[derive(Debug)]
pub struct LinkStateReader<'a> {
    netns: &'a Netns,
    rtnl: Rtnl,
    /// `None`: the kernel has no ethtool family.
    ethtool: Option<ethtool::Ethtool>,
    sysfs: Option<&'a NetSysfs>,
}

impl LinkState {
    /// The state that a link's description alone contains.
    #[must_use]
    pub fn of_link(link: &Link) -> Self {
        Self { parts: [(Part::Link, link::aspects(link))].into() }
    }

    /// Derives the state that an unused link should have: this name, MAC address and MTU, ARP and multicast on, no
    /// extra reception, no programs.
    #[must_use]
    pub fn as_unused(mut self, name: &str, mac: Option<MacAddress>, mtu: u32) -> Self {
        let link = self.parts.entry(Part::Link).or_default();
        link::make_unused(link, name, mac, mtu);
        self
    }

    /// Lists the aspects that differ from `baseline`, each in a few words. A part that only one side has is not
    /// compared. The same applies to aspects that the driver refused to report for `baseline`.
    #[must_use]
    pub fn differences_from(&self, baseline: &Self) -> Vec<String> {
        let parts = self.parts.iter();
        let both = parts.filter_map(|(part, now)| Some((now, baseline.parts.get(part)?)));
        both.flat_map(|(now, was)| differences(now, was)).collect()
    }
}

impl<'a> LinkStateReader<'a> {
    /// Opens a reader in `netns`. `sysfs` must show the same namespace; without it, files are not compared.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or may not enter the namespace.
    pub fn open(netns: &'a Netns, sysfs: Option<&'a NetSysfs>) -> Result<Self, Error> {
        let (rtnl, ethtool) = netns.run(|| (Rtnl::open(), ethtool::Ethtool::open()))?;
        Ok(Self { netns, rtnl: rtnl?, ethtool: ethtool?, sysfs })
    }

    /// Reads a link and its state. `None`: the link does not exist.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn state_of(&mut self, index: u32) -> Result<Option<(Link, LinkState)>, Error> {
        let Some(link) = self.rtnl.link_by_index(index)? else { return Ok(None) };
        let mut state = LinkState::of_link(&link);
        let parts = [
            (Part::Ethtool, self.ethtool.as_mut().and_then(|ethtool| ethtool.aspects(index))),
            (Part::Sysfs, self.sysfs.and_then(|sysfs| sysfs.aspects(&link))),
            (Part::Programs, self.netns.run(|| programs::aspects(index))?),
        ];
        for (part, aspects) in parts {
            state.parts.extend(aspects.map(|aspects| (part, aspects)));
        }
        Ok(Some((link, state)))
    }
}

#[cfg(test)]
mod tests {
    use super::{aspects::ON, *};

    #[test]
    fn missing_parts_are_not_compared() {
        let mut link = Link { mtu: 1500, ..Link::default() };
        let baseline = LinkState::of_link(&link);
        link.mtu = 1400;
        let mut now = LinkState::of_link(&link);
        let gone = Aspects::from([("ethtool feature x".to_owned(), ON.to_owned())]);
        now.parts.insert(Part::Ethtool, gone);
        assert_eq!(now.differences_from(&baseline), ["its MTU is 1400 instead of 1500"]);
    }

    #[test]
    fn link_state_survives_serialisation() {
        let mut link = Link::default();
        (link.name, link.alias) = ("p0v3".into(), Some("a".into()));
        let state = LinkState::of_link(&link);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<LinkState>(&text).unwrap(), state);
    }
}
