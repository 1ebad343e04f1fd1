//! What a link is like, taken as a whole: so that nobody has to know all that can be set on one.

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

/// What a link is like: each aspect by name, as text. Counters and what names the moment, such as an
/// index or a carrier, is left out, and so is whether it is up.
///
/// It has parts: what the kernel describes links with, the driver's settings, the queues' and the
/// programs that frames are handed to. A part that can't be read here is missing, and then nothing
/// of it is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Portrait {
    parts: BTreeMap<Part, Aspects>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// `RTM_GETLINK`
    Link,
    /// The driver's, by ethtool's family.
    Ethtool,
    /// Files of the link and of its queues.
    Sysfs,
    /// Programs of tcx.
    Programs,
}

/// What takes portraits of the links of a namespace. It keeps the namespace alive.
#[derive(Debug)]
pub struct Painter<'a> {
    netns: &'a Netns,
    rtnl: Rtnl,
    /// `None`: the kernel has no such family.
    ethtool: Option<ethtool::Ethtool>,
    sysfs: Option<&'a NetSysfs>,
}

impl Portrait {
    /// What the description of a link alone tells.
    #[must_use]
    pub fn of_link(link: &Link) -> Self {
        Self { parts: [(Part::Link, link::aspects(link))].into() }
    }

    /// The portrait as it is to be of a link that nobody uses: with these, able to send to all and to
    /// ask for addresses, told to receive only what is for it, and free of programs.
    #[must_use]
    pub fn as_unused(mut self, name: &str, mac: Option<MacAddress>, mtu: u32) -> Self {
        let link = self.parts.entry(Part::Link).or_default();
        link::make_unused(link, name, mac, mtu);
        self
    }

    /// All that is not as in the `original`, each in a few words. What only one of both has a part of
    /// is not compared, and neither is what a driver refused to tell for the original.
    #[must_use]
    pub fn differences_from(&self, original: &Self) -> Vec<String> {
        let parts = self.parts.iter();
        let both = parts.filter_map(|(part, now)| Some((now, original.parts.get(part)?)));
        both.flat_map(|(now, was)| differences(now, was)).collect()
    }
}

impl<'a> Painter<'a> {
    /// What takes portraits in a namespace. `sysfs` is that of the same namespace; without it, files
    /// are not looked at.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open(netns: &'a Netns, sysfs: Option<&'a NetSysfs>) -> Result<Self, Error> {
        let (rtnl, ethtool) = netns.run(|| (Rtnl::open(), ethtool::Ethtool::open()))?;
        Ok(Self { netns, rtnl: rtnl?, ethtool: ethtool?, sysfs })
    }

    /// A link as it is now, and its portrait. `None`: there is no such link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn portrait(&mut self, index: u32) -> Result<Option<(Link, Portrait)>, Error> {
        let Some(link) = self.rtnl.link_by_index(index)? else { return Ok(None) };
        let mut portrait = Portrait::of_link(&link);
        let parts = [
            (Part::Ethtool, self.ethtool.as_mut().and_then(|ethtool| ethtool.aspects(index))),
            (Part::Sysfs, self.sysfs.and_then(|sysfs| sysfs.aspects(&link))),
            (Part::Programs, self.netns.run(|| programs::aspects(index))?),
        ];
        for (part, aspects) in parts {
            portrait.parts.extend(aspects.map(|aspects| (part, aspects)));
        }
        Ok(Some((link, portrait)))
    }
}

#[cfg(test)]
mod tests {
    use super::{aspects::ON, *};

    #[test]
    fn parts_that_one_of_both_lacks_are_not_compared() {
        let mut link = Link { mtu: 1500, ..Link::default() };
        let original = Portrait::of_link(&link);
        link.mtu = 1400;
        let mut now = Portrait::of_link(&link);
        let gone = Aspects::from([("ethtool feature x".to_owned(), ON.to_owned())]);
        now.parts.insert(Part::Ethtool, gone);
        assert_eq!(now.differences_from(&original), ["its MTU is 1400 instead of 1500"]);
    }

    #[test]
    fn a_portrait_reads_back_as_written() {
        let mut link = Link::default();
        (link.name, link.alias) = ("p0v3".into(), Some("a".into()));
        let portrait = Portrait::of_link(&link);
        let text = serde_json::to_string(&portrait).unwrap();
        assert_eq!(serde_json::from_str::<Portrait>(&text).unwrap(), portrait);
    }
}
