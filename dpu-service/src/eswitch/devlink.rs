//! The eswitch of a real card, and of netdevsim: what the kernel's devlink tells of it.
//!
//! A representor is the link of a devlink port of flavour `pcivf`, and its VF is the port's
//! controller, PF and VF number. Names tell nothing.

mod look;
mod tree;
mod trials;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{
    Devlink, DevlinkDevice, DevlinkPort, EswitchMode, LinkEvent, MacAddress, Rate, RateChange,
    RateSubject,
};
use vf_alloc::FunctionId;

use super::{
    Card, Carried, Eswitch, Representor,
    link::{Links, check_ingress_rate, check_rate_tree, described, gone_is_done, when_limited},
};
use crate::{
    driver::{Ability, Capability, Fault, Reading, Refused, Unsupported, limited_capability},
    model::{Bandwidth, Label, PortSettings},
    probe::KernelAbilities,
    twice::twice,
};
use look::{FoundPort, Look, vf_of};
use tree::{Place, Trees};
use trials::{Feature, Trial};

/// What cards count rates in, in bits per second.
const RATE_UNIT: u64 = 1_000_000;

/// The MAC address of a VF that was never given one.
const NO_MAC: MacAddress = MacAddress([0; 6]);

const NO_MAC_OF_VFS: &str = "the card has no say in the MAC addresses of VFs; the host sets them";

const UNKNOWN_YET: &str = "no VF has a representor yet, so it is not known";

const BY_FILTERS: &str = "what pods may send is kept to also where the card forwards by itself";

const BY_THE_QUEUE: &str =
    "by the representor's queue: what the card forwards by itself passes it by";
const NO_EGRESS_RATE: &str =
    "the card's driver limits nothing that VFs send; the fabric does, where it can";

const WHOLE_MEGABITS: &str = "in whole Mbit/s, rounded down";

/// Of a VF that the card's driver has no leaf of.
const NO_LEAF: &str = "the card's driver has no rates of VFs; leave it out";

/// Which cards, and what they shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevlinkSettings {
    /// None: every card whose eswitch is in switchdev mode.
    pub devices: Vec<DevlinkDevice>,
    /// The mode to put them in. `None`: they are in it already.
    pub mode: Option<EswitchMode>,
}

impl DevlinkSettings {
    /// What makes no sense in them, one sentence each.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.mode.is_some() && self.devices.is_empty() {
            problems
                .push("eswitch.mode is set: name the cards it is for in eswitch.devices".into());
        }
        let names: Vec<_> = self.devices.iter().map(ToString::to_string).collect();
        let names = names.iter().map(String::as_str);
        problems.extend(twice(names).map(|name| format!("eswitch.devices holds {name:?} twice")));
        problems
    }
}

/// The driver.
#[derive(Debug)]
pub struct DevlinkEswitch {
    settings: DevlinkSettings,
    links: Links,
    devlink: Mutex<Devlink>,
    token_bucket: Ability,
    trees: Trees,
    /// The latest look at everything, for what can't wait for the kernel: held over no call of that, since whoever
    /// checks settings waits for it and has others wait.
    latest: Mutex<Look>,
}

impl DevlinkEswitch {
    /// The driver for cards in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no devlink, or can't be talked to.
    pub fn open(settings: DevlinkSettings, abilities: &KernelAbilities) -> Result<Self, Refused> {
        let devlink = Devlink::open().map_err(|error| Refused::new("open the eswitch", error))?;
        let eswitch = Self {
            settings,
            links: Links::open()?,
            devlink: Mutex::new(devlink),
            token_bucket: abilities.token_bucket.clone(),
            trees: Trees::default(),
            latest: Mutex::new(Look::default()),
        };
        // What can't be seen now is told by each later look.
        drop(eswitch.representors());
        Ok(eswitch)
    }

    fn devlink(&self) -> MutexGuard<'_, Devlink> {
        self.devlink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latest(&self) -> MutexGuard<'_, Look> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a configured card into its mode. Fails if it ends up in another than switchdev.
    fn prepare_card(&self, device: &DevlinkDevice) -> Result<(), Refused> {
        let mut devlink = self.devlink();
        let mode = devlink.eswitch_mode(device).map_err(|error| match error.is_not_found() {
            true => Refused::because(format!("there is no devlink device {device}")),
            false => Refused::new(format!("look at card {device}"), error),
        })?;
        match (mode, self.settings.mode) {
            (Some(mode), Some(wanted)) if mode != wanted => {
                tracing::info!(%device, %mode, %wanted, "switching the eswitch's mode");
                let switched = devlink.set_eswitch_mode(device, wanted);
                switched.map_err(|error| Refused::new(format!("prepare card {device}"), error))
            }
            (Some(EswitchMode::Switchdev), _) => Ok(()),
            (Some(mode), _) => Err(Refused::because(format!(
                "the eswitch of card {device} is in {mode} mode, in which VFs have no \
                 representors: set eswitch.mode, or `devlink dev eswitch set {device} mode \
                 switchdev`"
            ))),
            (None, _) => Err(Refused::because(format!("card {device} has no eswitch"))),
        }
    }

    /// What there is in the kernel of the port of a VF, found where it was the last time. `None`:
    /// it is not there any more.
    fn known_port(&self, vf: FunctionId) -> Result<Option<DevlinkPort>, Refused> {
        let Some((device, index)) = self.latest().place_of(vf) else { return Ok(None) };
        let found = self.devlink().port(&device, index);
        let found = found.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        Ok(found.filter(|port| vf_of(port) == Some(vf)))
    }

    /// Looks at everything for the representor of a VF.
    fn search(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        let found = self.representors()?.into_iter().find(|found| found.vf == vf);
        match self.latest().why_not(vf) {
            Some(why) if found.is_none() => Err(Refused::because(why)),
            _ => Ok(found),
        }
    }

    /// Tries what its cards can do on the representors that a look found, and notes there what that is.
    fn try_cards(&self, look: &mut Look, representors: &mut [Representor]) {
        let known = self.latest().trials.clone();
        look.trials.clone_from(&known);
        let cards: BTreeSet<_> = look.ports().map(|found| found.device.clone()).collect();
        for card in cards {
            let its: Vec<_> = representors.iter().filter(|port| look.is_of(port, &card)).collect();
            let attempt = |port: &Representor, feature| self.attempt(look, port, feature);
            if let Some(trial) = Trial::of_card(known.get(&card), &its, attempt) {
                look.trials.insert(card, trial);
            }
        }
        for port in representors {
            port.offloads_filters =
                look.card_of(port.vf).is_some_and(|card| look.offloads_filters(card));
        }
    }

    fn attempt(&self, look: &Look, port: &Representor, feature: Feature) -> Ability {
        match feature {
            Feature::Filters => self.links.try_filters(port),
            Feature::EgressShare => self.attempt_at_leaf(look, port, tree::try_share),
            Feature::EgressTotal => self
                .attempt_at_leaf(look, port, |devlink, leaf| tree::try_node(devlink, &leaf.device)),
        }
    }

    fn attempt_at_leaf(
        &self,
        look: &Look,
        port: &Representor,
        attempt: fn(&mut Devlink, &Rate) -> Ability,
    ) -> Ability {
        let no_leaf = || NO_LEAF.to_owned();
        let (card, index) = look.place_of(port.vf).ok_or_else(no_leaf)?;
        let mut devlink = self.devlink();
        match devlink.rate(&card, &RateSubject::Leaf(index)) {
            Ok(leaf) => attempt(&mut devlink, &leaf.ok_or_else(no_leaf)?),
            Err(error) if error.is_unsupported() => Err(no_leaf()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Deletes nodes of ours whose last leaf went with its VF, or that never had one.
    fn delete_empty_nodes(&self, look: &Look) {
        for (device, node) in &look.empty_nodes {
            let deleted = self.trees.delete(&mut self.devlink(), device, node);
            deleted.unwrap_or_else(|error| tracing::warn!("{error}"));
        }
    }

    /// What the ports that were found tell of what can be done with them.
    fn capabilities_of<'a>(
        &self,
        look: &Look,
        ports: impl Iterator<Item = &'a FoundPort> + Clone,
    ) -> Vec<Capability> {
        let tried = look.tried_at(ports.clone());
        let by_card = |feature: Feature, ability| {
            limited_capability(feature.name(), ability, WHOLE_MEGABITS).by_hardware()
        };
        vec![
            told_by_ports(ports.clone(), "port-mac", |found| found.takes_mac, "", NO_MAC_OF_VFS),
            limited_capability("ingress-rate", &self.token_bucket, BY_THE_QUEUE),
            told_by_ports(
                ports,
                "egress-rate",
                FoundPort::limits_egress,
                "in whole Mbit/s, rounded down; the card chooses the burst",
                NO_EGRESS_RATE,
            ),
            by_card(Feature::EgressShare, &tried.egress_share),
            by_card(Feature::EgressTotal, &tried.egress_total),
        ]
    }

    /// What one card can do.
    fn capabilities_of_card(&self, look: &Look, card: &Card) -> Vec<Capability> {
        let ports = || look.ports_of(&card.device);
        let filters = look.tried_at(ports()).filters;
        let filters = limited_capability(Feature::Filters.name(), &filters, BY_FILTERS);
        self.capabilities_of(look, ports()).into_iter().chain([filters.by_hardware()]).collect()
    }

    /// What can't be served is told once, and what cards can do.
    fn note(&self, look: Look) {
        let (problems, trials) = (look.problems(), look.trials.clone());
        let known = self.replace_latest(look);
        trials::tell_changes(&known.trials, &trials);
        let known = known.problems();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!("{problem}");
        }
    }

    /// Returns the look of before.
    fn replace_latest(&self, look: Look) -> Look {
        let mut latest = self.latest();
        let look = look.after(&latest);
        std::mem::replace(&mut *latest, look)
    }

    /// The devlink port of a representor. A card that was reset gives the same numbers to new ports: one
    /// that has another link by now is another.
    fn port(&self, port: &Representor) -> Result<Option<DevlinkPort>, Refused> {
        let is_same = |found: &DevlinkPort| {
            found.netdev.as_ref().is_some_and(|netdev| netdev.index == port.index)
        };
        Ok(self.known_port(port.vf)?.filter(is_same))
    }

    fn existing_port(&self, port: &Representor) -> Result<DevlinkPort, Refused> {
        let gone = || Refused::because(format!("representor {} is gone", port.name));
        self.port(port)?.ok_or_else(gone)
    }

    /// How it is limited what the VF sends. `None`: it can't be limited.
    fn leaf(&self, port: &DevlinkPort) -> Result<Option<Rate>, Refused> {
        let rate = self.devlink().rate(&port.device, &RateSubject::Leaf(port.index));
        match rate {
            Ok(rate) => Ok(rate),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(Refused::new(format!("read the rate of port {port}"), error)),
        }
    }

    fn set_egress_rate(&self, port: &DevlinkPort, bits: u64) -> Result<(), Refused> {
        match self.leaf(port)? {
            Some(leaf) if leaf.max_bits == bits => Ok(()),
            None => Ok(()),
            Some(_) => {
                let change = RateChange::new().max_bits(bits);
                let leaf = RateSubject::Leaf(port.index);
                let limited = self.devlink().set_rate(&port.device, &leaf, &change);
                match limited {
                    // Only now is it known of the driver. The fabric does it in its place.
                    Err(error) if error.is_unsupported() => {
                        vf_of(port).into_iter().for_each(|vf| self.latest().note_refused_rate(vf));
                        Ok(())
                    }
                    limited => gone_is_done_if(bits == 0, limited)
                        .map_err(|error| Refused::new(format!("limit port {port}"), error)),
                }
            }
        }
    }

    /// Brings the VF's leaf to its place in the card's rate tree.
    fn place(&self, port: &DevlinkPort, place: &Place) -> Result<(), Refused> {
        let Some(leaf) = self.leaf(port)? else {
            // That is the card's, not this VF's.
            let lacks = || Refused::because(NO_LEAF).blamed_on(Fault::Elsewhere);
            return if place.is_idle() { Ok(()) } else { Err(lacks()) };
        };
        let placed = self.trees.place(&mut self.devlink(), &leaf, place);
        gone_is_done_if(place.is_idle(), placed)
            .map_err(|error| Refused::new(format!("give port {port} its place"), error))
    }

    /// Whether the VF's leaf is in its place, and what is there for people.
    fn find_place(
        &self,
        leaf: Option<&Rate>,
        place: &Place,
    ) -> Result<(bool, Vec<String>), Refused> {
        let Some(leaf) = leaf else { return Ok((place.is_idle(), Vec::new())) };
        let found = self.trees.find(&mut self.devlink(), leaf, place);
        found.map_err(|error| Refused::new("read the rate tree", error))
    }

    /// What the card is to limit it to; 0 for no limit.
    fn egress_rate_of(&self, port: &Representor, bandwidth: &Bandwidth) -> u64 {
        if self.limits_egress(port.vf) { kept_rate(bandwidth.egress_rate) } else { 0 }
    }

    fn set_mac(&self, port: &DevlinkPort, mac: MacAddress) -> Result<(), Refused> {
        match port.function.and_then(|function| function.mac) {
            Some(current) if current != mac => {
                gone_is_done_if(mac == NO_MAC, self.devlink().set_port_mac(port, mac))
                    .map_err(|error| Refused::new(format!("program port {port}"), error))
            }
            _ => Ok(()),
        }
    }
}

/// What was to be cleared is gone, too, with what it was on.
fn gone_is_done_if(
    clearing: bool,
    outcome: Result<(), netlink::Error>,
) -> Result<(), netlink::Error> {
    if clearing { gone_is_done(outcome) } else { outcome }
}

/// What VFs' ports tell of the card: with which limits it can do something, or what is missing.
fn told_by_ports<'a>(
    mut ports: impl Iterator<Item = &'a FoundPort> + Clone,
    name: &'static str,
    can: impl Fn(&FoundPort) -> bool,
    limits: &str,
    missing: &str,
) -> Capability {
    let ability = match () {
        () if ports.clone().any(can) => Ok(()),
        () if ports.next().is_none() => Err(UNKNOWN_YET.to_owned()),
        () => Err(missing.to_owned()),
    };
    limited_capability(name, &ability, limits).by_hardware()
}

/// A rate as one that a card can keep: never more, but the least that it counts.
fn kept_rate(bits: u64) -> u64 {
    match bits {
        0 => 0,
        bits => (bits / RATE_UNIT * RATE_UNIT).max(RATE_UNIT),
    }
}

impl Eswitch for DevlinkEswitch {
    fn name(&self) -> &'static str {
        "devlink"
    }

    fn prepare(&self) -> Result<(), Refused> {
        // One card that can't be prepared keeps none of the others from it.
        let cards = self.settings.devices.iter();
        let prepared: Vec<_> = cards.map(|device| self.prepare_card(device)).collect();
        prepared.into_iter().collect::<Result<(), _>>()?;
        if self.settings.devices.is_empty() {
            let cards = look::cards(&mut self.devlink(), &self.settings.devices)?;
            if cards.is_empty() {
                return Err(Refused::because(
                    "no card of this DPU is in switchdev mode: set eswitch.devices and \
                     eswitch.mode, or switch it with `devlink dev eswitch set`",
                ));
            }
        }
        Ok(())
    }

    fn cards(&self) -> Vec<Card> {
        self.latest().cards.clone()
    }

    fn card_of(&self, vf: FunctionId) -> Option<String> {
        self.latest().card_of(vf).map(ToString::to_string)
    }

    fn problems(&self) -> Vec<String> {
        self.latest().problems()
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let index = match event {
            LinkEvent::Missed => return true,
            LinkEvent::PortChanged { .. } => return false,
            LinkEvent::Changed(link) => link.index,
            LinkEvent::Gone { index, .. } => *index,
        };
        self.latest().has_link(index)
    }

    fn has_devlink_cards(&self) -> bool {
        true
    }

    /// As the latest look found them.
    fn capabilities(&self) -> Vec<Capability> {
        let latest = self.latest();
        self.capabilities_of(&latest, latest.ports())
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        check_ingress_rate(settings.bandwidth.ingress_rate, &self.token_bucket)?;
        let latest = self.latest();
        // A port that no look has found yet is told by its programming.
        let Some(tried) = latest.card_of(settings.vf).and_then(|card| latest.tried(card)) else {
            return Ok(());
        };
        check_rate_tree(settings, &tried.egress_share, &tried.egress_total)
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        // The ports first: a link that comes between the two looks is told of by an event, and has its
        // port at the next.
        let mut look = look::everything(&mut self.devlink(), &self.settings.devices)?;
        let links = self.links.all()?;
        let mut representors = look.representors(links);
        self.try_cards(&mut look, &mut representors);
        self.delete_empty_nodes(&look);
        let capabilities: Vec<_> =
            look.cards.iter().map(|card| self.capabilities_of_card(&look, card)).collect();
        for (card, capabilities) in look.cards.iter_mut().zip(capabilities) {
            card.capabilities = capabilities;
        }
        self.note(look);
        Ok(representors)
    }

    /// Asks only for what is where it was. If it is not, all is looked at.
    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        let Some(port) = self.known_port(vf)? else {
            return self.search(vf);
        };
        let Some(netdev) = &port.netdev else { return Ok(None) };
        let link = self.links.of_index(netdev.index);
        let link = link.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        let found = FoundPort::new(&port, self.leaf(&port)?.as_ref());
        let offloads_filters = self.latest().offloads_filters(&found.device);
        let representor =
            link.map(|link| Representor { offloads_filters, ..found.representor(vf, link) });
        self.latest().note(vf, found);
        Ok(representor)
    }

    fn set_port_mac(&self, port: &Representor, mac: MacAddress) -> Result<(), Refused> {
        self.set_mac(&self.existing_port(port)?, mac)
    }

    /// As it was before it was first set.
    fn clear_port_mac(&self, port: &Representor) -> Result<(), Refused> {
        match self.port(port)? {
            Some(port) => self.set_mac(&port, NO_MAC),
            None => Ok(()),
        }
    }

    fn port_mac(&self, port: &Representor, mac: MacAddress) -> Result<Reading, Refused> {
        let port = self.existing_port(port)?;
        Ok(match port.function.and_then(|function| function.mac) {
            None => Reading::in_place("set by the host"),
            Some(NO_MAC) => Reading::missing("none"),
            Some(current) => Reading { in_place: current == mac, detail: current.to_string() },
        })
    }

    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        self.links.carried()
    }

    fn limits_egress(&self, vf: FunctionId) -> bool {
        self.latest().found(vf).is_none_or(FoundPort::limits_egress)
    }

    fn set_rate(&self, representor: &Representor, settings: &PortSettings) -> Result<(), Refused> {
        self.links.limit(representor, &settings.bandwidth)?;
        let port = self.existing_port(representor)?;
        self.set_egress_rate(&port, self.egress_rate_of(representor, &settings.bandwidth))?;
        self.place(&port, &Place::of(settings))
    }

    fn clear_rate(&self, port: &Representor) -> Result<(), Refused> {
        self.links.unlimit(port)?;
        match self.port(port)? {
            Some(port) => {
                self.set_egress_rate(&port, 0)?;
                self.place(&port, &Place::default())
            }
            None => Ok(()),
        }
    }

    fn rate(&self, port: &Representor, settings: &PortSettings) -> Result<Reading, Refused> {
        let bandwidth = &settings.bandwidth;
        let ingress = self.links.limit_in_force(port)?;
        let leaf = self.leaf(&self.existing_port(port)?)?;
        let egress = leaf.as_ref().map_or(0, |leaf| leaf.max_bits);
        let (is_placed, in_tree) = self.find_place(leaf.as_ref(), &Place::of(settings))?;
        let to_pod = ingress.map(described);
        let from_pod = (egress != 0).then(|| format!("from the pod {egress} bit/s"));
        let detail: Vec<_> = to_pod.into_iter().chain(from_pod).chain(in_tree).collect();
        Ok(Reading {
            in_place: ingress == when_limited(bandwidth, port)
                && egress == self.egress_rate_of(port, bandwidth)
                && is_placed,
            detail: if detail.is_empty() { "unlimited".to_owned() } else { detail.join(", ") },
        })
    }

    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.links.set_mtu(port, mtu)
    }

    fn set_label(&self, port: &Representor, label: &Label) -> Result<(), Refused> {
        self.links.set_label(port, label)
    }

    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        self.links.set_up(port, up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_keeps_a_rate_in_whole_megabits() {
        let rates = [0, 1, 999_999, 1_999_999, 10_485_760, 100_000_000].map(kept_rate);
        assert_eq!(rates, [0, 1_000_000, 1_000_000, 1_000_000, 10_000_000, 100_000_000]);
    }
}
