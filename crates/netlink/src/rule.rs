//! Rules that choose the routing table.

use std::fmt;

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::{Request, request::Existing};

/// Packets from `source` are routed by `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where from. Host bits are ignored.
    pub source: IpNetwork,
    /// The table that is looked up.
    pub table: u32,
    /// Rules of lower numbers come first. `None`: before all that have one but the local table's.
    pub priority: Option<u32>,
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = match self.source {
            IpNetwork::V4(_) => AddressFamily::Inet,
            IpNetwork::V6(_) => AddressFamily::Inet6,
        };
        message.header.src_len = self.source.prefix();
        message.header.action = RuleAction::ToTable;
        message.attributes.push(RuleAttribute::Source(self.source.network()));
        message.attributes.push(RuleAttribute::Table(self.table));
        message.attributes.extend(self.priority.map(RuleAttribute::Priority));
        message
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "from {} to table {}", self.source, self.table)
    }
}

impl Request<'_> {
    /// Adds a rule.
    #[must_use]
    pub fn add_rule(rule: &Rule) -> Self {
        let message = RouteNetlinkMessage::NewRule(rule.message());
        Self::new(format!("add the rule {rule}"), None, message, Existing::Refused)
    }

    /// Deletes a rule.
    #[must_use]
    pub fn delete_rule(rule: &Rule) -> Self {
        let message = RouteNetlinkMessage::DelRule(rule.message());
        Self::new(format!("delete the rule {rule}"), None, message, Existing::Required)
    }
}

/// The rule that a message describes. `None`: it chooses by something else than the source.
pub(crate) fn described_by(message: &RuleMessage) -> Option<Rule> {
    let mut source = None;
    let mut table = u32::from(message.header.table);
    let mut priority = None;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(address) => source = Some(*address),
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Priority(number) => priority = Some(*number),
            _ => {}
        }
    }
    let source = IpNetwork::new(source?, message.header.src_len).ok()?;
    Some(Rule { source, table, priority })
}
