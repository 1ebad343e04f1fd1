//! The eswitch driver `veth`, for the virtual card: a representor is the other end of a VF's veth pair.

use std::collections::BTreeMap;

use netlink::{Link, LinkEvent};
use vf_alloc::{FunctionId, software_card::CardLink};

use super::{
    Carried, Eswitch, Representor,
    link::{Links, check_ingress_rate, check_rate_tree, described, when_limited},
};
use crate::{
    driver::{Ability, Capability, Reading, Refused, Unsupported, capability},
    probe::KernelAbilities,
};
use model::{Label, PortSettings};

const NO_PORT_MAC: &str = "a virtual card's MAC address is set by the host";
const NO_EGRESS_RATE: &str =
    "the virtual card does not limit what pods send; the fabric does, where it can";
const NO_ALIAS: &str =
    "the virtual card finds its representors by their aliases; use link_group for your rules";
const NO_RATE_TREE: &str =
    "the virtual card has no rate tree; leave it out, or use a card that has one";

/// The driver.
#[derive(Debug)]
pub struct VethEswitch {
    links: Links,
    token_bucket: Ability,
}

impl VethEswitch {
    /// A driver for the card in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn open(abilities: &KernelAbilities) -> Result<Self, Refused> {
        Ok(Self { links: Links::open()?, token_bucket: abilities.token_bucket.clone() })
    }
}

/// The VF of the representor with that alias. `None`: the link is no representor.
fn represented_vf(alias: Option<&str>) -> Option<FunctionId> {
    match CardLink::of(alias?)? {
        CardLink::Representor(vf) => Some(vf),
        _ => None,
    }
}

fn check_alias(label: &Label) -> Result<(), Unsupported> {
    match label.alias.as_str() {
        "" => Ok(()),
        alias => Err(Unsupported::new(format!("link_alias = {alias:?}"), NO_ALIAS)),
    }
}

fn representor(link: Link) -> Option<Representor> {
    let vf = represented_vf(link.alias.as_deref())?;
    let label = Label { group: link.group, alias: String::new() };
    Some(Representor { label, ..Representor::of_link(vf, link) })
}

impl Eswitch for VethEswitch {
    fn name(&self) -> &'static str {
        "veth"
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let alias = match event {
            LinkEvent::Missed => return true,
            LinkEvent::PortChanged { .. } => return false,
            LinkEvent::Changed(link) => link.alias.as_deref(),
            LinkEvent::Gone { alias, .. } => alias.as_deref(),
        };
        represented_vf(alias).is_some()
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            capability("port-mac", &Err(NO_PORT_MAC.into())),
            capability("link-alias", &Err(NO_ALIAS.into())),
            capability("ingress-rate", &self.token_bucket),
            capability("egress-rate", &Err(NO_EGRESS_RATE.into())),
            capability("egress-share", &Err(NO_RATE_TREE.into())),
            capability("egress-total", &Err(NO_RATE_TREE.into())),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        check_alias(&settings.label)?;
        check_ingress_rate(settings.bandwidth.ingress_rate, &self.token_bucket)?;
        let no_tree = Err(NO_RATE_TREE.to_owned());
        check_rate_tree(settings, &no_tree, &no_tree)
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        Ok(self.links.all()?.into_iter().filter_map(representor).collect())
    }

    /// The card names a representor after its VF, so one request usually finds it. A renamed one is found by its
    /// alias.
    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        let named = self.links.named(&vf.to_string());
        let named = named.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        match named.and_then(representor) {
            Some(found) if found.vf == vf => Ok(Some(found)),
            _ => Ok(self.representors()?.into_iter().find(|found| found.vf == vf)),
        }
    }

    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        self.links.carried()
    }

    fn limits_egress(&self, _: FunctionId) -> bool {
        false
    }

    fn set_rate(&self, port: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.links.limit(port, &settings.bandwidth)
    }

    fn clear_rate(&self, port: &Representor) -> Result<(), Refused> {
        self.links.unlimit(port)
    }

    fn rate(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        let limit = self.links.limit_in_force(port)?;
        let detail = limit.map_or_else(|| "unlimited".to_owned(), described);
        Ok(Reading { in_place: limit == when_limited(&settings.bandwidth, port), detail })
    }

    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.links.set_mtu(port, mtu)
    }

    /// Sets only the group: the card needs the alias to find the link.
    fn set_label(&self, port: &Representor, label: &Label) -> Result<(), Refused> {
        self.links.set_group(port, label.group)
    }

    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        self.links.set_up(port, up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cards_own_representors_count() {
        assert_eq!(
            represented_vf(Some("virtual-nic representor pf0vf3")),
            Some(FunctionId::local(0, 3))
        );
        for alias in [None, Some(""), Some("virtual-nic d000:00:00.1 pf0vf0"), Some("pf0vf3")] {
            assert_eq!(represented_vf(alias), None);
        }
    }
}
