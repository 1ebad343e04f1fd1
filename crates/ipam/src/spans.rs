//! Addresses as numbers, and sets of them as spans.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// Addresses of one family as numbers, first and last included.
pub(crate) type Span = (u128, u128);

pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

pub(crate) fn span_of(cidr: IpNetwork) -> Span {
    let (first, last) = match cidr {
        IpNetwork::V4(cidr) => (IpAddr::V4(cidr.network()), IpAddr::V4(cidr.broadcast())),
        IpNetwork::V6(cidr) => (IpAddr::V6(cidr.network()), IpAddr::V6(cidr.broadcast())),
    };
    (number(first), number(last))
}

/// Whether one of `spans` contains `number`. The spans are sorted and disjoint.
pub(crate) fn contains(spans: &[Span], number: u128) -> bool {
    let after = spans.partition_point(|&(first, _)| first <= number);
    after > 0 && number <= spans[after - 1].1
}

/// The same numbers as sorted, disjoint spans.
pub(crate) fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The numbers in `spans` and not in `holes`. Both are sorted and disjoint.
pub(crate) fn subtract(spans: &[Span], holes: &[Span]) -> Vec<Span> {
    let mut rest = Vec::new();
    for &(first, last) in spans {
        let mut next = Some(first);
        let from = holes.partition_point(|&(_, hole_last)| hole_last < first);
        for &(hole_first, hole_last) in holes[from..].iter().take_while(|hole| hole.0 <= last) {
            if let Some(start) = next
                && start < hole_first
            {
                rest.push((start, hole_first - 1));
            }
            next = hole_last.checked_add(1);
        }
        if let Some(start) = next
            && start <= last
        {
            rest.push((start, last));
        }
    }
    rest
}
