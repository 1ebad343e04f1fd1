//! One look at all VFs' ports of the cards.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Devlink, DevlinkDevice, DevlinkPort, EswitchMode, Flavour, Link, Rate, RateSubject};
use vf_alloc::{FunctionId, PfId};

use super::{
    super::{Card, Representor, link::is_limited},
    tree::is_ours,
    trials::{Trials, Tried},
};
use crate::driver::Refused;

/// What one look found.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) cards: Vec<Card>,
    ports: BTreeMap<FunctionId, FoundPort>,
    /// VFs that can't be told apart, for two cards have one of that number. None is in `ports`.
    clashes: BTreeMap<FunctionId, Clash>,
    /// Nodes of ours in the cards' rate trees that no leaf is under.
    pub(super) empty_nodes: Vec<(DevlinkDevice, String)>,
    /// What the cards were found to do, by this look or an earlier one.
    pub(super) trials: Trials,
}

/// Two cards that both have a VF of some number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Clash {
    one: DevlinkDevice,
    other: DevlinkDevice,
}

/// A VF's port, as it was found.
#[derive(Clone, Debug)]
pub(super) struct FoundPort {
    pub(super) device: DevlinkDevice,
    port: u32,
    /// The index of its link, once it has one.
    pub(super) link: Option<u32>,
    /// Whether the card takes a MAC address for the VF.
    pub(super) takes_mac: bool,
    /// Whether there is a place for a limit of what the VF sends.
    takes_rate: bool,
    /// Whether the card's driver has said that it limits nothing.
    has_refused_rate: bool,
    is_rated: bool,
}

impl FoundPort {
    /// `leaf`: how it is limited what the VF sends, `None` if it can't be limited.
    pub(super) fn new(port: &DevlinkPort, leaf: Option<&Rate>) -> Self {
        Self {
            device: port.device.clone(),
            port: port.index,
            link: port.netdev.as_ref().map(|netdev| netdev.index),
            takes_mac: port.function.is_some_and(|function| function.mac.is_some()),
            takes_rate: leaf.is_some(),
            has_refused_rate: false,
            is_rated: leaf.is_some_and(is_rated),
        }
    }

    /// Whether the card limits what the VF sends, as far as is known.
    pub(super) fn limits_egress(&self) -> bool {
        self.takes_rate && !self.has_refused_rate
    }

    /// With what the same port has said when it was asked for something. One that was made anew is asked again.
    fn after(self, known: Option<&Self>) -> Self {
        let is_same = |known: &Self| known.link.is_some() && known.link == self.link;
        let has_refused_rate = known.is_some_and(|known| known.has_refused_rate && is_same(known));
        Self { has_refused_rate, ..self }
    }

    pub(super) fn representor(&self, vf: FunctionId, link: Link) -> Representor {
        let is_limited = self.is_rated || is_limited(&link);
        Representor { is_limited, ..Representor::of_link(vf, link) }
    }
}

/// Whether there is anything of a leaf that is to be undone.
fn is_rated(leaf: &Rate) -> bool {
    leaf.max_bits != 0 || leaf.share_bits != 0 || leaf.parent.as_deref().is_some_and(is_ours)
}

impl Look {
    /// All VFs' ports.
    pub(super) fn ports(&self) -> impl Iterator<Item = &FoundPort> + Clone {
        self.ports.values()
    }

    /// Those of one card.
    pub(super) fn ports_of(&self, card: &str) -> impl Iterator<Item = &FoundPort> + Clone {
        self.ports().filter(move |found| found.device.to_string() == card)
    }

    pub(super) fn found(&self, vf: FunctionId) -> Option<&FoundPort> {
        self.ports.get(&vf)
    }

    /// The card that the VF is of.
    pub(super) fn card_of(&self, vf: FunctionId) -> Option<&DevlinkDevice> {
        self.found(vf).map(|found| &found.device)
    }

    pub(super) fn is_of(&self, port: &Representor, card: &DevlinkDevice) -> bool {
        self.card_of(port.vf) == Some(card)
    }

    /// What a card was found to do. `None`: it was not tried yet.
    pub(super) fn tried(&self, card: &DevlinkDevice) -> Option<&Tried> {
        self.trials.get(card).map(|trial| &trial.tried)
    }

    /// What the first card with one of these ports that was tried was found to do.
    pub(super) fn tried_at<'a>(&self, mut ports: impl Iterator<Item = &'a FoundPort>) -> Tried {
        let tried = ports.find_map(|found| self.tried(&found.device));
        tried.cloned().unwrap_or_else(Tried::nothing_yet)
    }

    pub(super) fn offloads_filters(&self, card: &DevlinkDevice) -> bool {
        self.tried(card).is_some_and(|tried| tried.filters.is_ok())
    }

    /// On which card, and where there.
    pub(super) fn place_of(&self, vf: FunctionId) -> Option<(DevlinkDevice, u32)> {
        self.found(vf).map(|found| (found.device.clone(), found.port))
    }

    pub(super) fn has_link(&self, index: u32) -> bool {
        self.ports().any(|found| found.link == Some(index))
    }

    pub(super) fn note(&mut self, vf: FunctionId, found: FoundPort) {
        let found = found.after(self.ports.get(&vf));
        self.ports.insert(vf, found);
    }

    /// The card's driver limits nothing that the VF sends, whatever the kernel tells.
    pub(super) fn note_refused_rate(&mut self, vf: FunctionId) {
        if let Some(found) = self.ports.get_mut(&vf) {
            found.has_refused_rate = true;
        }
    }

    /// With what is known from an earlier look and can't be asked.
    pub(super) fn after(self, known: &Self) -> Self {
        let after = |(vf, found): (FunctionId, FoundPort)| (vf, found.after(known.found(vf)));
        Self { ports: self.ports.into_iter().map(after).collect(), ..self }
    }

    fn add(&mut self, vf: FunctionId, found: FoundPort) {
        if self.clashes.contains_key(&vf) {
            return;
        }
        let Some(other) = self.ports.remove(&vf) else { return self.note(vf, found) };
        self.clashes.insert(vf, Clash { one: other.device, other: found.device });
    }

    /// Why a VF can't be served. `None`: nothing is known that is in the way.
    pub(super) fn why_not(&self, vf: FunctionId) -> Option<String> {
        self.clashes.get(&vf).map(|clash| clash.sentence(&[vf]))
    }

    /// Which VFs can't be served, one sentence for each pair of cards.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut vfs: BTreeMap<&Clash, Vec<FunctionId>> = BTreeMap::new();
        for (vf, clash) in &self.clashes {
            vfs.entry(clash).or_default().push(*vf);
        }
        vfs.into_iter().map(|(clash, vfs)| clash.sentence(&vfs)).collect()
    }

    /// The representors, by their `links`.
    pub(super) fn representors(&self, links: Vec<Link>) -> Vec<Representor> {
        let mut links: BTreeMap<u32, Link> =
            links.into_iter().map(|link| (link.index, link)).collect();
        let representor = |(vf, found): (&FunctionId, &FoundPort)| {
            Some(found.representor(*vf, links.remove(&found.link?)?))
        };
        self.ports.iter().filter_map(representor).collect()
    }
}

impl Clash {
    fn sentence(&self, vfs: &[FunctionId]) -> String {
        let Self { one, other } = self;
        let names: Vec<_> = vfs.iter().map(FunctionId::to_string).collect();
        let subject = if vfs.len() == 1 { "VF" } else { "VFs" };
        let verb = if vfs.len() == 1 { "is" } else { "are" };
        let names = names.join(", ");
        format!(
            "{subject} {names} {verb} on card {one} and on card {other}, and so on neither: name \
             one of the cards in eswitch.devices"
        )
    }
}

/// Looks at all VFs' ports of these `devices`, or of all cards if there are none.
pub(super) fn everything(
    devlink: &mut Devlink,
    devices: &[DevlinkDevice],
) -> Result<Look, Refused> {
    let is_wanted = |device: &DevlinkDevice| devices.is_empty() || devices.contains(device);
    let rates = rates(devlink)?;
    let leaves = leaves(&rates);
    let mut empty_nodes = empty_nodes(&rates);
    empty_nodes.retain(|(device, _)| is_wanted(device));
    let mut look = Look { cards: cards(devlink, devices)?, empty_nodes, ..Look::default() };
    let ports = devlink.ports().map_err(unlisted)?;
    for port in ports.iter().filter(|port| is_wanted(&port.device)) {
        let Some(vf) = vf_of(port) else { continue };
        let leaf = leaves.get(&(&port.device, port.index)).copied();
        look.add(vf, FoundPort::new(port, leaf));
    }
    let counts: Vec<_> =
        look.cards.iter().map(|card| look.ports_of(&card.device).count()).collect();
    for (card, count) in look.cards.iter_mut().zip(counts) {
        card.representors = count;
    }
    Ok(look)
}

/// The `devices` that there are or, if none are named, those in switchdev mode.
pub(super) fn cards(
    devlink: &mut Devlink,
    devices: &[DevlinkDevice],
) -> Result<Vec<Card>, Refused> {
    let mut cards = Vec::new();
    for device in devlink.devices().map_err(unlisted)? {
        if !devices.is_empty() && !devices.contains(&device) {
            continue;
        }
        let mode = devlink.eswitch_mode(&device).map_err(unlisted)?;
        if !devices.is_empty() || mode == Some(EswitchMode::Switchdev) {
            let mode = mode.map_or_else(|| "none".to_owned(), |mode| mode.to_string());
            let device = device.to_string();
            cards.push(Card { device, mode, representors: 0, capabilities: Vec::new() });
        }
    }
    Ok(cards)
}

fn unlisted(error: netlink::Error) -> Refused {
    Refused::new("list the representors", error)
}

/// The leaf of each port that can be limited, and the nodes.
fn rates(devlink: &mut Devlink) -> Result<Vec<Rate>, Refused> {
    match devlink.rates() {
        // Kernels before 5.14 know nothing of rates.
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        rates => rates.map_err(unlisted),
    }
}

fn leaves(rates: &[Rate]) -> BTreeMap<(&DevlinkDevice, u32), &Rate> {
    let leaf = |rate: &Rate| match rate.subject {
        RateSubject::Leaf(port) => Some(port),
        RateSubject::Node(_) => None,
    };
    rates.iter().filter_map(|rate| Some(((&rate.device, leaf(rate)?), rate))).collect()
}

fn empty_nodes<'a>(rates: &'a [Rate]) -> Vec<(DevlinkDevice, String)> {
    let parent = |rate: &'a Rate| Some((&rate.device, rate.parent.as_ref()?));
    let parents: BTreeSet<_> = rates.iter().filter_map(parent).collect();
    let ours = rates.iter().filter_map(|rate| match &rate.subject {
        RateSubject::Node(name) if is_ours(name) => Some((&rate.device, name)),
        _ => None,
    });
    let empty = ours.filter(|node| !parents.contains(node));
    empty.map(|(device, node)| (device.clone(), node.clone())).collect()
}

/// The VF behind a port. `None`: something else is.
pub(super) fn vf_of(port: &DevlinkPort) -> Option<FunctionId> {
    match port.flavour {
        Flavour::PciVf { controller, pf, vf } => {
            Some(FunctionId { pf: PfId { controller, pf }, vf })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_with(link: u32) -> Look {
        let device = "netdevsim/netdevsim1".parse().unwrap();
        let found = FoundPort {
            device,
            port: 1,
            link: Some(link),
            takes_mac: false,
            takes_rate: true,
            has_refused_rate: false,
            is_rated: false,
        };
        let mut look = Look::default();
        look.note(FunctionId::local(0, 1), found);
        look
    }

    #[test]
    fn a_port_that_has_refused_a_rate_is_asked_again_once_it_was_made_anew() {
        let vf = FunctionId::local(0, 1);
        let limits = |look: &Look| look.found(vf).unwrap().limits_egress();
        let mut known = look_with(7);
        assert!(limits(&known));
        known.note_refused_rate(vf);
        assert!(!limits(&known));
        known.note(vf, look_with(7).found(vf).unwrap().clone());
        assert!(!limits(&known));
        assert!(!limits(&look_with(7).after(&known)));
        assert!(limits(&look_with(8).after(&known)));
    }
}
