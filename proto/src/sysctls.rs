//! Sysctls that a network may set on a pod's interface: only those that affect no other interface, at any value. Names
//! and values are those of Linux' `Documentation/networking/ip-sysctl.rst`.

use std::ops::RangeInclusive;

type Settings = [(&'static str, RangeInclusive<i32>)];

/// Sysctls below `net.ipv4.conf.IF`.
pub const IPV4: &Settings = &[
    ("accept_redirects", 0..=1),
    ("arp_accept", 0..=2),
    ("arp_announce", 0..=2),
    ("arp_filter", 0..=1),
    ("arp_ignore", 0..=3),
    ("arp_notify", 0..=1),
    ("forwarding", 0..=1),
    ("rp_filter", 0..=2),
    ("send_redirects", 0..=1),
];

/// Sysctls below `net.ipv6.conf.IF`.
pub const IPV6: &Settings = &[
    ("accept_dad", 0..=2),
    ("accept_ra", 0..=2),
    ("accept_ra_defrtr", 0..=1),
    ("accept_ra_pinfo", 0..=1),
    ("accept_redirects", 0..=1),
    ("autoconf", 0..=1),
    ("disable_ipv6", 0..=1),
    ("forwarding", 0..=1),
    ("keep_addr_on_down", -1..=1),
    ("ndisc_notify", 0..=1),
];

/// The allowed values of a sysctl. `None`: it is not in the list.
#[must_use]
pub fn values(settings: &Settings, name: &str) -> Option<RangeInclusive<i32>> {
    settings.iter().find(|(known, _)| *known == name).map(|(_, values)| values.clone())
}
