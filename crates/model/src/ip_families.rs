//! The IP families that a pod requests.

use std::net::IpAddr;

use offload_proto::v1;
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

impl From<IpFamilies> for v1::IpFamilies {
    fn from(IpFamilies { ipv4, ipv6 }: IpFamilies) -> Self {
        Self { ipv4, ipv6 }
    }
}

impl From<v1::IpFamilies> for IpFamilies {
    fn from(v1::IpFamilies { ipv4, ipv6 }: v1::IpFamilies) -> Self {
        Self { ipv4, ipv6 }
    }
}
