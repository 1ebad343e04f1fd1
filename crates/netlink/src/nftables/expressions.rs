//! Encoding of a rule's terms as expressions.

use std::ffi::CStr;

use netlink_bindings::{nftables::PushExprListAttrs, traits::Pusher};

use super::table::{PacketRate, Source, Term};
use crate::sysctl::Family;

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

// Attributes of expressions that the codec lacks: enum nft_rt_attributes, nft_lookup_attributes, nft_dynset_attributes
// and nft_limit_attributes.
const NESTED: u16 = 1 << 15;

/// `NFTA_LIST_ELEM`, `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const IN_LIST: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;

/// `NFT_DYNSET_OP_UPDATE`
const UPDATE: u32 = 1;

pub(super) fn push_term<P: Pusher>(
    list: PushExprListAttrs<P>,
    term: &Term,
) -> PushExprListAttrs<P> {
    match *term {
        Term::From(set) => look_up(load_meta(list, META_INCOMING_NAME, FIRST), set),
        Term::To(set) => look_up(load_meta(list, META_OUTGOING_NAME, FIRST), set),
        Term::Between(set) => {
            let list = load_meta(list, META_INCOMING_NAME, FIRST);
            let list = load_meta(list, META_OUTGOING_NAME, SECOND);
            look_up(list, set)
        }
        Term::OfKnownConnection => has_bits_of(list, CONNECTION_STATE, ESTABLISHED_OR_RELATED),
        Term::FromElsewhere => from_elsewhere(list),
        Term::OfFamily(family) => of_family(list, family),
        Term::Protocol(number) => compare(load_meta(list, META_PROTOCOL, FIRST), EQUAL, &[number]),
        Term::ToOwnAddress => to_own_address(list),
        Term::ToPort(family, set) => look_up(load_port_at(list, family), set),
        Term::Redirected => has_bits_of(list, CONNECTION_STATUS, DESTINATION_TRANSLATED),
        Term::RedirectByPort(family, map) => {
            let list = load_port(of_family(list, family), FIRST_WORD);
            redirect(list, family, map)
        }
        Term::RedirectByPortAt(family, map) => redirect(load_port_at(list, family), family, map),
        Term::NextHopNotIn(family, set) => {
            let list = load_next_hop(of_family(list, family), family, FIRST_WORD);
            look_up_absent(list, set)
        }
        Term::ResolutionNotIn(family, set) => look_up_absent(load_resolution(list, family), set),
        Term::RecordResolution(family, set) => note(load_resolution(list, family), set),
        Term::SourceIn(source, set) => look_up(load_source(list, source), set),
        Term::SourceNotRecorded(source, set) => {
            look_up_absent(load_source_of_sender(list, source), set)
        }
        Term::RecordSource(source, set) => note(load_source_of_sender(list, source), set),
        Term::SenderRateExceeded(set, rate) => count(load_sender(list), set, rate),
        Term::LinkRateExceeded(set, rate) => {
            count(load_meta(list, META_INCOMING, FIRST_WORD), set, rate)
        }
        Term::NotMarked(mark) => {
            compare(load_meta(list, META_MARK, FIRST), NOT_EQUAL, &mark.to_ne_bytes())
        }
        Term::Mark(mark) => set_mark(list, mark),
        Term::Untracked => list.nested_elem().push_name(c"notrack").end_nested(),
        Term::Accept => verdict(list, ACCEPT),
        Term::Drop => verdict(list, DROP),
        Term::Masquerade => list.nested_elem().push_name(c"masq").end_nested(),
    }
}

fn set_mark<P: Pusher>(list: PushExprListAttrs<P>, mark: u32) -> PushExprListAttrs<P> {
    let data = list.nested_elem().nested_data_immediate().push_dreg(FIRST).nested_data();
    let list = data.push_value(&mark.to_ne_bytes()).end_nested().end_nested().end_nested();
    let data = list.nested_elem().nested_data_meta().push_key(META_MARK).push_sreg(FIRST);
    data.end_nested().end_nested()
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
    load_next_hop(load_sender(list), family, FIRST_WORD + 3)
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

/// Loads the next hop of a packet.
fn load_next_hop<P: Pusher>(
    list: PushExprListAttrs<P>,
    family: Family,
    register: u32,
) -> PushExprListAttrs<P> {
    let next_hop = match family {
        Family::V4 => 1,
        Family::V6 => 2,
    };
    push(list, c"rt", &[number(1, register), number(2, next_hop)])
}

/// Matches if the loaded value is not in the set.
fn look_up_absent<P: Pusher>(list: PushExprListAttrs<P>, set: &CStr) -> PushExprListAttrs<P> {
    const INVERTED: u32 = 1;
    let data = [text(1, set), number(2, FIRST_WORD), number(4, 1), number(5, INVERTED)];
    push(list, c"lookup", &data)
}

/// Adds the loaded value to a set, or renews its timeout.
fn note<P: Pusher>(list: PushExprListAttrs<P>, set: &CStr) -> PushExprListAttrs<P> {
    push(list, c"dynset", &update(set))
}

/// Counts a packet for the loaded value in a set, and matches if the value exceeds the rate.
fn count<P: Pusher>(
    list: PushExprListAttrs<P>,
    set: &CStr,
    rate: PacketRate,
) -> PushExprListAttrs<P> {
    const EXPRESSION: u16 = 7;
    const BEYOND: u32 = 1;
    const PER_SECOND: u64 = 1;
    let limit = [
        attribute(1, &u64::from(rate.per_second).to_be_bytes()),
        attribute(2, &PER_SECOND.to_be_bytes()),
        number(3, rate.burst),
        number(4, 0),
        number(5, BEYOND),
    ];
    let mut data = update(set);
    data.push(attribute(NESTED | EXPRESSION, &expression(c"limit", &limit)));
    push(list, c"dynset", &data)
}

fn update(set: &CStr) -> Vec<Vec<u8>> {
    vec![text(1, set), number(2, 1), number(3, UPDATE), number(4, FIRST_WORD)]
}

fn push<P: Pusher>(
    mut list: PushExprListAttrs<P>,
    name: &CStr,
    data: &[Vec<u8>],
) -> PushExprListAttrs<P> {
    list.as_vec_mut().extend(attribute(NESTED | IN_LIST, &expression(name, data)));
    list
}

fn expression(name: &CStr, data: &[Vec<u8>]) -> Vec<u8> {
    [text(NAME, name), attribute(NESTED | DATA, &data.concat())].concat()
}

fn text(kind: u16, text: &CStr) -> Vec<u8> {
    attribute(kind, text.to_bytes_with_nul())
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// Encodes an attribute with padding to 4 bytes. All values here are short.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
