//! A subnet, and which of its addresses may be handed out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::{
    spans::{Span, contains, merged, number, subtract},
    spec::{
        Reservation, SpecError, SubnetSpec, check_cidr, check_gateway, exclusions, ranges, specials,
    },
};

/// How an address stands in a subnet. The higher, the more it may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Not in it.
    Outside,
    /// Nobody's to hold.
    Reserved,
    /// Handed out to whoever asks for it, as it is in none of the ranges.
    OnRequest,
    /// Handed out unasked.
    Open,
}

/// Neighbours that are handed out unasked.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: u128,
    last: u128,
    /// How many addresses come before the first one that are handed out unasked.
    rank: u128,
}

/// A subnet that has been checked.
#[derive(Clone, Debug)]
pub(crate) struct Subnet {
    spec: SubnetSpec,
    excluded: Vec<Span>,
    /// What is handed out unasked: in order, apart from each other, never empty.
    open: Vec<Open>,
}

impl Subnet {
    pub(crate) fn new(spec: SubnetSpec) -> Result<Self, SpecError> {
        check_cidr(spec.cidr)?;
        check_gateway(&spec)?;
        let ranges = ranges(&spec)?;
        let excluded = merged(exclusions(&spec)?);
        let mut closed = excluded.clone();
        closed.extend(specials(&spec).map(|(address, _)| (address, address)));
        let open = subtract(&ranges, &merged(closed));
        if open.is_empty() {
            return Err(SpecError::NothingLeft { cidr: spec.cidr });
        }
        Ok(Self { spec, excluded, open: counted(&open) })
    }

    pub(crate) const fn spec(&self) -> &SubnetSpec {
        &self.spec
    }

    /// Which of the addresses that are handed out unasked it is, counted from 0; or, if it is none of
    /// them, which one the next of them is.
    pub(crate) fn rank(&self, number: u128) -> Result<u128, u128> {
        let next = self.open.partition_point(|open| open.last < number);
        match self.open.get(next) {
            Some(open) if open.first <= number => Ok(open.rank + (number - open.first)),
            Some(open) => Err(open.rank),
            None => Err(self.capacity()),
        }
    }

    /// The address of a rank; for one more than the last, the address after the last.
    pub(crate) fn nth_open(&self, rank: u128) -> u128 {
        let open = &self.open[self.open.partition_point(|open| open.rank <= rank) - 1];
        open.first.wrapping_add(rank - open.rank)
    }

    /// How many addresses are handed out unasked.
    pub(crate) fn capacity(&self) -> u128 {
        self.open.last().map_or(0, |open| open.rank + (open.last - open.first) + 1)
    }

    /// The number of `address`, if the subnet contains it.
    pub(crate) fn number(&self, address: IpAddr) -> Option<u128> {
        self.spec.cidr.contains(address).then(|| number(address))
    }

    /// The address of a number of this subnet.
    pub(crate) fn address(&self, number: u128) -> IpAddr {
        match self.spec.cidr {
            IpNetwork::V4(_) => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)))
            }
            IpNetwork::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }

    /// How `address` stands in this subnet.
    pub(crate) fn standing(&self, address: IpAddr) -> Standing {
        match self.number(address) {
            None => Standing::Outside,
            Some(number) if self.rank(number).is_ok() => Standing::Open,
            Some(number) if self.reservation(number).is_some() => Standing::Reserved,
            Some(_) => Standing::OnRequest,
        }
    }

    /// What keeps an address of this subnet from being held at all.
    pub(crate) fn reservation(&self, number: u128) -> Option<Reservation> {
        let special = specials(&self.spec).find(|&(special, _)| special == number);
        match special {
            Some((_, why)) => Some(why),
            None => contains(&self.excluded, number).then_some(Reservation::Excluded),
        }
    }
}

/// Spans in order, each with the number of addresses before it.
fn counted(spans: &[Span]) -> Vec<Open> {
    let count = |rank: &mut u128, &(first, last): &Span| {
        let open = Open { first, last, rank: *rank };
        *rank += last - first + 1;
        Some(open)
    };
    spans.iter().scan(0, count).collect()
}
