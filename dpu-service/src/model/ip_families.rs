//! The families of which a pod asks for an address.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The families of which a pod asks for an address on one interface. Neither is no address at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpFamilies {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

impl IpFamilies {
    /// Each that the network has.
    pub const ALL: Self = Self { ipv4: true, ipv6: true };

    /// Whether the address is of one of them.
    #[must_use]
    pub const fn include(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(_) => self.ipv6,
        }
    }
}
