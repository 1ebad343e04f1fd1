//! Routing policy rules.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::{
    error::Error,
    request::{Existing, Request},
    rtnl::Rtnl,
};

/// A rule that looks up packets from `source` in `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source prefix. Host bits are ignored.
    pub source: IpNetwork,
    /// Table to look up.
    pub table: u32,
    /// Priority: the lowest number comes first. `None`: the kernel puts the rule before all but the local table's.
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

impl Rtnl {
    /// Lists the rules that select only by source, of both families.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn rules(&mut self) -> Result<Vec<Rule>, Error> {
        let rule = |object| match object {
            RouteNetlinkMessage::NewRule(message) => described_by(&message),
            _ => None,
        };
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RuleMessage::default();
            message.header.family = family;
            let message = RouteNetlinkMessage::GetRule(message);
            rules.extend(self.list("list the rules", &message, rule)?);
        }
        Ok(rules)
    }
}

/// Reads a rule. `None`: the rule selects by more than the source, or is one of the kernel's own.
pub(crate) fn described_by(message: &RuleMessage) -> Option<Rule> {
    let header = &message.header;
    // The kernel omits the source of a rule for all sources.
    let mut source: IpAddr = match header.family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut table = u32::from(header.table);
    let mut priority = None;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(address) => source = *address,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Priority(number) => priority = Some(*number),
            RuleAttribute::Protocol(RouteProtocol::Kernel) => return None,
            attribute if is_selector(attribute) => return None,
            _ => {}
        }
    }
    let source = IpNetwork::new(source, header.src_len).ok()?;
    Some(Rule { source, table, priority })
}

/// Whether the attribute restricts a rule by something other than the source.
const fn is_selector(attribute: &RuleAttribute) -> bool {
    matches!(
        attribute,
        RuleAttribute::Destination(_)
            | RuleAttribute::Iifname(_)
            | RuleAttribute::Oifname(_)
            | RuleAttribute::FwMark(_)
            | RuleAttribute::FwMask(_)
            | RuleAttribute::L3MDev(_)
            | RuleAttribute::UidRange(_)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
    )
}
