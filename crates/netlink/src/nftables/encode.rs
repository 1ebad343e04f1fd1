//! Encoding of tables and changes as nftables messages.

use std::ffi::{CStr, CString};

use netlink_bindings::{
    nftables::{
        Nfgenmsg, OpBatchBeginDo, OpBatchEndDo, OpDelsetelemDo, OpDeltableDo, OpNewchainDo,
        OpNewruleDo, OpNewsetDo, OpNewsetelemDo, OpNewtableDo, PushExprAttrs, PushExprListAttrs,
    },
    traits::Pusher,
};

use super::{
    changes::Changes,
    raw,
    table::{AGE, Chain, Element, Hook, MOST_OF_PACKETS, Part, Rule, Set, Source, Table, Term},
};
use crate::{datagram::append_message, socket::Outgoing, sysctl::Family};

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
pub(super) const NEW_SET: u16 = NEW_TABLE + 9;
pub(super) const NEW_ELEMENTS: u16 = NEW_TABLE + 12;
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
pub(super) const HOST_ENDIAN: [u8; 6] = {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [0, 4, a, b, c, d]
};

// Registers of 16 bytes. Register 0 holds the verdict.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// The first register of 4 bytes. It aliases `FIRST`; parts of keys and values occupy consecutive ones.
const FIRST_WORD: u32 = 8;

// Flags and results of a FIB lookup: enum nft_fib_flags and enum nft_fib_result.
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const FIB_INCOMING: u32 = 8;
const FIB_LINK: u32 = 1;
const FIB_KIND: u32 = 3;

/// `RTN_LOCAL`
const OWN_ADDRESS: u32 = 2;

const META_MARK: u32 = 3;
const META_INCOMING: u32 = 4;
const META_INCOMING_NAME: u32 = 6;
const META_OUTGOING_NAME: u32 = 7;
const META_INCOMING_KIND: u32 = 8;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const CONNECTION_STATE: u32 = 0;
const ESTABLISHED_OR_RELATED: u32 = 1 << 1 | 1 << 2;
const CONNECTION_STATUS: u32 = 2;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// `ARPHRD_ETHER`
const ETHERNET: u16 = 1;

/// `ARPOP_REQUEST`
const ARP_REQUEST: u16 = 1;

const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// `NFT_NAT_DNAT`
const TRANSLATE_DESTINATION: u32 = 1;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;

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
        messages.push(new_set(table, set));
        let some = set.elements.chunks(ELEMENTS_PER_MESSAGE);
        messages.extend(some.map(|elements| new_elements(table, set, elements)));
    }
    for chain in &table.chains {
        messages.push(new_chain(table, chain));
        messages.extend(chain.rules.iter().map(|rule| new_rule(table, chain, rule)));
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
        in_messages(&change.missing, |elements| new_elements(table, set, elements))
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

fn new_set(table: &Table, set: &Set) -> Message {
    Message::new(NEW_SET, NLM_F_CREATE, |payload| {
        let request = OpNewsetDo::encode_request(payload, &set.header())
            .push_table(&table.name)
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
pub(super) fn number_of(parts: &[Part]) -> u32 {
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

pub(super) fn length_of(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.length()).sum()
}

fn new_elements(table: &Table, set: &Set, elements: &[Element]) -> Message {
    Message::new(NEW_ELEMENTS, NLM_F_CREATE, |payload| {
        let request = OpNewsetelemDo::encode_request(payload, &set.header())
            .push_table(&table.name)
            .push_set(set.name);
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
    Message::new(NEW_CHAIN, NLM_F_CREATE, |payload| {
        let request = OpNewchainDo::encode_request(payload, &chain.header())
            .push_table(&table.name)
            .push_name(chain.name);
        let hook = request.nested_hook().push_num(number).push_priority(priority);
        drop(hook.end_nested().push_policy(ACCEPT).push_type(kind));
    })
}

fn new_rule(table: &Table, chain: &Chain, rule: &Rule) -> Message {
    new_rule_of(&chain.header(), &table.name, chain.name, rule)
}

pub(super) fn new_rule_of(header: &Nfgenmsg, table: &CStr, chain: &CStr, rule: &[Term]) -> Message {
    Message::new(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, |payload| {
        let request =
            OpNewruleDo::encode_request(payload, header).push_table(table).push_chain(chain);
        rule.iter().fold(request.nested_expressions(), push_term);
    })
}

fn push_term<P: Pusher>(list: PushExprListAttrs<P>, term: &Term) -> PushExprListAttrs<P> {
    match *term {
        Term::From(set) => {
            let list = load_meta(list, META_INCOMING_NAME, FIRST);
            look_up(list, set)
        }
        Term::To(set) => {
            let list = load_meta(list, META_OUTGOING_NAME, FIRST);
            look_up(list, set)
        }
        Term::Between(set) => {
            let list = load_meta(list, META_INCOMING_NAME, FIRST);
            let list = load_meta(list, META_OUTGOING_NAME, SECOND);
            look_up(list, set)
        }
        Term::OfKnownConnection => of_known_connection(list),
        Term::FromElsewhere => from_elsewhere(list),
        Term::OfFamily(family) => of_family(list, family),
        Term::Protocol(number) => {
            let list = load_meta(list, META_PROTOCOL, FIRST);
            compare(list, EQUAL, &[number])
        }
        Term::ToOwnAddress => to_own_address(list),
        Term::ToPort(family, set) => look_up(load_port_at(list, family), set),
        Term::Redirected => redirected(list),
        Term::RedirectByPort(family, map) => {
            let list = load_port(of_family(list, family), FIRST_WORD);
            redirect(list, family, map)
        }
        Term::RedirectByPortAt(family, map) => redirect(load_port_at(list, family), family, map),
        Term::NextHopNotIn(family, set) => {
            let list = raw::load_next_hop(of_family(list, family), family, FIRST_WORD);
            raw::look_up_absent(list, set, FIRST_WORD)
        }
        Term::ResolutionNotIn(family, set) => {
            raw::look_up_absent(load_resolution(list, family), set, FIRST_WORD)
        }
        Term::RecordResolution(family, set) => {
            raw::note(load_resolution(list, family), set, FIRST_WORD)
        }
        Term::SourceIn(source, set) => look_up(load_source(list, source), set),
        Term::SourceNotRecorded(source, set) => {
            raw::look_up_absent(load_source_of_sender(list, source), set, FIRST_WORD)
        }
        Term::RecordSource(source, set) => {
            raw::note(load_source_of_sender(list, source), set, FIRST_WORD)
        }
        Term::SenderRateExceeded(set, rate) => raw::count(load_sender(list), set, FIRST_WORD, rate),
        Term::LinkRateExceeded(set, rate) => {
            raw::count(load_meta(list, META_INCOMING, FIRST_WORD), set, FIRST_WORD, rate)
        }
        Term::NotMarked(mark) => {
            compare(load_meta(list, META_MARK, FIRST), NOT_EQUAL, &mark.to_ne_bytes())
        }
        Term::Mark(mark) => set_mark(list, mark),
        Term::Untracked => finish(list.nested_elem().push_name(c"notrack")),
        Term::Accept => verdict(list, ACCEPT),
        Term::Drop => verdict(list, DROP),
        Term::Masquerade => finish(list.nested_elem().push_name(c"masq")),
    }
}

fn set_mark<P: Pusher>(list: PushExprListAttrs<P>, mark: u32) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_immediate().push_dreg(FIRST).nested_data();
    let list = data.push_value(&mark.to_ne_bytes()).end_nested().end_nested().end_nested();
    let data = list.nested_elem().nested_data_meta().push_key(META_MARK).push_sreg(FIRST);
    data.end_nested().end_nested()
}

fn finish<P: Pusher>(expression: PushExprAttrs<PushExprListAttrs<P>>) -> PushExprListAttrs<P> {
    expression.end_nested()
}

fn load_meta<P: Pusher>(
    list: PushExprListAttrs<P>,
    key: u32,
    register: u32,
) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_meta().push_key(key).push_dreg(register);
    data.end_nested().end_nested()
}

/// Adds a set lookup. The codec's specification swaps two attributes: its "set ID" is the kernel's `NFTA_LOOKUP_SREG`,
/// the source register.
fn look_up<P: Pusher>(list: PushExprListAttrs<P>, set: &CStr) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_lookup().push_set(set).push_set_id(FIRST);
    data.end_nested().end_nested()
}

fn compare<P: Pusher>(
    list: PushExprListAttrs<P>,
    operation: u32,
    value: &[u8],
) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_cmp().push_sreg(FIRST).push_op(operation);
    data.nested_data().push_value(value).end_nested().end_nested().end_nested()
}

fn of_known_connection<P: Pusher>(list: PushExprListAttrs<P>) -> PushExprListAttrs<P> {
    has_bits_of(list, CONNECTION_STATE, ESTABLISHED_OR_RELATED)
}

fn redirected<P: Pusher>(list: PushExprListAttrs<P>) -> PushExprListAttrs<P> {
    has_bits_of(list, CONNECTION_STATUS, DESTINATION_TRANSLATED)
}

/// Matches if the connection's value for `key` has at least one of the `wanted` bits.
fn has_bits_of<P: Pusher>(
    list: PushExprListAttrs<P>,
    key: u32,
    wanted: u32,
) -> PushExprListAttrs<P> {
    let none = 0_u32.to_ne_bytes();
    let state = list.nested_elem().nested_data_ct().push_key(key).push_dreg(FIRST);
    let list = state.end_nested().end_nested();
    let bits = list.nested_elem().nested_data_bitwise();
    let bits = bits.push_sreg(FIRST).push_dreg(FIRST).push_len(4);
    let mask = bits.nested_mask().push_value(&wanted.to_ne_bytes());
    let xor = mask.end_nested().nested_xor().push_value(&none);
    compare(xor.end_nested().end_nested().end_nested(), NOT_EQUAL, &none)
}

/// Equals `fib daddr type local` in `nft`.
fn to_own_address<P: Pusher>(list: PushExprListAttrs<P>) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_fib();
    let data = data.push_dreg(FIRST).push_result(FIB_KIND).push_flags(FIB_DESTINATION);
    compare(data.end_nested().end_nested(), EQUAL, &OWN_ADDRESS.to_ne_bytes())
}

fn of_family<P: Pusher>(list: PushExprListAttrs<P>, family: Family) -> PushExprListAttrs<P> {
    let number = [number_of_family(family)];
    compare(load_meta(list, META_FAMILY, FIRST), EQUAL, &number)
}

pub(super) const fn number_of_family(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

const fn words_of_address(family: Family) -> u32 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}

/// Loads a packet's destination address, protocol and destination port.
fn load_port_at<P: Pusher>(list: PushExprListAttrs<P>, family: Family) -> PushExprListAttrs<P> {
    let offset = match family {
        Family::V4 => 16,
        Family::V6 => 24,
    };
    let words = words_of_address(family);
    let list = of_family(list, family);
    let list = load_payload(list, NETWORK_HEADER, (offset, words * 4), FIRST_WORD);
    load_port(list, FIRST_WORD + words)
}

/// Loads a packet's protocol and destination port.
fn load_port<P: Pusher>(list: PushExprListAttrs<P>, register: u32) -> PushExprListAttrs<P> {
    let list = load_meta(list, META_PROTOCOL, register);
    load_payload(list, TRANSPORT_HEADER, (2, 2), register + 1)
}

/// Loads a packet's input link and source MAC address. Packets of links that are not Ethernet do not match.
fn load_sender<P: Pusher>(list: PushExprListAttrs<P>) -> PushExprListAttrs<P> {
    let list = load_meta(list, META_INCOMING_KIND, FIRST);
    let list = compare(list, EQUAL, &ETHERNET.to_ne_bytes());
    let list = load_meta(list, META_INCOMING, FIRST_WORD);
    load_payload(list, LINK_HEADER, (6, 6), FIRST_WORD + 1)
}

/// Loads a packet's input link, source MAC address and next hop.
fn load_resolution<P: Pusher>(list: PushExprListAttrs<P>, family: Family) -> PushExprListAttrs<P> {
    raw::load_next_hop(load_sender(list), family, FIRST_WORD + 3)
}

/// Loads a packet's input link, source MAC address and source IP address.
fn load_source_of_sender<P: Pusher>(
    list: PushExprListAttrs<P>,
    source: Source,
) -> PushExprListAttrs<P> {
    load_address(load_sender(of_source(list, source)), source, FIRST_WORD + 3)
}

/// Loads a packet's source IP address, or the sender address of an ARP request.
fn load_source<P: Pusher>(list: PushExprListAttrs<P>, source: Source) -> PushExprListAttrs<P> {
    load_address(of_source(list, source), source, FIRST_WORD)
}

/// Matches packets of this kind. Overwrites the first register.
fn of_source<P: Pusher>(list: PushExprListAttrs<P>, source: Source) -> PushExprListAttrs<P> {
    match source {
        Source::Ip(family) => of_family(list, family),
        Source::ArpRequest => {
            let list = load_payload(list, NETWORK_HEADER, (6, 2), FIRST);
            compare(list, EQUAL, &ARP_REQUEST.to_be_bytes())
        }
    }
}

fn load_address<P: Pusher>(
    list: PushExprListAttrs<P>,
    source: Source,
    register: u32,
) -> PushExprListAttrs<P> {
    let place = match source {
        Source::Ip(Family::V4) => (12, 4),
        Source::Ip(Family::V6) => (8, 16),
        Source::ArpRequest => (14, 4),
    };
    load_payload(list, NETWORK_HEADER, place, register)
}

fn load_payload<P: Pusher>(
    list: PushExprListAttrs<P>,
    base: u32,
    (offset, length): (u32, u32),
    register: u32,
) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_payload();
    let data = data.push_dreg(register).push_base(base).push_offset(offset).push_len(length);
    data.end_nested().end_nested()
}

/// Looks up the loaded key in a map and translates the destination to the value found. As in [`look_up`], the codec
/// swaps attributes: its source register is the kernel's `NFTA_LOOKUP_DREG`.
fn redirect<P: Pusher>(
    list: PushExprListAttrs<P>,
    family: Family,
    map: &CStr,
) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_lookup().push_set(map).push_set_id(FIRST);
    let list = data.push_sreg(FIRST).end_nested().end_nested();
    let data = list.nested_elem().nested_data_nat().push_type(TRANSLATE_DESTINATION);
    let data = data.push_family(number_of_family(family).into()).push_reg_addr_min(FIRST);
    let data = data.push_reg_proto_min(FIRST_WORD + words_of_address(family));
    data.end_nested().end_nested()
}

/// Equals `fib saddr . iif oif missing` in `nft`.
fn from_elsewhere<P: Pusher>(list: PushExprListAttrs<P>) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_fib();
    let data = data.push_dreg(FIRST).push_result(FIB_LINK).push_flags(FIB_SOURCE | FIB_INCOMING);
    compare(data.end_nested().end_nested(), EQUAL, &0_u32.to_ne_bytes())
}

fn verdict<P: Pusher>(list: PushExprListAttrs<P>, code: u32) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_immediate().push_dreg(VERDICT).nested_data();
    data.nested_verdict().push_code(code).end_nested().end_nested().end_nested().end_nested()
}
