//! Specifications of subnets, and their checks.

use std::{fmt, net::IpAddr};

use ipnetwork::IpNetwork;

use crate::spans::{Span, number, span_of};

/// A subnet as a configuration gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetSpec {
    /// The subnet, without host bits.
    pub cidr: IpNetwork,
    /// The gateway, which is never allocated.
    pub gateway: Option<IpAddr>,
    /// The ranges to allocate from without a request: first and last addresses, both included. Empty: the whole
    /// subnet.
    pub ranges: Vec<(IpAddr, IpAddr)>,
    /// Prefixes that are never allocated.
    pub exclude: Vec<IpNetwork>,
}

/// Why no attachment can hold an address of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// It is IPv4's network address or IPv6's subnet-router anycast address.
    Network,
    /// It is the IPv4 broadcast address.
    Broadcast,
    /// It is the gateway's address.
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

/// Errors in a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
pub enum SpecError {
    #[error("subnet {cidr} has host bits; write {network}")]
    HostBits { cidr: IpNetwork, network: IpNetwork },
    #[error("subnet {cidr} is a multicast one")]
    Multicast { cidr: IpNetwork },
    #[error("gateway {gateway} is not in subnet {cidr}")]
    GatewayOutside { gateway: IpAddr, cidr: IpNetwork },
    #[error("gateway {gateway} is {why} of {cidr}")]
    GatewayReserved { gateway: IpAddr, why: Reservation, cidr: IpNetwork },
    #[error("range {start}-{end} mixes IPv4 and IPv6")]
    RangeMixed { start: IpAddr, end: IpAddr },
    #[error("range {start}-{end} is the wrong way round; write {end}-{start}")]
    RangeReversed { start: IpAddr, end: IpAddr },
    #[error("range {start}-{end} is not within subnet {cidr}")]
    RangeOutside { start: IpAddr, end: IpAddr, cidr: IpNetwork },
    #[error("ranges {}-{} and {}-{} overlap", first.0, first.1, second.0, second.1)]
    RangesOverlap { first: (IpAddr, IpAddr), second: (IpAddr, IpAddr) },
    #[error("exclusion {exclusion} has host bits; write {network}")]
    ExclusionHostBits { exclusion: IpNetwork, network: IpNetwork },
    #[error("exclusion {exclusion} is not in subnet {cidr}")]
    ExclusionOutside { exclusion: IpNetwork, cidr: IpNetwork },
    #[error("subnet {cidr} has no address to allocate: all are reserved or excluded")]
    NothingLeft { cidr: IpNetwork },
}

pub(crate) fn check_cidr(cidr: IpNetwork) -> Result<(), SpecError> {
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

/// `cidr` without its host bits.
fn without_host_bits(cidr: IpNetwork) -> IpNetwork {
    IpNetwork::new(cidr.network(), cidr.prefix()).unwrap_or(cidr)
}

/// Checks the gateway. It may be IPv6's subnet-router anycast address, which routers answer to.
pub(crate) fn check_gateway(spec: &SubnetSpec) -> Result<(), SpecError> {
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

/// Addresses with a meaning of their own. Prefixes of one or two addresses have none but the gateway (RFC 3021, RFC
/// 6164).
pub(crate) fn specials(spec: &SubnetSpec) -> impl Iterator<Item = (u128, Reservation)> {
    let (first, last) = span_of(spec.cidr);
    let roomy = last - first > 1;
    let broadcast = roomy && spec.cidr.is_ipv4();
    let network = roomy.then_some((first, Reservation::Network));
    let broadcast = broadcast.then_some((last, Reservation::Broadcast));
    let gateway = spec.gateway.map(|gateway| (number(gateway), Reservation::Gateway));
    [gateway, network, broadcast].into_iter().flatten()
}

/// The sorted ranges to allocate from.
pub(crate) fn ranges(spec: &SubnetSpec) -> Result<Vec<Span>, SpecError> {
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

pub(crate) fn exclusions(spec: &SubnetSpec) -> Result<Vec<Span>, SpecError> {
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
