//! Transmit rate limits of functions: a tree with ports as leaves and nodes that group them.

use std::fmt;

use super::device::{Attributes, Command, DevlinkDevice, device_of};
use crate::generic::text;

/// The object that a rate limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateSubject {
    /// The function behind the port of this index.
    Leaf(u32),
    /// A node: all leaves and nodes whose parent it is.
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

/// A rate limit of a card, as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rate {
    /// The card.
    pub device: DevlinkDevice,
    /// The limited object.
    pub subject: RateSubject,
    /// Guaranteed rate, in bits per second. 0: none.
    pub share_bits: u64,
    /// Maximum rate, in bits per second. 0: unlimited.
    pub max_bits: u64,
    /// Parent node.
    pub parent: Option<String>,
}

/// Changes to a rate limit, in bits per second. The kernel counts whole bytes per second. Cards refuse values that are
/// not whole Mbit/s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RateChange {
    share_bits: Option<u64>,
    max_bits: Option<u64>,
    parent: Option<String>,
}

impl RateChange {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the guaranteed rate. 0: none.
    pub fn share_bits(self, bits: u64) -> Self {
        Self { share_bits: Some(bits), ..self }
    }

    /// Sets the maximum rate. 0: unlimited.
    pub fn max_bits(self, bits: u64) -> Self {
        Self { max_bits: Some(bits), ..self }
    }

    /// Sets the parent node. `None` removes it.
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

/// For error messages: `at least 1000000 bit/s, at most 5000000 bit/s`.
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

/// `None`: the attributes do not describe a rate limit.
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
