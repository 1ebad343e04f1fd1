//! A subnet's specification, and whether it can be.

use std::{fmt, net::IpAddr};

use ipnetwork::IpNetwork;

use crate::spans::{Span, number, span_of};

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

/// The gateway may be IPv6's subnet-router anycast address, which routers do answer to.
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

/// Addresses that have a meaning of their own. In the prefixes of one and two addresses there are
/// none but the gateway's (RFC 3021, RFC 6164).
pub(crate) fn specials(spec: &SubnetSpec) -> impl Iterator<Item = (u128, Reservation)> {
    let (first, last) = span_of(spec.cidr);
    let roomy = last - first > 1;
    let broadcast = roomy && spec.cidr.is_ipv4();
    let network = roomy.then_some((first, Reservation::Network));
    let broadcast = broadcast.then_some((last, Reservation::Broadcast));
    let gateway = spec.gateway.map(|gateway| (number(gateway), Reservation::Gateway));
    [gateway, network, broadcast].into_iter().flatten()
}

/// The ranges to hand out from, in order.
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
