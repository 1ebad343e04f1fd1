//! A subnet's specification, and which of its addresses may be handed out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnetwork::IpNetwork;

/// A subnet, as a configuration gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetSpec {
    /// The subnet, without host bits.
    pub cidr: IpNetwork,
    /// Its gateway; never handed out.
    pub gateway: Option<IpAddr>,
    /// What may be handed out unasked: first and last addresses, both included. Empty: all of it.
    pub ranges: Vec<(IpAddr, IpAddr)>,
    /// What is never handed out.
    pub exclude: Vec<IpNetwork>,
}

/// What makes an address of the subnet nobody's to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// It is the subnet's own: IPv4's network address, IPv6's subnet-router anycast address.
    Network,
    /// It is the IPv4 broadcast address.
    Broadcast,
    /// It is the gateway's.
    Gateway,
    /// The specification excludes it.
    Excluded,
}

impl fmt::Display for Reservation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Network => "the subnet's own address",
            Self::Broadcast => "the broadcast address",
            Self::Gateway => "the gateway's address",
            Self::Excluded => "excluded from the subnet",
        })
    }
}

/// A specification that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The subnet's address has bits beyond its prefix.
    #[error("subnet {cidr} has host bits; write {network}")]
    HostBits {
        /// The subnet as given.
        cidr: IpNetwork,
        /// What may have been meant.
        network: IpNetwork,
    },
    /// The subnet is made of multicast addresses, which no interface can have as its own.
    #[error("subnet {cidr} is a multicast one")]
    Multicast {
        /// The subnet.
        cidr: IpNetwork,
    },
    /// The gateway is of the other family or elsewhere.
    #[error("gateway {gateway} is not in subnet {cidr}")]
    GatewayOutside {
        /// The gateway.
        gateway: IpAddr,
        /// The subnet.
        cidr: IpNetwork,
    },
    /// The gateway is the network or the broadcast address.
    #[error("gateway {gateway} is {why} of {cidr}")]
    GatewayReserved {
        /// The gateway.
        gateway: IpAddr,
        /// What it is instead.
        why: Reservation,
        /// The subnet.
        cidr: IpNetwork,
    },
    /// A range from one family to the other.
    #[error("range {start}-{end} mixes IPv4 and IPv6")]
    RangeMixed {
        /// Its first address.
        start: IpAddr,
        /// Its last address.
        end: IpAddr,
    },
    /// A range whose last address comes before its first.
    #[error("range {start}-{end} is the wrong way round; write {end}-{start}")]
    RangeReversed {
        /// Its first address.
        start: IpAddr,
        /// Its last address.
        end: IpAddr,
    },
    /// A range that is not, or not all, in the subnet.
    #[error("range {start}-{end} is not within subnet {cidr}")]
    RangeOutside {
        /// Its first address.
        start: IpAddr,
        /// Its last address.
        end: IpAddr,
        /// The subnet.
        cidr: IpNetwork,
    },
    /// Two ranges that share addresses.
    #[error("ranges {}-{} and {}-{} overlap", first.0, first.1, second.0, second.1)]
    RangesOverlap {
        /// The one that starts first.
        first: (IpAddr, IpAddr),
        /// The other one.
        second: (IpAddr, IpAddr),
    },
    /// An exclusion whose address has bits beyond its prefix.
    #[error("exclusion {exclusion} has host bits; write {network}")]
    ExclusionHostBits {
        /// The exclusion as given.
        exclusion: IpNetwork,
        /// What may have been meant.
        network: IpNetwork,
    },
    /// An exclusion that excludes nothing of the subnet.
    #[error("exclusion {exclusion} is not in subnet {cidr}")]
    ExclusionOutside {
        /// The exclusion.
        exclusion: IpNetwork,
        /// The subnet.
        cidr: IpNetwork,
    },
    /// No address remains to be handed out.
    #[error("subnet {cidr} has no address to hand out: all are reserved or excluded")]
    NothingLeft {
        /// The subnet.
        cidr: IpNetwork,
    },
}

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

/// Some addresses of one family as numbers, first and last included.
pub(crate) type Span = (u128, u128);

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
            None => find(&self.excluded, number).then_some(Reservation::Excluded),
        }
    }
}

/// Whether one of `spans`, which are in order and apart, contains `number`.
fn find(spans: &[Span], number: u128) -> bool {
    let after = spans.partition_point(|&(first, _)| first <= number);
    after > 0 && number <= spans[after - 1].1
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn span_of(cidr: IpNetwork) -> Span {
    let (first, last) = match cidr {
        IpNetwork::V4(cidr) => (IpAddr::V4(cidr.network()), IpAddr::V4(cidr.broadcast())),
        IpNetwork::V6(cidr) => (IpAddr::V6(cidr.network()), IpAddr::V6(cidr.broadcast())),
    };
    (number(first), number(last))
}

/// `cidr` without its host bits.
fn without_host_bits(cidr: IpNetwork) -> IpNetwork {
    IpNetwork::new(cidr.network(), cidr.prefix()).unwrap_or(cidr)
}

/// Addresses that have a meaning of their own. In the prefixes of one and two addresses there are
/// none but the gateway's (RFC 3021, RFC 6164).
fn specials(spec: &SubnetSpec) -> impl Iterator<Item = (u128, Reservation)> {
    let (first, last) = span_of(spec.cidr);
    let roomy = last - first > 1;
    let broadcast = roomy && spec.cidr.is_ipv4();
    let network = roomy.then_some((first, Reservation::Network));
    let broadcast = broadcast.then_some((last, Reservation::Broadcast));
    let gateway = spec.gateway.map(|gateway| (number(gateway), Reservation::Gateway));
    [gateway, network, broadcast].into_iter().flatten()
}

fn check_cidr(cidr: IpNetwork) -> Result<(), SpecError> {
    let network = without_host_bits(cidr);
    if network != cidr {
        return Err(SpecError::HostBits { cidr, network });
    }
    let multicast_prefix = if cidr.is_ipv4() { 4 } else { 8 };
    if cidr.ip().is_multicast() && cidr.prefix() >= multicast_prefix {
        return Err(SpecError::Multicast { cidr });
    }
    Ok(())
}

/// The gateway may be IPv6's subnet-router anycast address, which routers do answer to.
fn check_gateway(spec: &SubnetSpec) -> Result<(), SpecError> {
    let Some(gateway) = spec.gateway else { return Ok(()) };
    let cidr = spec.cidr;
    if !cidr.contains(gateway) {
        return Err(SpecError::GatewayOutside { gateway, cidr });
    }
    let clash = specials(spec)
        .find(|&(special, why)| special == number(gateway) && why != Reservation::Gateway);
    match clash {
        Some((_, why)) if cidr.is_ipv4() => Err(SpecError::GatewayReserved { gateway, why, cidr }),
        _ => Ok(()),
    }
}

/// The ranges to hand out from, in order.
fn ranges(spec: &SubnetSpec) -> Result<Vec<Span>, SpecError> {
    if spec.ranges.is_empty() {
        return Ok(vec![span_of(spec.cidr)]);
    }
    for &(start, end) in &spec.ranges {
        check_range(spec.cidr, start, end)?;
    }
    let mut ranges = spec.ranges.clone();
    ranges.sort_unstable();
    let overlap = ranges.windows(2).find(|pair| pair[1].0 <= pair[0].1);
    match overlap {
        Some(pair) => Err(SpecError::RangesOverlap { first: pair[0], second: pair[1] }),
        None => Ok(ranges.iter().map(|&(start, end)| (number(start), number(end))).collect()),
    }
}

fn check_range(cidr: IpNetwork, start: IpAddr, end: IpAddr) -> Result<(), SpecError> {
    if start.is_ipv4() != end.is_ipv4() {
        return Err(SpecError::RangeMixed { start, end });
    }
    if start > end {
        return Err(SpecError::RangeReversed { start, end });
    }
    if !cidr.contains(start) || !cidr.contains(end) {
        return Err(SpecError::RangeOutside { start, end, cidr });
    }
    Ok(())
}

fn exclusions(spec: &SubnetSpec) -> Result<Vec<Span>, SpecError> {
    spec.exclude.iter().map(|&exclusion| check_exclusion(spec.cidr, exclusion)).collect()
}

fn check_exclusion(cidr: IpNetwork, exclusion: IpNetwork) -> Result<Span, SpecError> {
    let network = without_host_bits(exclusion);
    if network != exclusion {
        return Err(SpecError::ExclusionHostBits { exclusion, network });
    }
    if !cidr.contains(exclusion.ip()) && !exclusion.contains(cidr.ip()) {
        return Err(SpecError::ExclusionOutside { exclusion, cidr });
    }
    Ok(span_of(exclusion))
}

/// The same numbers as spans in order and apart from each other.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
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

/// Spans in order, each with the number of addresses before it.
fn counted(spans: &[Span]) -> Vec<Open> {
    let count = |rank: &mut u128, &(first, last): &Span| {
        let open = Open { first, last, rank: *rank };
        *rank += last - first + 1;
        Some(open)
    };
    spans.iter().scan(0, count).collect()
}

/// What of `spans` is in none of `holes`. Both are in order and apart.
fn subtract(spans: &[Span], holes: &[Span]) -> Vec<Span> {
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
