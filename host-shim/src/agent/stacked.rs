//! Links that are stacked on VFs: a pod that made one keeps it when its VF leaves, and sends through
//! the VF wherever that is.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use netlink::{Error, Link, Netns, NetnsId, Rtnl};

use super::{Agent, strangers::namespaces};

/// Links whose other end is a link, and which are stacked on nothing.
const PAIRS: [&str; 2] = ["veth", "netkit"];

impl Agent {
    /// What is stacked on links of the host's namespace, by their index: one sentence each. The kernel
    /// tells nobody at the link itself, so all namespaces are looked into that can be reached.
    pub(super) fn stacked_on(&self, indices: &[u32]) -> HashMap<u32, Vec<String>> {
        let mut found: HashMap<u32, Vec<String>> = HashMap::new();
        let mut looked_at = namespaces(&self.config.reachable_netns());
        looked_at.extend(self.namespaces_of_records());
        looked_at.insert(self.host.id(), PathBuf::new());
        for (id, path) in looked_at {
            match self.stacked_in(id, &path) {
                Ok(links) => {
                    for (lower, link) in links.iter().filter(|(lower, _)| indices.contains(lower)) {
                        found.entry(*lower).or_default().push(told(link, &path));
                    }
                }
                Err(error) => tracing::debug!(path = %path.display(), error, "not looked into"),
            }
        }
        found
    }

    fn namespaces_of_records(&self) -> BTreeMap<NetnsId, PathBuf> {
        let records = self.records.all().into_iter();
        records.map(|record| (record.netns.id, PathBuf::from(&record.netns.path))).collect()
    }

    /// The links of a namespace that are stacked on links of the host's, each with the index of that.
    fn stacked_in(&self, id: NetnsId, path: &Path) -> Result<Vec<(u32, Link)>, String> {
        if id == self.host.id() {
            let mut host = Rtnl::open_in(&self.host).map_err(|error| error.to_string())?;
            return stacked_on_own(&mut host).map_err(|error| error.to_string());
        }
        let netns = Netns::open(path).map_err(|error| error.to_string())?;
        let mut inside = Rtnl::open_in(&netns).map_err(|error| error.to_string())?;
        stacked_on_those_of(&mut inside, &self.host).map_err(|error| error.to_string())
    }
}

fn stacked_on_own(host: &mut Rtnl) -> Result<Vec<(u32, Link)>, Error> {
    let links = host.links()?.into_iter().filter(|link| link.peer_netns.is_none());
    Ok(links.filter_map(with_lower).collect())
}

fn stacked_on_those_of(inside: &mut Rtnl, host: &Netns) -> Result<Vec<(u32, Link)>, Error> {
    let stacked = inside.links()?.into_iter().filter(|link| link.peer_netns.is_some());
    let stacked: Vec<_> = stacked.filter_map(with_lower).collect();
    if stacked.is_empty() {
        return Ok(stacked);
    }
    let number = inside.number_of(host)?;
    let is_of_host = |(_, link): &(u32, Link)| number.is_some() && link.peer_netns == number;
    Ok(stacked.into_iter().filter(is_of_host).collect())
}

/// The link with the index of what it is stacked on, if it is.
fn with_lower(link: Link) -> Option<(u32, Link)> {
    let lower = link.peer.filter(|lower| *lower != 0)?;
    let kind = link.kind.as_deref().unwrap_or_default();
    (!PAIRS.contains(&kind)).then_some((lower, link))
}

/// The name of what the host itself has stacked on a link, of all links of the link's namespace.
#[must_use]
pub(crate) fn stacked_by_host<'a>(link: &Link, links: &'a [Link]) -> Option<&'a str> {
    let is_on_link = |other: &&Link| {
        let kind = other.kind.as_deref().unwrap_or_default();
        other.peer == Some(link.index) && other.peer_netns.is_none() && !PAIRS.contains(&kind)
    };
    links.iter().find(is_on_link).map(|other| other.name.as_str())
}

fn told(link: &Link, path: &Path) -> String {
    let kind = link.kind.as_deref().unwrap_or("link");
    let place = match path.as_os_str().is_empty() {
        true => "the host's network namespace".into(),
        false => format!("the network namespace {}", path.display()),
    };
    format!("the {kind} {} is stacked on it in {place}", link.name)
}
