//! Bridge ports that drop frames which bypassed the ingress filters.
//!
//! The kernel skips a link's ingress filters, those of traffic control and of nftables, for a frame that an ifb device
//! sent (`tc_skip_classify`: drivers/net/ifb.c and `__netif_receive_skb_core` in net/core/dev.c). This holds even if
//! the ifb is in a pod's namespace, at the other end of a veth pair. The bridge still receives the frame.
//!
//! Therefore a rule at the end of the ingress chain marks the frames that passed the filters. A rule of the bridge
//! family drops frames of such ports without the mark. Frames from another namespace have no mark (`skb_scrub_packet`
//! clears it).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString},
};

use netlink_bindings::nftables::{
    OpDelruleDo, OpGetchainDump, OpGetruleDump, OpGetsetelemDump, OpNewchainDo,
};
use netlink_packet_core::NlaBuffer;
use nix::errno::Errno;

use super::{
    Nftables, Term,
    encode::{self, HEADER_LEN, Message, NFPROTO_BRIDGE, NFPROTO_NETDEV},
    expressions::ACCEPT,
    table::{LinkName, Set, name},
};
use crate::{
    datagram::{Object, attributes_in},
    error::{Error, RefusalCause},
};

/// Name of both tables: family `netdev` and family `bridge`.
const TABLE: &CStr = c"dpu-offload-ports";
/// The set of protected ports.
const PORTS: &CStr = c"ports";
/// The chain for all bridges. Each port has a chain of its own, named after the link.
const CHAIN: &CStr = c"bypass";

/// `NFTA_RULE_EXPRESSIONS`
const EXPRESSIONS: u16 = 4;

/// Family and name of a chain.
type Place = (u8, CString);

/// Mark of a frame that passed the ingress filters. It is cleared in the bridge.
const MARK: u32 = 0x6470_7531;

/// `NF_BR_PRE_ROUTING` and `NF_NETDEV_INGRESS`
const FIRST_HOOK: u32 = 0;

/// Priority before br_netfilter and everything that may change the mark.
const FIRST: i32 = i32::MIN;
/// Priority after all other ingress filters.
const LAST: i32 = i32::MAX;

const RULE_OF_PORT: &[Term] = &[Term::Mark(MARK)];
/// The second rule clears the mark, so that programs after the bridge do not see it.
const RULES: [&[Term]; 2] =
    [&[Term::From(PORTS), Term::NotMarked(MARK), Term::Drop], &[Term::From(PORTS), Term::Mark(0)]];

impl Nftables {
    /// Makes bridges drop frames of this port that bypassed the ingress filters. A link that is created later with the
    /// same name needs the call again: the kernel deletes the port's chain with the link.
    ///
    /// # Errors
    /// If the kernel refuses. Nothing has changed.
    pub fn require_ingress(&mut self, port: &str) -> Result<(), Error> {
        let set = self.socket.transact(&encode::batch(None, requirement(port).into_iter()));
        set.map_err(|cause| {
            cause.into_error(format!("have bridges drop what has not passed the filters at {port}"))
        })
    }

    /// Lists the links that are protected completely. It compares the rules' expressions and the chains' hooks, so that
    /// a change by another program is noticed.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn ports_requiring_ingress(&mut self) -> Result<BTreeSet<String>, Error> {
        let failed =
            |cause: RefusalCause| cause.into_error("look for the rules of nftables about ports");
        let (rules, chains) =
            (self.rules_of_ports().map_err(failed)?, self.chains().map_err(failed)?);
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
        let mut ports = self.elements_of_ports().map_err(failed)?;
        ports.retain(|port| is_there(NFPROTO_NETDEV, &name(port), &rule_of_port));
        Ok(ports)
    }

    /// Lists the expressions of each rule of both tables, by family and chain.
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

    /// Lists the chains of both tables that have the right hook and priority.
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

    /// Lists the links in the set of ports.
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

/// Returns the chain's name if its table, hook, priority, device and policy are right.
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
        && chain.get_policy().ok()? == ACCEPT;
    is_called.then(|| name.to_owned())
}

/// Encodes a rule's expressions as sent to the kernel.
fn expressions_of(rule: &[Term]) -> Vec<u8> {
    expressions_in(new_rule(NFPROTO_BRIDGE, CHAIN, rule).payload())
}

/// Compares attributes. The kernel adds attributes of its own, whose values are zero; these are skipped.
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

/// Copies the expressions of the rule in a message.
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

/// Messages that create both tables and the port's rules, whether they exist or not. Chains are emptied before rules
/// are added, so that a repetition leaves no duplicates.
fn requirement(port: &str) -> Vec<Message> {
    let link = name(port);
    let ports = Set::of_links(PORTS, [LinkName::new(port)]);
    let of_bridge = encode::header_of(NFPROTO_BRIDGE);
    let bridge_rules = RULES.map(|rule| new_rule(NFPROTO_BRIDGE, CHAIN, rule));
    let mut messages = vec![
        encode::new_table(&encode::header_of(NFPROTO_NETDEV), TABLE),
        new_chain(NFPROTO_NETDEV, &link, LAST, Some(&link)),
        without_rules(NFPROTO_NETDEV, &link),
        new_rule(NFPROTO_NETDEV, &link, RULE_OF_PORT),
        encode::new_table(&of_bridge, TABLE),
        encode::new_set(&of_bridge, TABLE, &ports),
        new_chain(NFPROTO_BRIDGE, CHAIN, FIRST, None),
        without_rules(NFPROTO_BRIDGE, CHAIN),
    ];
    messages.extend(bridge_rules);
    messages.push(encode::new_elements(&of_bridge, TABLE, &ports, &ports.elements));
    messages
}

fn new_rule(family: u8, chain: &CStr, rule: &[Term]) -> Message {
    encode::new_rule(&encode::header_of(family), TABLE, chain, rule)
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
        drop(hook.end_nested().push_policy(ACCEPT).push_type(c"filter"));
    })
}

fn without_rules(family: u8, chain: &CStr) -> Message {
    Message::query(encode::DELETE_RULE, |payload| {
        let request = OpDelruleDo::encode_request(payload, &encode::header_of(family));
        drop(request.push_table(TABLE).push_chain(chain));
    })
}
