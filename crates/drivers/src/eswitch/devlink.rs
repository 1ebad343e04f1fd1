//! The eswitch driver `devlink`, for real cards and netdevsim.
//!
//! A representor is the link of a devlink port of flavour `pcivf`. The port's controller, PF and VF number identify
//! its VF; names do not.
//!
//! The devlink socket, the links and the latest snapshot have a lock each. The snapshot's lock is never held across
//! a call to the kernel, because attaches check settings under it.

mod snapshot;
mod tree;
mod trials;

use std::collections::{BTreeMap, BTreeSet};

use netlink::{
    Devlink, DevlinkDevice, DevlinkPort, EswitchMode, LinkEvent, MacAddress, Rate, RateChange,
    RateSubject, gone_is_done,
};
use parking_lot::Mutex;
use vf_alloc::FunctionId;

use super::{
    Card, Carried, Eswitch, Representor,
    link::{Links, check_ingress_rate, check_rate_tree, described, when_limited},
};
use crate::{
    driver::{Ability, Capability, Fault, Reading, Refused, Unsupported, limited_capability},
    probe::KernelAbilities,
};
use model::{Bandwidth, Label, PortSettings, duplicates};
use snapshot::{FoundPort, Snapshot, vf_of};
use tree::{Place, Trees, card_rate};
use trials::{Feature, Trial, UNKNOWN_YET};

/// The MAC address that devlink reports for a VF without one.
const NO_MAC: MacAddress = MacAddress([0; 6]);

const NO_MAC_OF_VFS: &str = "the card does not set the MAC addresses of VFs; the host sets them";

const BY_FILTERS: &str = "guards also apply to frames that the card forwards by itself";

const BY_THE_QUEUE: &str =
    "by the representor's queue: what the card forwards by itself passes it by";
const NO_EGRESS_RATE: &str =
    "the card's driver does not limit what VFs send; the fabric does, where it can";

const WHOLE_MEGABITS: &str = "in whole Mbit/s, rounded down";

/// The refusal for a VF without a rate leaf.
const NO_LEAF: &str = "the card's driver has no rates of VFs; leave it out";

/// The configured cards and their mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevlinkSettings {
    /// The cards. Empty: every card in switchdev mode.
    pub devices: Vec<DevlinkDevice>,
    /// The mode to put them into. `None`: they stay as they are.
    pub mode: Option<EswitchMode>,
}

impl DevlinkSettings {
    /// Finds errors in the settings: one sentence each.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.mode.is_some() && self.devices.is_empty() {
            problems
                .push("eswitch.mode is set: name the cards it is for in eswitch.devices".into());
        }
        let names: Vec<_> = self.devices.iter().map(ToString::to_string).collect();
        let names = names.iter().map(String::as_str);
        problems
            .extend(duplicates(names).map(|name| format!("eswitch.devices holds {name:?} twice")));
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
    /// The latest snapshot, for questions that must not wait for the kernel. Never locked across a call to the
    /// kernel: a check of settings waits for this lock while others wait for the check.
    latest: Mutex<Snapshot>,
}

impl DevlinkEswitch {
    /// A driver for cards in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no devlink, or can't be asked.
    pub fn open(settings: DevlinkSettings, abilities: &KernelAbilities) -> Result<Self, Refused> {
        let devlink = Devlink::open().map_err(|error| Refused::new("open the eswitch", error))?;
        let eswitch = Self {
            settings,
            links: Links::open()?,
            devlink: Mutex::new(devlink),
            token_bucket: abilities.token_bucket.clone(),
            trees: Trees::default(),
            latest: Mutex::new(Snapshot::default()),
        };
        // A failure now is reported by each later listing.
        drop(eswitch.representors());
        Ok(eswitch)
    }

    /// Puts a configured card into its mode. Fails unless the card ends up in switchdev mode.
    fn prepare_card(&self, device: &DevlinkDevice) -> Result<(), Refused> {
        let mut devlink = self.devlink.lock();
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

    /// The devlink port of a VF, looked up where the latest snapshot has it. `None`: it is not there any more.
    fn known_port(&self, vf: FunctionId) -> Result<Option<DevlinkPort>, Refused> {
        let Some((device, index)) = self.latest.lock().place_of(vf) else { return Ok(None) };
        let found = self.devlink.lock().port(&device, index);
        let found = found.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        Ok(found.filter(|port| vf_of(port) == Some(vf)))
    }

    /// Finds the representor of a VF by listing everything.
    fn search(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        let found = self.representors()?.into_iter().find(|found| found.vf == vf);
        match self.latest.lock().why_not(vf) {
            Some(why) if found.is_none() => Err(Refused::because(why)),
            _ => Ok(found),
        }
    }

    /// Tests the cards' features on these representors, and records the result in the snapshot.
    fn try_cards(&self, snapshot: &mut Snapshot, representors: &mut [Representor]) {
        let known = self.latest.lock().trials.clone();
        snapshot.trials.clone_from(&known);
        let cards: BTreeSet<_> = snapshot.ports().map(|found| found.device.clone()).collect();
        for card in cards {
            let its: Vec<_> =
                representors.iter().filter(|port| snapshot.is_of(port, &card)).collect();
            let attempt = |port: &Representor, feature| self.attempt(snapshot, port, feature);
            if let Some(trial) = Trial::of_card(known.get(&card), &its, attempt) {
                snapshot.trials.insert(card, trial);
            }
        }
        for port in representors {
            port.offloads_filters =
                snapshot.card_of(port.vf).is_some_and(|card| snapshot.offloads_filters(card));
        }
    }

    fn attempt(&self, snapshot: &Snapshot, port: &Representor, feature: Feature) -> Ability {
        match feature {
            Feature::Filters => self.links.try_filters(port),
            Feature::EgressShare => self.attempt_at_leaf(snapshot, port, tree::try_share),
            Feature::EgressTotal => self.attempt_at_leaf(snapshot, port, |devlink, leaf| {
                tree::try_node(devlink, &leaf.device)
            }),
        }
    }

    fn attempt_at_leaf(
        &self,
        snapshot: &Snapshot,
        port: &Representor,
        attempt: fn(&mut Devlink, &Rate) -> Ability,
    ) -> Ability {
        let no_leaf = || NO_LEAF.to_owned();
        let (card, index) = snapshot.place_of(port.vf).ok_or_else(no_leaf)?;
        let mut devlink = self.devlink.lock();
        match devlink.rate(&card, &RateSubject::Leaf(index)) {
            Ok(leaf) => attempt(&mut devlink, &leaf.ok_or_else(no_leaf)?),
            Err(error) if error.is_unsupported() => Err(no_leaf()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Deletes nodes of ours without leaves: their last VF has vanished, or their creation was interrupted.
    fn delete_empty_nodes(&self, snapshot: &Snapshot) {
        for (device, node) in &snapshot.empty_nodes {
            let deleted = self.trees.delete(&mut self.devlink.lock(), device, node);
            deleted.unwrap_or_else(|error| {
                tracing::warn!(%device, node, %error, "cannot delete an empty rate node");
            });
        }
    }

    /// The capabilities that these ports show.
    fn capabilities_of<'a>(
        &self,
        snapshot: &Snapshot,
        ports: impl Iterator<Item = &'a FoundPort> + Clone,
    ) -> Vec<Capability> {
        let tried = snapshot.tried_at(ports.clone());
        let by_card = |feature: Feature, ability| {
            limited_capability(feature.name(), ability, WHOLE_MEGABITS).by_hardware()
        };
        vec![
            reported_by_ports(
                ports.clone(),
                "port-mac",
                |found| found.takes_mac,
                "",
                NO_MAC_OF_VFS,
            ),
            limited_capability("ingress-rate", &self.token_bucket, BY_THE_QUEUE),
            reported_by_ports(
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

    /// The capabilities of one card.
    fn capabilities_of_card(&self, snapshot: &Snapshot, card: &Card) -> Vec<Capability> {
        let ports = || snapshot.ports_of(&card.device);
        let filters = snapshot.tried_at(ports()).filters;
        let filters = limited_capability(Feature::Filters.name(), &filters, BY_FILTERS);
        self.capabilities_of(snapshot, ports()).into_iter().chain([filters.by_hardware()]).collect()
    }

    /// Stores the snapshot. Logs new problems, and changes of what cards can do.
    fn note(&self, snapshot: Snapshot) {
        let (problems, trials) = (snapshot.problems(), snapshot.trials.clone());
        let known = self.replace_latest(snapshot);
        trials::log_changes(&known.trials, &trials);
        let known = known.problems();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!(problem, "VFs can't be served");
        }
    }

    /// Replaces the latest snapshot, and returns the previous one.
    fn replace_latest(&self, snapshot: Snapshot) -> Snapshot {
        let mut latest = self.latest.lock();
        let snapshot = snapshot.after(&latest);
        std::mem::replace(&mut *latest, snapshot)
    }

    /// The devlink port of a representor. A card reuses port numbers after a reset: a port with another link is
    /// another port.
    fn port(&self, port: &Representor) -> Result<Option<DevlinkPort>, Refused> {
        Ok(self.known_port(port.vf)?.filter(|found| found.link == Some(port.index)))
    }

    fn existing_port(&self, port: &Representor) -> Result<DevlinkPort, Refused> {
        let gone = || Refused::because(format!("representor {} is gone", port.name));
        self.port(port)?.ok_or_else(gone)
    }

    /// The rate leaf of a port. `None`: the card can't limit it.
    fn leaf(&self, port: &DevlinkPort) -> Result<Option<Rate>, Refused> {
        let rate = self.devlink.lock().rate(&port.device, &RateSubject::Leaf(port.index));
        match rate {
            Ok(rate) => Ok(rate),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(Refused::new(format!("read the rate of port {port}"), error)),
        }
    }

    fn set_egress_rate(&self, port: &DevlinkPort, bits: u64) -> Result<(), Refused> {
        match self.leaf(port)? {
            Some(leaf) if leaf.max_bits == bits => Ok(()),
            // The card can't limit this VF, so the fabric does.
            None => Ok(()),
            Some(_) => {
                let change = RateChange::new().max_bits(bits);
                let leaf = RateSubject::Leaf(port.index);
                let limited = self.devlink.lock().set_rate(&port.device, &leaf, &change);
                match limited {
                    // Some drivers create leaves and refuse rates. From now on the fabric limits this VF.
                    Err(error) if error.is_unsupported() => {
                        if let Some(vf) = vf_of(port) {
                            self.latest.lock().note_refused_rate(vf);
                        }
                        Ok(())
                    }
                    limited => gone_is_done_if(bits == 0, limited)
                        .map_err(|error| Refused::new(format!("limit port {port}"), error)),
                }
            }
        }
    }

    /// Moves the VF's leaf to its place in the card's rate tree.
    fn place(&self, port: &DevlinkPort, place: &Place) -> Result<(), Refused> {
        let Some(leaf) = self.leaf(port)? else {
            // A lack of the card: another VF of it would fail, too.
            let lacks = || Refused::because(NO_LEAF).blamed_on(Fault::Elsewhere);
            return if place.is_idle() { Ok(()) } else { Err(lacks()) };
        };
        let placed = self.trees.place(&mut self.devlink.lock(), &leaf, place);
        gone_is_done_if(place.is_idle(), placed)
            .map_err(|error| Refused::new(format!("give port {port} its place"), error))
    }

    /// Whether the VF's leaf is in its place, and what the tree has for people.
    fn find_place(
        &self,
        leaf: Option<&Rate>,
        place: &Place,
    ) -> Result<(bool, Vec<String>), Refused> {
        let Some(leaf) = leaf else { return Ok((place.is_idle(), Vec::new())) };
        let found = self.trees.find(&mut self.devlink.lock(), leaf, place);
        found.map_err(|error| Refused::new("read the rate tree", error))
    }

    /// The limit that the card should have, in bits per second; 0: none.
    fn egress_rate_of(&self, port: &Representor, bandwidth: &Bandwidth) -> u64 {
        if self.limits_egress(port.vf) { card_rate(bandwidth.egress_rate) } else { 0 }
    }

    fn set_mac(&self, port: &DevlinkPort, mac: MacAddress) -> Result<(), Refused> {
        match port.mac {
            Some(current) if current != mac => {
                gone_is_done_if(mac == NO_MAC, self.devlink.lock().set_port_mac(port, mac))
                    .map_err(|error| Refused::new(format!("program port {port}"), error))
            }
            // The port takes no MAC address, or has this one.
            _ => Ok(()),
        }
    }
}

/// When clearing, treats something that has vanished as done.
fn gone_is_done_if(
    clearing: bool,
    outcome: Result<(), netlink::Error>,
) -> Result<(), netlink::Error> {
    if clearing { gone_is_done(outcome) } else { outcome }
}

/// The capability that at least one of the VFs' ports shows, or why it is missing.
fn reported_by_ports<'a>(
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

impl Eswitch for DevlinkEswitch {
    fn name(&self) -> &'static str {
        "devlink"
    }

    fn prepare(&self) -> Result<(), Refused> {
        // Prepare all cards before the first failure is returned.
        let cards = self.settings.devices.iter();
        let prepared: Vec<_> = cards.map(|device| self.prepare_card(device)).collect();
        prepared.into_iter().collect::<Result<(), _>>()?;
        if self.settings.devices.is_empty() {
            let cards = snapshot::cards(&mut self.devlink.lock(), &self.settings.devices)?;
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
        self.latest.lock().cards.clone()
    }

    fn card_of(&self, vf: FunctionId) -> Option<String> {
        self.latest.lock().card_of(vf).map(ToString::to_string)
    }

    fn problems(&self) -> Vec<String> {
        self.latest.lock().problems()
    }

    fn concerns(&self, event: &LinkEvent) -> bool {
        let index = match event {
            LinkEvent::Missed => return true,
            LinkEvent::PortChanged { .. } => return false,
            LinkEvent::Changed(link) => link.index,
            LinkEvent::Gone { index, .. } => *index,
        };
        self.latest.lock().has_link(index)
    }

    fn has_devlink_cards(&self) -> bool {
        true
    }

    /// The capabilities of the latest snapshot.
    fn capabilities(&self) -> Vec<Capability> {
        let latest = self.latest.lock();
        self.capabilities_of(&latest, latest.ports())
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        check_ingress_rate(settings.bandwidth.ingress_rate, &self.token_bucket)?;
        let latest = self.latest.lock();
        // An unknown port is checked when it is programmed.
        let Some(tried) = latest.card_of(settings.vf).and_then(|card| latest.tried(card)) else {
            return Ok(());
        };
        check_rate_tree(settings, &tried.egress_share, &tried.egress_total)
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        // List ports before links: a link that appears in between causes an event, and the next listing has its
        // port.
        let mut snapshot = snapshot::take(&mut self.devlink.lock(), &self.settings.devices)?;
        let links = self.links.all()?;
        let mut representors = snapshot.representors(links);
        self.try_cards(&mut snapshot, &mut representors);
        self.delete_empty_nodes(&snapshot);
        let capabilities: Vec<_> =
            snapshot.cards.iter().map(|card| self.capabilities_of_card(&snapshot, card)).collect();
        for (card, capabilities) in snapshot.cards.iter_mut().zip(capabilities) {
            card.capabilities = capabilities;
        }
        self.note(snapshot);
        Ok(representors)
    }

    /// Asks only for the port and link where they were. Lists everything if they are not there.
    fn representor(&self, vf: FunctionId) -> Result<Option<Representor>, Refused> {
        let Some(port) = self.known_port(vf)? else {
            return self.search(vf);
        };
        let Some(index) = port.link else { return Ok(None) };
        let link = self.links.of_index(index);
        let link = link.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        let found = FoundPort::new(&port, self.leaf(&port)?.as_ref());
        let offloads_filters = self.latest.lock().offloads_filters(&found.device);
        let representor =
            link.map(|link| Representor { offloads_filters, ..found.representor(vf, link) });
        self.latest.lock().note(vf, found);
        Ok(representor)
    }

    fn set_port_mac(&self, port: &Representor, mac: MacAddress) -> Result<(), Refused> {
        self.set_mac(&self.existing_port(port)?, mac)
    }

    /// Resets the MAC address to the one of a VF that never had one.
    fn clear_port_mac(&self, port: &Representor) -> Result<(), Refused> {
        match self.port(port)? {
            Some(port) => self.set_mac(&port, NO_MAC),
            None => Ok(()),
        }
    }

    fn port_mac(&self, port: &Representor, mac: MacAddress) -> Result<Reading, Refused> {
        let port = self.existing_port(port)?;
        Ok(match port.mac {
            None => Reading::in_place("set by the host"),
            Some(NO_MAC) => Reading::missing("none"),
            Some(current) => Reading { in_place: current == mac, detail: current.to_string() },
        })
    }

    fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        self.links.carried()
    }

    fn limits_egress(&self, vf: FunctionId) -> bool {
        self.latest.lock().found(vf).is_none_or(FoundPort::limits_egress)
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
        let rates = [0, 1, 999_999, 1_999_999, 10_485_760, 100_000_000].map(card_rate);
        assert_eq!(rates, [0, 1_000_000, 1_000_000, 1_000_000, 10_000_000, 100_000_000]);
    }
}
