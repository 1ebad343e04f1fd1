//! Ports of bridges that take nothing which has not passed the filters at their ingress.
//!
//! The kernel passes over the filters at a link's ingress, those of traffic control as those of nftables, for a frame
//! that an ifb has sent (`tc_skip_classify`, drivers/net/ifb.c and `__netif_receive_skb_core` in net/core/dev.c), also
//! where that was in another namespace, at the other end of a veth pair. A bridge still sees it. So a rule at the
//! ingress, behind those filters, marks what has passed them, and one of the bridges' family drops what comes in at
//! such a port without the mark. What comes from another namespace has none (`skb_scrub_packet`).

use std::ffi::{CStr, CString};

use netlink_bindings::nftables::{
    OpDelruleDo, OpGetchainDo, OpGettableDo, OpNewchainDo, OpNewsetDo, OpNewsetelemDo,
};
use nix::errno::Errno;

use super::{
    Nftables, Term,
    encode::{self, Message, NFPROTO_BRIDGE, NFPROTO_NETDEV},
    name,
    table::{LinkName, Part},
};
use crate::{Error, datagram::Object, socket::RefusalCause};

/// The name of both tables.
const TABLE: &CStr = c"dpu-offload-ports";
/// The set of those ports.
const PORTS: &CStr = c"ports";
/// The chain for all bridges. Ports have one each, by their names.
const CHAIN: &CStr = c"detours";

/// What marks a frame that has passed the filters, from there to the bridge.
const MARK: u32 = 0x6470_7531;

/// `NF_BR_PRE_ROUTING` and `NF_NETDEV_INGRESS`
const FIRST_HOOK: u32 = 0;

/// Before br_netfilter and all that may change the mark.
const FIRST: i32 = i32::MIN;
/// Behind all other filters.
const LAST: i32 = i32::MAX;

const RULE_OF_PORT: &[Term] = &[Term::Mark(MARK)];
/// The second rule clears the mark, so that programs behind the bridge do not see it.
const RULES: [&[Term]; 2] =
    [&[Term::From(PORTS), Term::NotMarked(MARK), Term::Drop], &[Term::From(PORTS), Term::Mark(0)]];

impl Nftables {
    /// Has what comes in at the link of that name dropped by the bridge that the link is a port of, unless it has
    /// passed the filters at the link's ingress. A link of that name that is made later may need it again.
    ///
    /// # Errors
    /// The kernel's refusal; all is as it was.
    pub fn require_ingress(&mut self, port: &str) -> Result<(), Error> {
        let told = |cause: RefusalCause| {
            cause.told_as(format!("have bridges drop what has not passed the filters at {port}"))
        };
        self.socket.transact(&encode::batch(None, requirement(port).into_iter())).map_err(told)
    }

    /// Whether that is so.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn requires_ingress(&mut self, port: &str) -> Result<bool, Error> {
        let told = |cause: RefusalCause| {
            cause.told_as(format!("look for the rules of nftables about port {port}"))
        };
        let is_marked = self.rules(NFPROTO_NETDEV, &name(port)).map_err(told)? == Some(1);
        Ok(is_marked && self.has_rules().map_err(told)? && self.has_port(port).map_err(told)?)
    }

    /// Whether that is so of as many ports as these, as far as the numbers of rules show.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn requires_ingress_of(&mut self, ports: usize) -> Result<bool, Error> {
        let told = |cause: RefusalCause| {
            cause.told_as("look for the rules of nftables about ports".to_owned())
        };
        let question = Message::query(encode::GET_TABLE, |payload| {
            let header = encode::header_of(NFPROTO_NETDEV);
            drop(OpGettableDo::encode_request(payload, &header).push_name(TABLE));
        });
        let read = |object: Object<'_>| {
            let (_header, table) = OpGettableDo::decode_request(object.payload);
            table.get_use().map_err(|error| error.to_string())
        };
        let chains = unless_missing(self.socket.get(&question, read)).map_err(told)?;
        let chains = chains.and_then(|chains| usize::try_from(chains).ok()).unwrap_or_default();
        Ok(chains >= ports && self.has_rules().map_err(told)?)
    }

    /// Whether there are the rules of all bridges.
    fn has_rules(&mut self) -> Result<bool, RefusalCause> {
        let rules = self.rules(NFPROTO_BRIDGE, CHAIN)?;
        Ok(rules.and_then(|rules| usize::try_from(rules).ok()) == Some(RULES.len()))
    }

    /// How many rules a chain has. `None`: there is no such chain.
    fn rules(&mut self, family: u8, chain: &CStr) -> Result<Option<u32>, RefusalCause> {
        let question = Message::query(encode::GET_CHAIN, |payload| {
            let request = OpGetchainDo::encode_request(payload, &encode::header_of(family));
            drop(request.push_table(TABLE).push_name(chain));
        });
        let read = |object: Object<'_>| {
            let (_header, chain) = OpGetchainDo::decode_request(object.payload);
            chain.get_use().map_err(|error| error.to_string())
        };
        unless_missing(self.socket.get(&question, read))
    }

    fn has_port(&mut self, port: &str) -> Result<bool, RefusalCause> {
        let question =
            Message::query(encode::GET_ELEMENTS, |payload| fill_with_element(payload, port));
        Ok(unless_missing(self.socket.get(&question, |_| Ok(())))?.is_some())
    }
}

fn unless_missing<T>(found: Result<T, RefusalCause>) -> Result<Option<T>, RefusalCause> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// Both tables with what they have for the port, be they there or not.
fn requirement(port: &str) -> Vec<Message> {
    let link = name(port);
    let bridge_rules = RULES.map(|rule| new_rule(NFPROTO_BRIDGE, CHAIN, rule));
    let mut messages = vec![
        encode::new_table_of(NFPROTO_NETDEV, TABLE),
        new_chain(NFPROTO_NETDEV, &link, LAST, Some(&link)),
        without_rules(NFPROTO_NETDEV, &link),
        new_rule(NFPROTO_NETDEV, &link, RULE_OF_PORT),
        encode::new_table_of(NFPROTO_BRIDGE, TABLE),
        new_set(),
        new_chain(NFPROTO_BRIDGE, CHAIN, FIRST, None),
        without_rules(NFPROTO_BRIDGE, CHAIN),
    ];
    messages.extend(bridge_rules);
    let new_element = |payload: &mut Vec<u8>| fill_with_element(payload, port);
    messages.push(Message::creation(encode::NEW_ELEMENTS, new_element));
    messages
}

fn new_rule(family: u8, chain: &CStr, rule: &[Term]) -> Message {
    encode::new_rule_of(family, TABLE, chain, rule)
}

fn new_chain(family: u8, chain: &CStr, priority: i32, link: Option<&CString>) -> Message {
    Message::creation(encode::NEW_CHAIN, |payload| {
        let request = OpNewchainDo::encode_request(payload, &encode::header_of(family))
            .push_table(TABLE)
            .push_name(chain);
        let hook = request.nested_hook().push_num(FIRST_HOOK).push_priority(priority);
        let hook = match link {
            Some(link) => hook.push_dev(link),
            None => hook,
        };
        drop(hook.end_nested().push_policy(encode::ACCEPT).push_type(c"filter"));
    })
}

/// Takes all rules out of a chain.
fn without_rules(family: u8, chain: &CStr) -> Message {
    Message::query(encode::DELETE_RULE, |payload| {
        let request = OpDelruleDo::encode_request(payload, &encode::header_of(family));
        drop(request.push_table(TABLE).push_chain(chain));
    })
}

fn new_set() -> Message {
    const KEY: &[Part] = &[Part::Link];
    Message::creation(encode::NEW_SET, |payload| {
        let request = OpNewsetDo::encode_request(payload, &encode::header_of(NFPROTO_BRIDGE))
            .push_table(TABLE)
            .push_name(PORTS)
            .push_key_type(encode::number_of(KEY))
            .push_key_len(encode::length_of(KEY))
            .push_id(1);
        drop(request.push_userdata(&encode::HOST_ENDIAN));
    })
}

/// Names the port's element of the set.
fn fill_with_element(payload: &mut Vec<u8>, port: &str) {
    let request = OpNewsetelemDo::encode_request(payload, &encode::header_of(NFPROTO_BRIDGE));
    let list = request.push_table(TABLE).push_set(PORTS).nested_elements();
    let key = list.nested_elem().nested_key().push_value(LinkName::new(port).as_bytes());
    drop(key.end_nested().end_nested());
}
