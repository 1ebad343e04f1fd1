//! Rate limits of what functions send, in a tree: leaves are ports, nodes bundle them.

use std::fmt;

use super::device::{Attributes, Command, DevlinkDevice, device_of};
use crate::generic::text;

/// What a rate limit is on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateSubject {
    /// The function behind the port of this index.
    Leaf(u32),
    /// All that has this node for its parent.
    Node(String),
}

impl fmt::Display for RateSubject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaf(port) => write!(out, "port {port}"),
            Self::Node(name) => write!(out, "rate node {name}"),
        }
    }
}

/// A rate limit of a card, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rate {
    /// The card.
    pub device: DevlinkDevice,
    /// What it is on.
    pub subject: RateSubject,
    /// What it can be sure of, in bits per second. 0: nothing.
    pub share_bits: u64,
    /// What it can't exceed, in bits per second. 0: no limit.
    pub max_bits: u64,
    /// The node that it is under.
    pub parent: Option<String>,
}

/// What to change of a rate limit, in bits per second. The kernel counts in whole bytes, and cards
/// in whole Mbit/s: they refuse what is finer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RateChange {
    share_bits: Option<u64>,
    max_bits: Option<u64>,
    parent: Option<String>,
}

impl RateChange {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it can be sure of. 0: nothing.
    pub fn share_bits(self, bits: u64) -> Self {
        Self { share_bits: Some(bits), ..self }
    }

    /// What it can't exceed. 0: no limit.
    pub fn max_bits(self, bits: u64) -> Self {
        Self { max_bits: Some(bits), ..self }
    }

    /// The node that it is under from now on, or none.
    pub fn parent(self, node: Option<&str>) -> Self {
        Self { parent: Some(node.unwrap_or_default().to_owned()), ..self }
    }

    pub(super) fn describe(&self, mut command: Command) -> Command {
        if let Some(bits) = self.share_bits {
            command = command.push_rate_tx_share(bits / 8);
        }
        if let Some(bits) = self.max_bits {
            command = command.push_rate_tx_max(bits / 8);
        }
        if let Some(node) = &self.parent {
            command = command.push_rate_parent_node_name_bytes(node.as_bytes());
        }
        command
    }
}

/// In words: `at least 1000000 bit/s, at most 5000000 bit/s`.
impl fmt::Display for RateChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.share_bits.map(|bits| format!("at least {bits} bit/s")),
            self.max_bits.map(|bits| match bits {
                0 => "no limit".to_owned(),
                bits => format!("at most {bits} bit/s"),
            }),
            self.parent.as_ref().map(|node| match node.as_str() {
                "" => "no node".to_owned(),
                node => format!("node {node}"),
            }),
        ];
        out.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// `None`: this is no rate limit.
pub(super) fn described_by(attributes: &Attributes<'_>) -> Option<Rate> {
    let subject = match attributes.get_rate_node_name() {
        Ok(name) => RateSubject::Node(text(name)),
        Err(_) => RateSubject::Leaf(attributes.get_port_index().ok()?),
    };
    let bits = |bytes: u64| bytes.saturating_mul(8);
    Some(Rate {
        device: device_of(attributes)?,
        subject,
        share_bits: bits(attributes.get_rate_tx_share().unwrap_or_default()),
        max_bits: bits(attributes.get_rate_tx_max().unwrap_or_default()),
        parent: attributes.get_rate_parent_node_name().ok().map(text),
    })
}
