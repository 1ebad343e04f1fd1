//! The configuration of one bridge, and its checks.

use std::collections::BTreeSet;

use offload_proto::form::{INTERFACE_NAMES, is_interface_name};

use crate::driver::{Fault, Refused};
use model::duplicates;

/// The most bridges in addition to the first: each call that is not about one port asks all of them.
const MOST_FURTHER: usize = 16;

/// A bridge, and the links in it that are not pods' ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The bridge's name. It is created if it does not exist.
    pub name: String,
    /// Netdevs that join it as uplinks.
    pub uplinks: Vec<String>,
    /// Netdevs that join it untagged, such as that of a host's PF, whose traffic leaves through the uplinks, too.
    pub kept: Vec<String>,
    /// The names of the fabric's other bridges. Their ports are ours, but each bridge manages its own.
    pub siblings: Vec<String>,
}

/// Why a link that is not a pod's port is in the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It leads outside.
    Uplink,
    /// It is the port of a PF or another link whose traffic leaves through the uplinks.
    Kept,
}

impl Role {
    /// The role's name in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uplink => "uplink",
            Self::Kept => "kept link",
        }
    }

    /// The repair of a link that was not in the bridge.
    pub(super) fn joined(self, name: &str, bridge: &str) -> String {
        format!("{} {name} was not in bridge {bridge}: joined it", self.name())
    }

    /// The repair of a link that was switched off.
    pub(super) fn switched_on(self, name: &str) -> String {
        format!("{} {name} was switched off: switched it on", self.name())
    }

    /// The error for a configured link that does not exist.
    pub(super) fn missing(self, name: &str, bridge: &str) -> Refused {
        let what = self.name();
        let key = match self {
            Self::Uplink => "uplinks",
            Self::Kept => "keep",
        };
        Refused::because(format!(
            "there is no {what} {name} for bridge {bridge}: bring it back, or correct `{key}` in the service's \
             configuration"
        ))
        .blamed_on(Fault::Elsewhere)
    }
}

impl BridgeSettings {
    /// The links that are not pods' ports.
    pub(super) fn links(&self) -> impl Iterator<Item = (Role, &str)> {
        let uplinks = self.uplinks.iter().map(|name| (Role::Uplink, &**name));
        uplinks.chain(self.kept.iter().map(|name| (Role::Kept, &**name)))
    }

    /// Whether the name is the bridge's or that of a link in [`Self::links`].
    pub(super) fn names(&self, name: &str) -> bool {
        name == self.name || self.links().any(|(_, link)| link == name)
    }

    /// Finds errors in the settings: one sentence each. `section` and `key` name the place of the bridge's name in
    /// the configuration.
    pub fn check(&self, section: &str, key: &str) -> Vec<String> {
        let Self { name, uplinks, kept, .. } = self;
        let mut problems = Vec::new();
        if !is_interface_name(name) {
            problems.push(format!(
                "{section}.{key} = {name:?} can't name an interface: use {INTERFACE_NAMES}"
            ));
        }
        problems.extend(self.check_links(&format!("{section}.uplinks"), uplinks));
        problems.extend(self.check_links(&format!("{section}.keep"), kept));
        let both = kept.iter().filter(|link| uplinks.contains(link));
        problems.extend(both.map(|link| {
            format!("{section}.keep and {section}.uplinks hold {link:?}: name it in one of them")
        }));
        problems
    }

    /// Finds errors of several bridges together: one sentence each.
    pub fn check_together(bridges: &[Self]) -> Vec<String> {
        let names = || bridges.iter().map(|bridge| bridge.name.as_str());
        let mut problems: Vec<_> = duplicates(names())
            .map(|name| format!("two bridges of the fabric are named {name:?}: rename one"))
            .collect();
        let further = bridges.len().saturating_sub(1);
        if further > MOST_FURTHER {
            problems.push(format!(
                "fabric.bridges holds {further} bridges, and {MOST_FURTHER} are the most: separate networks of one \
                 bridge by VLANs"
            ));
        }
        // A set: `check` already reports a link that one bridge names twice.
        let of_bridge = |bridge: &Self| -> BTreeSet<String> {
            bridge.links().map(|(_, link)| link.to_owned()).collect()
        };
        let links: Vec<_> = bridges.iter().flat_map(of_bridge).collect();
        problems.extend(duplicates(links.iter().map(String::as_str)).map(|link| {
            format!("link {link:?} is named for two bridges of the fabric: remove it from one")
        }));
        for bridge in bridges {
            let others = bridge.links().filter(|(_, link)| *link != bridge.name);
            let are_bridges = others.filter(|(_, link)| names().any(|name| name == *link));
            problems.extend(are_bridges.map(|(role, link)| {
                format!("{} {link:?} is a bridge of the fabric, too: name a link", role.name())
            }));
        }
        problems
    }

    fn check_links(&self, key: &str, links: &[String]) -> Vec<String> {
        let mut problems = Vec::new();
        for link in links {
            if !is_interface_name(link) {
                problems.push(format!(
                    "{key} holds {link:?}, which can't name an interface: use {INTERFACE_NAMES}"
                ));
            }
            if *link == self.name {
                problems.push(format!("{key} holds {link:?}, the bridge itself"));
            }
        }
        let names = links.iter().map(String::as_str);
        problems.extend(duplicates(names).map(|name| format!("{key} holds {name:?} twice")));
        problems
    }
}
