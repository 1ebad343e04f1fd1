//! VFs' leaves in the cards' rate trees. A leaf has its VF's guaranteed share. A network with a total rate has a
//! node, and the leaves of its VFs are children of that node.
//!
//! A caller changes a tree while it holds the one [`Devlink`], so no other call deletes a node between its creation
//! and its first leaf. The kernel knows whether a node has leaves, and refuses to delete one that has.

use std::collections::BTreeMap;

use netlink::{Devlink, DevlinkDevice, Error, Rate, RateChange, RateSubject};
use parking_lot::Mutex;

use crate::driver::Ability;
use model::{PortSettings, TotalRate};

/// The unit of rates in cards, in bits per second.
const RATE_UNIT: u64 = 1_000_000;

/// The prefix of our nodes' names. Other nodes belong to other programs. The prefix alone names the node that tests
/// a card: no network's node has that name.
const PREFIX: &str = "offload-";

/// Rounds a rate down to whole Mbit/s, but to 1 Mbit/s at least.
pub(super) fn card_rate(bits: u64) -> u64 {
    match bits {
        0 => 0,
        bits => (bits / RATE_UNIT * RATE_UNIT).max(RATE_UNIT),
    }
}

/// Whether that node is one of ours.
pub(super) fn is_ours(node: &str) -> bool {
    node.starts_with(PREFIX)
}

/// A leaf's place in its tree. The default: no node, and no share.
#[derive(Debug, Default)]
pub(super) struct Place {
    share: u64,
    node: Option<Node>,
}

/// A network's node.
#[derive(Debug)]
struct Node {
    name: String,
    rate: u64,
}

impl Node {
    fn of(total: &TotalRate) -> Self {
        Self { name: format!("{PREFIX}{}", total.network), rate: card_rate(total.rate) }
    }
}

impl Place {
    pub(super) fn of(settings: &PortSettings) -> Self {
        Self {
            share: card_rate(settings.bandwidth.egress_share),
            node: settings.total_egress.as_ref().map(Node::of),
        }
    }

    /// Whether the place is the default.
    pub(super) fn is_idle(&self) -> bool {
        self.share == 0 && self.node.is_none()
    }

    fn node_name(&self) -> Option<&str> {
        self.node.as_ref().map(|node| node.name.as_str())
    }

    /// Whether the leaf is in this place. Another program's node is acceptable for a leaf that needs none.
    fn has(&self, leaf: &Rate) -> bool {
        let found = leaf.parent.as_deref();
        let is_under = match self.node_name() {
            Some(name) => found == Some(name),
            None => !found.is_some_and(is_ours),
        };
        is_under && leaf.share_bits == self.share
    }

    /// The change that moves the leaf to this place.
    fn change(&self, leaf: &Rate) -> RateChange {
        let mut change = RateChange::new();
        if leaf.share_bits != self.share {
            change = change.share_bits(self.share);
        }
        match self.node_name() {
            None if !leaf.parent.as_deref().is_some_and(is_ours) => change,
            name if name == leaf.parent.as_deref() => change,
            name => change.parent(name),
        }
    }
}

/// The trees of all cards.
#[derive(Debug, Default)]
pub(super) struct Trees {
    /// The latest limit set on each node, in bits per second. Attachments of one network differ in it if the
    /// network was changed between them; the latest programmed one decides.
    totals: Mutex<BTreeMap<(DevlinkDevice, String), u64>>,
}

impl Trees {
    /// Moves a leaf to its place, and deletes the node that it was the last to leave.
    pub(super) fn place(
        &self,
        devlink: &mut Devlink,
        leaf: &Rate,
        place: &Place,
    ) -> Result<(), Error> {
        let placed = self.move_leaf(devlink, leaf, place);
        let nodes = [leaf.parent.as_deref(), place.node_name()].into_iter().flatten();
        let left = nodes
            .filter(|node| is_ours(node) && (placed.is_err() || Some(*node) != place.node_name()));
        let cleared: Vec<_> = left.map(|node| self.delete(devlink, &leaf.device, node)).collect();
        placed.and(cleared.into_iter().collect())
    }

    fn move_leaf(&self, devlink: &mut Devlink, leaf: &Rate, place: &Place) -> Result<(), Error> {
        if let Some(node) = &place.node {
            self.set_node(devlink, &leaf.device, node)?;
        }
        if place.has(leaf) {
            return Ok(());
        }
        devlink.set_rate(&leaf.device, &leaf.subject, &place.change(leaf))
    }

    fn set_node(
        &self,
        devlink: &mut Devlink,
        device: &DevlinkDevice,
        node: &Node,
    ) -> Result<(), Error> {
        let limit = RateChange::new().max_bits(node.rate);
        match devlink.add_rate_node(device, &node.name, &limit) {
            // The network's node exists, perhaps with an earlier rate.
            Err(error) if error.is_exists() => {
                devlink.set_rate(device, &RateSubject::Node(node.name.clone()), &limit)?;
            }
            made => made?,
        }
        self.totals.lock().insert((device.clone(), node.name.clone()), node.rate);
        Ok(())
    }

    /// Deletes a node of ours unless it has leaves.
    pub(super) fn delete(
        &self,
        devlink: &mut Devlink,
        device: &DevlinkDevice,
        node: &str,
    ) -> Result<(), Error> {
        match devlink.delete_rate_node(device, node) {
            // The node still has leaves.
            Err(error) if error.is_busy() => return Ok(()),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        self.totals.lock().remove(&(device.clone(), node.to_owned()));
        Ok(())
    }

    /// Whether the leaf is in its place and its node has its rate, and sentences about both.
    pub(super) fn find(
        &self,
        devlink: &mut Devlink,
        leaf: &Rate,
        place: &Place,
    ) -> Result<(bool, Vec<String>), Error> {
        let share = leaf.share_bits;
        let mut details = Vec::from_iter((share != 0).then(|| format!("guaranteed {share} bit/s")));
        let mut is_limited = true;
        if let Some(parent) = &leaf.parent {
            let node = devlink.rate(&leaf.device, &RateSubject::Node(parent.clone()))?;
            let rate = node.map_or(0, |node| node.max_bits);
            details.push(format!("all of {parent} together {rate} bit/s"));
            is_limited =
                place.node.as_ref().is_none_or(|node| self.is_right(&leaf.device, node, rate));
        }
        Ok((place.has(leaf) && is_limited, details))
    }

    /// After a restart the latest programmed attachment is unknown, so any limit on the node counts as right.
    fn is_right(&self, device: &DevlinkDevice, node: &Node, rate: u64) -> bool {
        match self.totals.lock().get(&(device.clone(), node.name.clone())) {
            Some(last) => rate == *last,
            None => rate != 0,
        }
    }
}

/// Whether the card accepts a share: sets the one that the leaf has.
pub(super) fn try_share(devlink: &mut Devlink, leaf: &Rate) -> Ability {
    let same = RateChange::new().share_bits(leaf.share_bits);
    let tried = devlink.set_rate(&leaf.device, &leaf.subject, &same);
    tried.map_err(|error| error.to_string())
}

/// Whether the card has nodes: creates and deletes one.
pub(super) fn try_node(devlink: &mut Devlink, device: &DevlinkDevice) -> Ability {
    let made = devlink.add_rate_node(device, PREFIX, &RateChange::new().max_bits(RATE_UNIT));
    // An existing one was left by a service that ended between creation and deletion.
    let made = made.or_else(|error| if error.is_exists() { Ok(()) } else { Err(error) });
    made.and_then(|()| devlink.delete_rate_node(device, PREFIX)).map_err(|error| error.to_string())
}
