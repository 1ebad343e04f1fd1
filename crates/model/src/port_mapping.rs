//! Mapped ports: ports of this DPU that lead to pods.

use std::{fmt, net::IpAddr, str::FromStr};

use offload_proto::v1;
use serde::{Deserialize, Serialize};

/// A protocol above IP that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The protocol's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// The IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl FromStr for Protocol {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [Self::Tcp, Self::Udp, Self::Sctp];
        all.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(text)).ok_or(())
    }
}

/// A mapped port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortMapping {
    /// The DPU's port. Not 0.
    pub host_port: u16,
    /// The protocol of both ports.
    pub protocol: Protocol,
    /// The DPU's address. An unspecified address means all of its family, `None` all of both families.
    pub host_ip: Option<IpAddr>,
    /// The pod's port. Not 0.
    pub container_port: u16,
}

impl PortMapping {
    /// Whether a packet could match both.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        (self.host_port, self.protocol) == (other.host_port, other.protocol)
            && share_an_address(self.host_ip, other.host_ip)
    }

    /// Whether it applies to addresses of that family.
    #[must_use]
    pub fn is_of_family_of(&self, address: IpAddr) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv4() == address.is_ipv4())
    }

    /// The single address that it applies to. `None`: it applies to all addresses, at least of one family.
    #[must_use]
    pub fn one_address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

impl From<PortMapping> for v1::PortMapping {
    fn from(mapping: PortMapping) -> Self {
        Self {
            host_port: mapping.host_port.into(),
            container_port: mapping.container_port.into(),
            protocol: mapping.protocol.name().into(),
            host_ip: mapping.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        }
    }
}

/// For people: the DPU's side.
impl fmt::Display for PortMapping {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.host_port, self.protocol.name())?;
        self.host_ip.map_or(Ok(()), |ip| write!(out, " of {ip}"))
    }
}

/// Whether two choices of an address have one in common. `None`: all addresses.
pub fn share_an_address(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    one.is_ipv4() == other.is_ipv4()
        && (one == other || one.is_unspecified() || other.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_port: u16, protocol: Protocol, host_ip: &str) -> PortMapping {
        let host_ip = (!host_ip.is_empty()).then(|| host_ip.parse().unwrap());
        PortMapping { host_port, protocol, host_ip, container_port: 80 }
    }

    #[test]
    fn wildcard_collides_with_addresses_of_its_families() {
        let tcp = |ip| mapping(80, Protocol::Tcp, ip);
        for (one, other, collide) in [
            ("", "", true),
            ("", "192.0.2.1", true),
            ("", "::", true),
            ("0.0.0.0", "192.0.2.1", true),
            ("::", "2001:db8::1", true),
            ("0.0.0.0", "::", false),
            ("0.0.0.0", "2001:db8::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            assert_eq!(tcp(one).collides_with(&tcp(other)), collide, "{one} and {other}");
            assert_eq!(tcp(other).collides_with(&tcp(one)), collide, "{other} and {one}");
        }
    }

    #[test]
    fn other_ports_and_other_protocols_do_not_collide() {
        let tcp = mapping(80, Protocol::Tcp, "");
        assert!(!tcp.collides_with(&mapping(81, Protocol::Tcp, "")));
        assert!(!tcp.collides_with(&mapping(80, Protocol::Udp, "")));
    }
}
