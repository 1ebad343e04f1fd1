//! A subnet, and which of its addresses may be allocated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::{
    spans::{Span, contains, merged, number, subtract},
    spec::{
        Reservation, SpecError, SubnetSpec, check_cidr, check_gateway, exclusions, ranges, specials,
    },
};

/// The availability of an address in a subnet, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Availability {
    /// Outside the subnet.
    Outside,
    /// No attachment can hold it.
    Reserved,
    /// Outside the ranges, and allocated only on request.
    OnRequest,
    /// Allocated without a request.
    Open,
}

/// A span of open addresses.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: u128,
    last: u128,
    /// The number of open addresses before the first one.
    rank: u128,
}

/// A checked subnet.
#[derive(Clone, Debug)]
pub(crate) struct Subnet {
    spec: SubnetSpec,
    excluded: Vec<Span>,
    /// The open addresses: sorted, disjoint, never empty.
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

    /// The rank of an open address; for any other number, the rank of the next open address.
    pub(crate) fn rank(&self, number: u128) -> Result<u128, u128> {
        let next = self.open.partition_point(|open| open.last < number);
        match self.open.get(next) {
            Some(open) if open.first <= number => Ok(open.rank + (number - open.first)),
            Some(open) => Err(open.rank),
            None => Err(self.capacity()),
        }
    }

    /// The open address of that rank. For one rank beyond the last, the number after the last open address.
    pub(crate) fn nth_open(&self, rank: u128) -> u128 {
        let open = &self.open[self.open.partition_point(|open| open.rank <= rank) - 1];
        open.first.wrapping_add(rank - open.rank)
    }

    /// The number of open addresses.
    pub(crate) fn capacity(&self) -> u128 {
        self.open.last().map_or(0, |open| open.rank + (open.last - open.first) + 1)
    }

    /// The number of `address`, if it is in the subnet.
    pub(crate) fn number(&self, address: IpAddr) -> Option<u128> {
        self.spec.cidr.contains(address).then(|| number(address))
    }

    /// The address with that number.
    pub(crate) fn address(&self, number: u128) -> IpAddr {
        match self.spec.cidr {
            IpNetwork::V4(_) => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)))
            }
            IpNetwork::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }

    /// The availability of `address`.
    pub(crate) fn availability(&self, address: IpAddr) -> Availability {
        match self.number(address) {
            None => Availability::Outside,
            Some(number) if self.rank(number).is_ok() => Availability::Open,
            Some(number) if self.reservation(number).is_some() => Availability::Reserved,
            Some(_) => Availability::OnRequest,
        }
    }

    /// Why no attachment can hold the address. `None`: an attachment can.
    pub(crate) fn reservation(&self, number: u128) -> Option<Reservation> {
        let special = specials(&self.spec).find(|&(special, _)| special == number);
        match special {
            Some((_, why)) => Some(why),
            None => contains(&self.excluded, number).then_some(Reservation::Excluded),
        }
    }
}

/// Sorted spans, each with the number of addresses before it.
fn counted(spans: &[Span]) -> Vec<Open> {
    let count = |rank: &mut u128, &(first, last): &Span| {
        let open = Open { first, last, rank: *rank };
        *rank += last - first + 1;
        Some(open)
    };
    spans.iter().scan(0, count).collect()
}
