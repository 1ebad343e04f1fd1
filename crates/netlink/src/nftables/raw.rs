//! Rule expressions that the codec lacks, encoded by attribute: enum nft_rt_attributes, nft_lookup_attributes,
//! nft_dynset_attributes and nft_limit_attributes.

use std::ffi::CStr;

use netlink_bindings::{nftables::PushExprListAttrs, traits::Pusher};

use super::table::PacketRate;
use crate::sysctl::Family;

const NESTED: u16 = 1 << 15;

/// `NFTA_LIST_ELEM`, `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const IN_LIST: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;

/// `NFT_DYNSET_OP_UPDATE`
const UPDATE: u32 = 1;

/// Loads the next hop of a packet.
pub(super) fn load_next_hop<P: Pusher>(
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
pub(super) fn look_up_absent<P: Pusher>(
    list: PushExprListAttrs<P>,
    set: &CStr,
    register: u32,
) -> PushExprListAttrs<P> {
    const INVERTED: u32 = 1;
    push(list, c"lookup", &[text(1, set), number(2, register), number(4, 1), number(5, INVERTED)])
}

/// Adds the loaded value to a set, or renews its timeout.
pub(super) fn note<P: Pusher>(
    list: PushExprListAttrs<P>,
    set: &CStr,
    register: u32,
) -> PushExprListAttrs<P> {
    push(list, c"dynset", &update(set, register))
}

/// Counts a packet for the loaded value in a set, and matches if the value exceeds the rate.
pub(super) fn count<P: Pusher>(
    list: PushExprListAttrs<P>,
    set: &CStr,
    register: u32,
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
    let mut data = update(set, register);
    data.push(attribute(NESTED | EXPRESSION, &expression(c"limit", &limit)));
    push(list, c"dynset", &data)
}

fn update(set: &CStr, register: u32) -> Vec<Vec<u8>> {
    vec![text(1, set), number(2, 1), number(3, UPDATE), number(4, register)]
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
