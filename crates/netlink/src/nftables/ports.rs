//! Ports of bridges that take nothing which has not passed the filters at their ingress.
//!
//! The kernel passes over the filters at a link's ingress, those of traffic control as those of nftables, for a frame
//! that an ifb has sent (`tc_skip_classify`, drivers/net/ifb.c and `__netif_receive_skb_core` in net/core/dev.c), also
//! where that was in another namespace, at the other end of a veth pair. A bridge still sees it. So a rule at the
//! ingress, behind those filters, marks what has passed them, and one of the bridges' family drops what comes in at
//! such a port without the mark. What comes from another namespace has none (`skb_scrub_packet`).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString},
};

use netlink_bindings::nftables::{
    OpDelruleDo, OpGetchainDump, OpGetruleDump, OpGetsetelemDump, OpNewchainDo, OpNewsetDo,
    OpNewsetelemDo,
};
use netlink_packet_core::NlaBuffer;
use nix::errno::Errno;

use super::{
    Nftables, Term,
    encode::{self, HEADER_LEN, Message, NFPROTO_BRIDGE, NFPROTO_NETDEV},
    name,
    table::{LinkName, Part},
};
use crate::{
    Error,
    datagram::{Object, attributes_in},
    socket::RefusalCause,
};

/// The name of both tables.
const TABLE: &CStr = c"dpu-offload-ports";
/// The set of those ports.
const PORTS: &CStr = c"ports";
/// The chain for all bridges. Ports have one each, by their names.
const CHAIN: &CStr = c"detours";

/// `NFTA_RULE_EXPRESSIONS`
const EXPRESSIONS: u16 = 4;

/// A family and the name of a chain.
type Place = (u8, CString);

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

    /// The names of the links of which that is so. Rules are compared by their expressions, and chains by their hooks.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ports_requiring_ingress(&mut self) -> Result<BTreeSet<String>, Error> {
        let told = |cause: RefusalCause| {
            cause.told_as("look for the rules of nftables about ports".to_owned())
        };
        let (rules, chains) = (self.rules_of_ports().map_err(told)?, self.chains().map_err(told)?);
        let is_there = |family: u8, chain: &CStr, wanted: &[Vec<u8>]| {
            let place = (family, chain.to_owned());
            let found = rules.get(&place).map(Vec::as_slice).unwrap_or_default();
            let are_same = wanted.iter().zip(found).all(|(wanted, found)| agree(wanted, found));
            chains.contains(&place) && wanted.len() == found.len() && are_same
        };
        if !is_there(NFPROTO_BRIDGE, CHAIN, &RULES.map(expressions_of)) {
            return Ok(BTreeSet::new());
        }
        let rule_of_port = [expressions_of(RULE_OF_PORT)];
        let mut ports = self.elements_of_ports().map_err(told)?;
        ports.retain(|port| is_there(NFPROTO_NETDEV, &name(port), &rule_of_port));
        Ok(ports)
    }

    /// The expressions of each rule of both tables, by family and chain.
    fn rules_of_ports(&mut self) -> Result<BTreeMap<Place, Vec<Vec<u8>>>, RefusalCause> {
        let mut rules = BTreeMap::<_, Vec<_>>::new();
        for family in [NFPROTO_NETDEV, NFPROTO_BRIDGE] {
            let question = Message::query(encode::GET_RULE, |payload| {
                let header = encode::header_of(family);
                drop(OpGetruleDump::encode_request(payload, &header).push_table(TABLE));
            });
            let read = |object: Object<'_>| {
                let (_header, rule) = OpGetruleDump::decode_request(object.payload);
                let chain = rule.get_chain().map_err(|error| error.to_string())?;
                Ok(Some((chain.to_owned(), expressions_in(object.payload))))
            };
            for (chain, expressions) in self.socket.list(&question, read)? {
                rules.entry((family, chain)).or_default().push(expressions);
            }
        }
        Ok(rules)
    }

    /// The chains of both tables that the kernel calls where it should.
    fn chains(&mut self) -> Result<BTreeSet<Place>, RefusalCause> {
        let mut chains = BTreeSet::new();
        for family in [NFPROTO_NETDEV, NFPROTO_BRIDGE] {
            let question = Message::query(encode::GET_CHAIN, |payload| {
                drop(OpGetchainDump::encode_request(payload, &encode::header_of(family)));
            });
            let named = self.socket.list(&question, |object| Ok(called_chain(family, &object)))?;
            chains.extend(named.into_iter().map(|chain| (family, chain)));
        }
        Ok(chains)
    }

    /// The names in the set.
    fn elements_of_ports(&mut self) -> Result<BTreeSet<String>, RefusalCause> {
        let question = Message::query(encode::GET_ELEMENTS, |payload| {
            let header = encode::header_of(NFPROTO_BRIDGE);
            let request = OpGetsetelemDump::encode_request(payload, &header);
            drop(request.push_table(TABLE).push_set(PORTS));
        });
        let listed = self.socket.list(&question, |object| {
            let (_header, attributes) = OpGetsetelemDump::decode_request(object.payload);
            let elements = attributes.get_elements().map_err(|error| error.to_string())?;
            let names = elements.get_elem().filter_map(|element| {
                let link = CStr::from_bytes_until_nul(element.get_key().ok()?.get_value().ok()?);
                Some(link.ok()?.to_str().ok()?.to_owned())
            });
            Ok(Some(names.collect::<Vec<_>>()))
        });
        Ok(unless_missing(listed)?.into_iter().flatten().flatten().collect())
    }
}

/// The name of a chain of the table that the kernel calls where it should.
fn called_chain(family: u8, object: &Object<'_>) -> Option<CString> {
    let (_header, chain) = OpGetchainDump::decode_request(object.payload);
    let (hook, name) = (chain.get_hook().ok()?, chain.get_name().ok()?);
    let (priority, link) = match family {
        NFPROTO_NETDEV => (LAST, Some(name)),
        _ => (FIRST, None),
    };
    let is_called = chain.get_table().ok()? == TABLE
        && hook.get_num().ok()? == FIRST_HOOK
        && hook.get_priority().ok()? == priority
        && hook.get_dev().ok() == link
        && chain.get_policy().ok()? == encode::ACCEPT;
    is_called.then(|| name.to_owned())
}

/// The expressions of a rule, as they are said to the kernel.
fn expressions_of(rule: &[Term]) -> Vec<u8> {
    expressions_in(new_rule(NFPROTO_BRIDGE, CHAIN, rule).payload())
}

/// Whether the attributes that are found are those that are wanted. What the kernel adds by itself is zero.
fn agree(wanted: &[u8], found: &[u8]) -> bool {
    let is_zero = |attribute: &NlaBuffer<&[u8]>| attribute.value().iter().all(|byte| *byte == 0);
    let mut found = attributes_in(found);
    let are_found = attributes_in(wanted).all(|wanted| {
        let found = found.find(|found| found.kind() == wanted.kind() || !is_zero(found));
        found.is_some_and(|found| {
            found.kind() == wanted.kind()
                && match wanted.nested_flag() {
                    true => agree(wanted.value(), found.value()),
                    false => wanted.value() == found.value(),
                }
        })
    });
    are_found && found.all(|surplus| is_zero(&surplus))
}

/// The expressions of the rule that such a message is about.
fn expressions_in(payload: &[u8]) -> Vec<u8> {
    let mut attributes = attributes_in(payload.get(HEADER_LEN..).unwrap_or_default());
    let expressions = attributes.find(|attribute| attribute.kind() == EXPRESSIONS);
    expressions.map(|expressions| expressions.value().to_vec()).unwrap_or_default()
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
        encode::new_table(&encode::header_of(NFPROTO_NETDEV), TABLE),
        new_chain(NFPROTO_NETDEV, &link, LAST, Some(&link)),
        without_rules(NFPROTO_NETDEV, &link),
        new_rule(NFPROTO_NETDEV, &link, RULE_OF_PORT),
        encode::new_table(&encode::header_of(NFPROTO_BRIDGE), TABLE),
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
    encode::new_rule_of(&encode::header_of(family), TABLE, chain, rule)
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
