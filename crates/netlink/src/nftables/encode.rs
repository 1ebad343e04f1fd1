//! Encoding of tables and changes as nftables messages.

use std::ffi::{CStr, CString};

use netlink_bindings::nftables::{
    Nfgenmsg, OpBatchBeginDo, OpBatchEndDo, OpDelsetelemDo, OpDeltableDo, OpNewchainDo,
    OpNewruleDo, OpNewsetDo, OpNewsetelemDo, OpNewtableDo,
};

use super::{
    changes::Changes,
    expressions::{ACCEPT, push_term},
    table::{AGE, Chain, Element, Hook, MOST_OF_PACKETS, Part, Set, Table, Term},
};
use crate::{datagram::append_message, socket::Outgoing};

/// Length of `struct nfgenmsg`, which starts each netfilter message.
pub(super) const HEADER_LEN: usize = 4;

const NFPROTO_INET: u8 = 1;
const NFPROTO_ARP: u8 = 3;
pub(super) const NFPROTO_NETDEV: u8 = 5;
pub(super) const NFPROTO_BRIDGE: u8 = 7;
const SUBSYSTEM: u16 = 10;

// Messages: enum nfnl_batch_msgs and enum nf_tables_msg_types.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(super) const GET_TABLE: u16 = NEW_TABLE + 1;
const DELETE_TABLE: u16 = NEW_TABLE + 2;
pub(super) const NEW_CHAIN: u16 = NEW_TABLE + 3;
pub(super) const GET_CHAIN: u16 = NEW_TABLE + 4;
pub(super) const NEW_RULE: u16 = NEW_TABLE + 6;
pub(super) const GET_RULE: u16 = NEW_TABLE + 7;
pub(super) const DELETE_RULE: u16 = NEW_TABLE + 8;
const NEW_SET: u16 = NEW_TABLE + 9;
const NEW_ELEMENTS: u16 = NEW_TABLE + 12;
pub(super) const GET_ELEMENTS: u16 = NEW_TABLE + 13;
const DELETE_ELEMENTS: u16 = NEW_TABLE + 14;
pub(super) const NEW_GENERATION: u16 = NEW_TABLE + 15;
pub(super) const GET_GENERATION: u16 = NEW_TABLE + 16;

const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// Elements in one message. They are in one attribute, which cannot exceed 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// Bits of one type in `nft`'s type numbers, which `nft` uses to display a set. Types of several parts are
/// concatenated.
const TYPE_BITS: u32 = 6;

// Flags of sets: enum nft_set_flags.
const IS_MAP: u32 = 8;
const HAS_TIMEOUT: u32 = 0x10;
const IS_OF_PACKETS: u32 = 0x20;

/// User data that makes `nft` display a name in host byte order: type, length, `BYTEORDER_HOST_ENDIAN`.
const HOST_ENDIAN: [u8; 6] = {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [0, 4, a, b, c, d]
};

/// A netfilter message.
pub(super) struct Message {
    kind: u16,
    flags: u16,
    payload: Vec<u8>,
}

impl Message {
    /// A request that creates nothing.
    pub(super) fn query(kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        Self::new(kind, 0, fill)
    }

    /// A request that creates an object unless it exists.
    pub(super) fn creation(kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        Self::new(kind, NLM_F_CREATE, fill)
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn new(kind: u16, flags: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut payload = Vec::new();
        fill(&mut payload);
        Self { kind, flags, payload }
    }
}

impl Outgoing for Message {
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) {
        append_message(datagram, self.kind, flags | self.flags, sequence, &self.payload);
    }
}

/// Header of messages about the family `inet`.
pub(super) fn header() -> Nfgenmsg {
    header_of(NFPROTO_INET)
}

/// Header of messages about a family.
pub(super) fn header_of(family: u8) -> Nfgenmsg {
    Nfgenmsg { nfgen_family: family, ..Nfgenmsg::new() }
}

fn header_of_arp(is_of_arp: bool) -> Nfgenmsg {
    header_of(if is_of_arp { NFPROTO_ARP } else { NFPROTO_INET })
}

impl Set {
    pub(super) fn header(&self) -> Nfgenmsg {
        header_of_arp(self.is_of_arp)
    }
}

impl Chain {
    pub(super) fn header(&self) -> Nfgenmsg {
        header_of_arp(self.hook == Hook::Arp)
    }
}

impl Table {
    /// Headers for the kernel's tables of this name, one for each family.
    pub(super) fn headers(&self) -> impl Iterator<Item = Nfgenmsg> {
        let is_of_arp = self.sets.iter().any(|set| set.is_of_arp)
            || self.chains.iter().any(|chain| chain.hook == Hook::Arp);
        [header()].into_iter().chain(is_of_arp.then(|| header_of(NFPROTO_ARP)))
    }
}

/// Header of the messages that begin and end a transaction.
fn batch_header() -> Nfgenmsg {
    let mut header = Nfgenmsg::new();
    header.set_res_id(SUBSYSTEM);
    header
}

/// The transaction that replaces the table of this name.
pub(super) fn replacement(table: &Table) -> Vec<Message> {
    let mut messages: Vec<_> =
        table.headers().map(|header| new_table(&header, &table.name)).collect();
    for set in &table.sets {
        messages.push(new_set(&set.header(), &table.name, set));
        messages.extend(in_messages(&set.elements, |elements| {
            new_elements(&set.header(), &table.name, set, elements)
        }));
    }
    for chain in &table.chains {
        messages.push(new_chain(table, chain));
        let header = chain.header();
        let rules = chain.rules.iter();
        messages.extend(rules.map(|rule| new_rule(&header, &table.name, chain.name, rule)));
    }
    transaction(&table.name, messages)
}

pub(super) fn removal(table: &CString) -> Vec<Message> {
    transaction(table, Vec::new())
}

/// The transaction that changes elements of a table. The kernel refuses it if the generation has changed.
pub(super) fn changes(generation: u32, table: &Table, changes: &Changes) -> Vec<Message> {
    let surplus = changes.by_set(&table.sets).flat_map(|(change, set)| {
        in_messages(&change.surplus, |elements| old_elements(table, set, elements))
    });
    let missing = changes.by_set(&table.sets).flat_map(|(change, set)| {
        in_messages(&change.missing, |elements| {
            new_elements(&set.header(), &table.name, set, elements)
        })
    });
    batch(Some(generation), surplus.chain(missing))
}

fn in_messages(elements: &[Element], message: impl Fn(&[Element]) -> Message) -> Vec<Message> {
    elements.chunks(ELEMENTS_PER_MESSAGE).map(message).collect()
}

/// Builds a transaction that deletes the table in both families first. It creates each table before deleting it,
/// because the kernel refuses to delete a table that does not exist.
fn transaction(table: &CString, messages: Vec<Message>) -> Vec<Message> {
    let deletion = |family: u8| {
        let delete = Message::new(DELETE_TABLE, 0, |payload| {
            drop(OpDeltableDo::encode_request(payload, &header_of(family)).push_name(table));
        });
        [new_table(&header_of(family), table), delete]
    };
    let deletions = [NFPROTO_INET, NFPROTO_ARP].into_iter().flat_map(deletion);
    batch(None, deletions.chain(messages))
}

/// Encloses messages in one transaction. With a generation, the kernel refuses the transaction unless its own is the
/// same.
pub(super) fn batch(
    generation: Option<u32>,
    messages: impl Iterator<Item = Message>,
) -> Vec<Message> {
    let begin = Message::new(BATCH_BEGIN, 0, |payload| {
        let request = OpBatchBeginDo::encode_request(payload, &batch_header());
        if let Some(generation) = generation {
            drop(request.push_genid(generation));
        }
    });
    let end = Message::new(BATCH_END, 0, |payload| {
        drop(OpBatchEndDo::encode_request(payload, &batch_header()));
    });
    [begin].into_iter().chain(messages).chain([end]).collect()
}

pub(super) fn new_table(header: &Nfgenmsg, table: &CStr) -> Message {
    Message::creation(NEW_TABLE, |payload| {
        drop(OpNewtableDo::encode_request(payload, header).push_name(table));
    })
}

pub(super) fn new_set(header: &Nfgenmsg, table: &CStr, set: &Set) -> Message {
    Message::creation(NEW_SET, |payload| {
        let request = OpNewsetDo::encode_request(payload, header)
            .push_table(table)
            .push_name(set.name)
            .push_key_type(number_of(set.key))
            .push_key_len(length_of(set.key));
        // The kernel requires an ID, although rules of the same transaction find the set by name.
        let request = request.push_id(1);
        let request = match set.value {
            [] => request,
            value => request
                .push_flags(IS_MAP)
                .push_data_type(number_of(value))
                .push_data_len(length_of(value)),
        };
        let request = match set.is_of_packets {
            false => request,
            true => request
                .push_flags(HAS_TIMEOUT | IS_OF_PACKETS)
                // The codec writes host byte order, and the kernel reads network byte order.
                .push_timeout(u64::try_from(AGE.as_millis()).unwrap_or(u64::MAX).to_be())
                .nested_desc()
                .push_size(MOST_OF_PACKETS)
                .end_nested(),
        };
        drop(if set.key == [Part::Link] { request.push_userdata(&HOST_ENDIAN) } else { request });
    })
}

/// `nft`'s type number for a concatenation of parts.
fn number_of(parts: &[Part]) -> u32 {
    let number = |part: &Part| match part {
        Part::Ipv4 => 7,
        Part::Ipv6 => 8,
        Part::Mac => 9,
        Part::Protocol => 12,
        Part::Port => 13,
        Part::LinkIndex => 20,
        Part::Link => 41,
    };
    parts.iter().fold(0, |before, part| before << TYPE_BITS | number(part))
}

fn length_of(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.length()).sum()
}

pub(super) fn new_elements(
    header: &Nfgenmsg,
    table: &CStr,
    set: &Set,
    elements: &[Element],
) -> Message {
    Message::creation(NEW_ELEMENTS, |payload| {
        let request = OpNewsetelemDo::encode_request(payload, header);
        let request = request.push_table(table).push_set(set.name);
        let mut list = request.nested_elements();
        for Element { key, value } in elements {
            let element = list.nested_elem().nested_key().push_value(key.as_slice()).end_nested();
            let element = match set.value {
                [] => element,
                _ => element.nested_data().push_value(value.as_slice()).end_nested(),
            };
            list = element.end_nested();
        }
    })
}

fn old_elements(table: &Table, set: &Set, elements: &[Element]) -> Message {
    Message::new(DELETE_ELEMENTS, 0, |payload| {
        let request = OpDelsetelemDo::encode_request(payload, &set.header())
            .push_table(&table.name)
            .push_set(set.name);
        let mut list = request.nested_elements();
        for Element { key, .. } in elements {
            let element = list.nested_elem().nested_key().push_value(key.as_slice());
            list = element.end_nested().end_nested();
        }
    })
}

fn new_chain(table: &Table, chain: &Chain) -> Message {
    let (kind, number, priority) = match chain.hook {
        Hook::BeforeTracking => (c"filter", 0, -300),
        Hook::DestinationTranslation => (c"nat", 0, -100),
        Hook::Input => (c"filter", 1, 0),
        // NF_ARP_IN is hook 0.
        Hook::Arp => (c"filter", 0, 0),
        Hook::Forward => (c"filter", 2, 0),
        Hook::SourceTranslation => (c"nat", 4, 100),
    };
    Message::creation(NEW_CHAIN, |payload| {
        let request = OpNewchainDo::encode_request(payload, &chain.header());
        let request = request.push_table(&table.name).push_name(chain.name);
        let hook = request.nested_hook().push_num(number).push_priority(priority);
        drop(hook.end_nested().push_policy(ACCEPT).push_type(kind));
    })
}

pub(super) fn new_rule(header: &Nfgenmsg, table: &CStr, chain: &CStr, rule: &[Term]) -> Message {
    Message::new(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, |payload| {
        let request =
            OpNewruleDo::encode_request(payload, header).push_table(table).push_chain(chain);
        rule.iter().fold(request.nested_expressions(), push_term);
    })
}
