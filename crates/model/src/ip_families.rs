//! The IP families that a pod requests.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The IP families that a pod requests on one interface. Neither: no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpFamilies {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
}

impl IpFamilies {
    /// Both families.
    pub const ALL: Self = Self { ipv4: true, ipv6: true };

    /// Whether the address is of one of the families.
    #[must_use]
    pub const fn include(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(_) => self.ipv6,
        }
    }
}
