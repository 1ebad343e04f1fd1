//! Mapped ports that a pod requests.

use std::net::IpAddr;

use offload_proto::{Failure, v1};

use super::{IP_ADDRESS, invalid, optional, parse};
use model::{PortMapping, Protocol};

/// Maximum number of ports that one pod can request.
const MOST: usize = 256;

/// Sorted, so that equal requests compare equal.
pub(super) fn port_mappings(asked: &[v1::PortMapping]) -> Result<Vec<PortMapping>, Failure> {
    if asked.len() > MOST {
        let count = asked.len();
        return Err(invalid(format!(
            "{count} mapped ports are requested; at most {MOST} are possible"
        )));
    }
    let mut mappings = asked.iter().map(port_mapping).collect::<Result<Vec<_>, _>>()?;
    mappings.sort_unstable();
    for (number, one) in mappings.iter().enumerate() {
        if let Some(other) = mappings[..number].iter().find(|other| other.collides_with(one)) {
            return Err(invalid(match other == one {
                true => format!("mapped port {one} is requested twice"),
                false => format!("mapped ports {other} and {one} are requested together"),
            }));
        }
    }
    Ok(mappings)
}

fn port_mapping(asked: &v1::PortMapping) -> Result<PortMapping, Failure> {
    Ok(PortMapping {
        host_port: port("host_port", asked.host_port)?,
        protocol: parse::<Protocol>("protocol", &asked.protocol, "tcp, udp or sctp")?,
        host_ip: optional(&asked.host_ip, host_ip)?,
        container_port: port("container_port", asked.container_port)?,
    })
}

fn port(what: &str, number: u32) -> Result<u16, Failure> {
    let refused = || invalid(format!("{what} {number} must be 1 to 65535"));
    u16::try_from(number).ok().filter(|port| *port != 0).ok_or_else(refused)
}

/// Refuses loopback: no packet from elsewhere reaches such an address of the DPU.
fn host_ip(text: &str) -> Result<IpAddr, Failure> {
    let address: IpAddr = parse("host_ip", text, IP_ADDRESS)?;
    let address = address.to_canonical();
    match address.is_loopback() || address.is_multicast() {
        true => Err(invalid(format!(
            "host_ip {address} can't be reached from elsewhere: name an address of the DPU, or none"
        ))),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host_port: u32, protocol: &str, host_ip: &str) -> v1::PortMapping {
        let (protocol, host_ip) = (protocol.into(), host_ip.into());
        v1::PortMapping { host_port, container_port: 80, protocol, host_ip }
    }

    #[test]
    fn mapped_ports_are_sorted() {
        let (low, high) = (asked(80, "tcp", ""), asked(81, "udp", "::ffff:192.0.2.1"));
        let read = port_mappings(&[high.clone(), low.clone()]).unwrap();
        assert_eq!(read, port_mappings(&[low, high]).unwrap());
        let names: Vec<_> = read.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["80/tcp", "81/udp of 192.0.2.1"]);
    }

    #[test]
    fn invalid_mapped_ports_are_refused_by_value() {
        let twice = vec![asked(80, "tcp", ""); 2];
        let overlapping = vec![asked(80, "tcp", "192.0.2.1"), asked(80, "tcp", "")];
        for (asked, words) in [
            (vec![asked(0, "tcp", "")], "host_port 0 must be 1 to 65535"),
            (vec![asked(65536, "tcp", "")], "host_port 65536"),
            (vec![asked(80, "icmp", "")], "protocol \"icmp\""),
            (vec![asked(80, "tcp", "eth0")], "host_ip \"eth0\""),
            (vec![asked(80, "tcp", "127.0.0.1")], "host_ip 127.0.0.1"),
            (twice, "80/tcp is requested"),
            (overlapping, "80/tcp and 80/tcp of 192.0.2.1"),
            (vec![asked(80, "tcp", ""); 257], "257 mapped ports"),
        ] {
            let failure = port_mappings(&asked).unwrap_err();
            assert!(failure.message.contains(words), "{failure:?} does not tell {words:?}");
        }
    }
}
