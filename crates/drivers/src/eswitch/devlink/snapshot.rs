//! A snapshot of the cards and of all VFs' ports.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Devlink, DevlinkDevice, DevlinkPort, EswitchMode, Link, PortVf, Rate, RateSubject};
use vf_alloc::{FunctionId, PfId};

use super::{
    super::{Card, Representor, link::is_limited},
    tree::is_ours,
    trials::{Trials, Tried},
};
use crate::driver::Refused;

/// One snapshot.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) cards: Vec<Card>,
    ports: BTreeMap<FunctionId, FoundPort>,
    /// VFs whose number exists on two cards, so that they can't be told apart. They are not in `ports`.
    clashes: BTreeMap<FunctionId, Clash>,
    /// Nodes of ours in the cards' rate trees without leaves.
    pub(super) empty_nodes: Vec<(DevlinkDevice, String)>,
    /// The features that the cards were found to have, by this snapshot or an earlier one.
    pub(super) trials: Trials,
}

/// Two cards with a VF of the same number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Clash {
    one: DevlinkDevice,
    other: DevlinkDevice,
}

/// A VF's devlink port.
#[derive(Clone, Debug)]
pub(super) struct FoundPort {
    pub(super) device: DevlinkDevice,
    port: u32,
    /// The index of its link, if it has one.
    pub(super) link: Option<u32>,
    /// Whether the card accepts a MAC address for the VF.
    pub(super) takes_mac: bool,
    /// Whether the port has a rate leaf.
    takes_rate: bool,
    /// Whether the card's driver has refused a limit.
    has_refused_rate: bool,
    is_rated: bool,
}

impl FoundPort {
    /// `leaf`: the port's rate leaf, if it has one.
    pub(super) fn new(port: &DevlinkPort, leaf: Option<&Rate>) -> Self {
        Self {
            device: port.device.clone(),
            port: port.index,
            link: port.link,
            takes_mac: port.mac.is_some(),
            takes_rate: leaf.is_some(),
            has_refused_rate: false,
            is_rated: leaf.is_some_and(is_rated),
        }
    }

    /// Whether the card limits what the VF sends, as far as is known.
    pub(super) fn limits_egress(&self) -> bool {
        self.takes_rate && !self.has_refused_rate
    }

    /// Keeps an earlier refusal if the port has the same link. A port with a new link is tried again.
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

/// Whether the leaf has settings to undo.
fn is_rated(leaf: &Rate) -> bool {
    leaf.max_bits != 0 || leaf.share_bits != 0 || leaf.parent.as_deref().is_some_and(is_ours)
}

impl Snapshot {
    /// All VFs' ports.
    pub(super) fn ports(&self) -> impl Iterator<Item = &FoundPort> + Clone {
        self.ports.values()
    }

    /// The ports of one card.
    pub(super) fn ports_of(&self, card: &str) -> impl Iterator<Item = &FoundPort> + Clone {
        self.ports().filter(move |found| found.device.to_string() == card)
    }

    pub(super) fn found(&self, vf: FunctionId) -> Option<&FoundPort> {
        self.ports.get(&vf)
    }

    /// The card of the VF.
    pub(super) fn card_of(&self, vf: FunctionId) -> Option<&DevlinkDevice> {
        self.found(vf).map(|found| &found.device)
    }

    pub(super) fn is_of(&self, port: &Representor, card: &DevlinkDevice) -> bool {
        self.card_of(port.vf) == Some(card)
    }

    /// The features that a card was found to have. `None`: the card was not tried yet.
    pub(super) fn tried(&self, card: &DevlinkDevice) -> Option<&Tried> {
        self.trials.get(card).map(|trial| &trial.tried)
    }

    /// The features of the first tried card among these ports.
    pub(super) fn tried_at<'a>(&self, mut ports: impl Iterator<Item = &'a FoundPort>) -> Tried {
        let tried = ports.find_map(|found| self.tried(&found.device));
        tried.cloned().unwrap_or_else(Tried::nothing_yet)
    }

    pub(super) fn offloads_filters(&self, card: &DevlinkDevice) -> bool {
        self.tried(card).is_some_and(|tried| tried.filters.is_ok())
    }

    /// The card of the VF's port, and the port's index there.
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

    /// Records that the card's driver refused a limit for the VF, despite its rate leaf.
    pub(super) fn note_refused_rate(&mut self, vf: FunctionId) {
        if let Some(found) = self.ports.get_mut(&vf) {
            found.has_refused_rate = true;
        }
    }

    /// Keeps what an earlier snapshot knows and the kernel does not report.
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

    /// Why the VF can't be served. `None`: no reason is known.
    pub(super) fn why_not(&self, vf: FunctionId) -> Option<String> {
        self.clashes.get(&vf).map(|clash| clash.sentence(&[vf]))
    }

    /// One sentence for each pair of cards about the VFs that can't be served.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut vfs: BTreeMap<&Clash, Vec<FunctionId>> = BTreeMap::new();
        for (vf, clash) in &self.clashes {
            vfs.entry(clash).or_default().push(*vf);
        }
        vfs.into_iter().map(|(clash, vfs)| clash.sentence(&vfs)).collect()
    }

    /// The representors of the ports whose link is in `links`.
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
            "{subject} {names} {verb} on card {one} and on card {other}, and can't be told apart: \
             name one of the cards in eswitch.devices"
        )
    }
}

/// Lists all VFs' ports of these `devices`, or of all cards if there are none.
pub(super) fn take(devlink: &mut Devlink, devices: &[DevlinkDevice]) -> Result<Snapshot, Refused> {
    let is_wanted = |device: &DevlinkDevice| devices.is_empty() || devices.contains(device);
    let rates = rates(devlink)?;
    let leaves = leaves(&rates);
    let mut empty_nodes = empty_nodes(&rates);
    empty_nodes.retain(|(device, _)| is_wanted(device));
    let mut snapshot =
        Snapshot { cards: cards(devlink, devices)?, empty_nodes, ..Snapshot::default() };
    let ports = devlink.ports().map_err(unlisted)?;
    for port in ports.iter().filter(|port| is_wanted(&port.device)) {
        let Some(vf) = vf_of(port) else { continue };
        let leaf = leaves.get(&(&port.device, port.index)).copied();
        snapshot.add(vf, FoundPort::new(port, leaf));
    }
    let counts: Vec<_> =
        snapshot.cards.iter().map(|card| snapshot.ports_of(&card.device).count()).collect();
    for (card, count) in snapshot.cards.iter_mut().zip(counts) {
        card.representors = count;
    }
    Ok(snapshot)
}

/// The existing ones of `devices` or, if none are named, the cards in switchdev mode.
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

/// All rate leaves and nodes.
fn rates(devlink: &mut Devlink) -> Result<Vec<Rate>, Refused> {
    match devlink.rates() {
        // Kernels before 5.14 have no devlink rates.
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

/// The VF behind a port. `None`: the port is not a VF's.
pub(super) fn vf_of(port: &DevlinkPort) -> Option<FunctionId> {
    let PortVf { controller, pf, vf } = port.vf?;
    Some(FunctionId { pf: PfId { controller, pf }, vf })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot_with(link: u32) -> Snapshot {
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
        let mut snapshot = Snapshot::default();
        snapshot.note(FunctionId::local(0, 1), found);
        snapshot
    }

    #[test]
    fn refused_rate_is_retried_on_a_new_port() {
        let vf = FunctionId::local(0, 1);
        let limits = |snapshot: &Snapshot| snapshot.found(vf).unwrap().limits_egress();
        let mut known = snapshot_with(7);
        assert!(limits(&known));
        known.note_refused_rate(vf);
        assert!(!limits(&known));
        known.note(vf, snapshot_with(7).found(vf).unwrap().clone());
        assert!(!limits(&known));
        assert!(!limits(&snapshot_with(7).after(&known)));
        assert!(limits(&snapshot_with(8).after(&known)));
    }
}
