//! Checks of form that several settings of a network share.

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;

/// The longest list in a network.
pub(super) const LONGEST_LIST: usize = 64;

/// Whether the text can name a network, pool or host: 1 to 63 bytes of `[a-z0-9-]` that begin and end with a letter
/// or digit.
pub fn is_label(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|b| is_plain(*b))
        && bytes.last().is_some_and(|b| is_plain(*b))
        && bytes.iter().all(|b| is_plain(*b) || *b == b'-')
}

pub(super) fn check_prefix(prefix: IpNetwork) -> Option<String> {
    let clean = IpNetwork::new(prefix.network(), prefix.prefix()).ok()?;
    (prefix.ip() != prefix.network()).then(|| format!("{prefix} has host bits set: write {clean}"))
}

pub(super) fn is_ordinary(prefix: IpNetwork) -> bool {
    let address = prefix.network();
    let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    // A wider subnet never leases its own broadcast address.
    let is_broadcast = prefix.contains(Ipv4Addr::BROADCAST.into()) && !has_broadcast(prefix);
    prefix.prefix() > 0
        && !address.is_loopback()
        && !address.is_multicast()
        && !address.is_unspecified()
        && !is_mapped
        && !is_broadcast
}

pub(super) fn has_broadcast(prefix: IpNetwork) -> bool {
    prefix.is_ipv4() && prefix.prefix() < 31
}
