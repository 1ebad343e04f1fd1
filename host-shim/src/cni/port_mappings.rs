//! The `portMappings` capability: ports of the DPU that are mapped to the pod.

use std::net::IpAddr;

use model::{PortMapping, Protocol};
use serde::Deserialize;

use super::{
    environment::quoted,
    error::{CniError, invalid},
};

/// An entry in the form of CNI's conventions.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Entry {
    host_port: u64,
    container_port: u64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

pub(super) fn port_mappings(key: &str, entries: &[Entry]) -> Result<Vec<PortMapping>, CniError> {
    let mut mappings = Vec::<PortMapping>::new();
    for entry in entries {
        let mapping = port_mapping(key, entry)?;
        let is_same = |other: &PortMapping| {
            (other.host_port, other.protocol, other.host_ip)
                == (mapping.host_port, mapping.protocol, mapping.host_ip)
        };
        if mappings.iter().any(is_same) {
            let (port, protocol) = (mapping.host_port, mapping.protocol.name());
            return Err(invalid(format!("{key} has hostPort {port}/{protocol} twice")));
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

fn port_mapping(key: &str, entry: &Entry) -> Result<PortMapping, CniError> {
    Ok(PortMapping {
        host_port: port(key, "hostPort", entry.host_port)?,
        container_port: port(key, "containerPort", entry.container_port)?,
        protocol: protocol(key, &entry.protocol)?,
        host_ip: host_ip(key, &entry.host_ip)?,
    })
}

fn port(key: &str, name: &str, number: u64) -> Result<u16, CniError> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| invalid(format!("{key}: {name} {number} is not 1 to 65535")))
}

/// Parses a protocol. Empty means TCP, as with the `portmap` plugin.
fn protocol(key: &str, text: &str) -> Result<Protocol, CniError> {
    if text.is_empty() {
        return Ok(Protocol::Tcp);
    }
    text.parse()
        .map_err(|()| invalid(format!("{key}: protocol {} is not tcp, udp or sctp", quoted(text))))
}

/// Parses an address. Empty means all addresses.
fn host_ip(key: &str, text: &str) -> Result<Option<IpAddr>, CniError> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: Result<IpAddr, _> = text.parse();
    let address = address
        .map_err(|_| invalid(format!("{key}: hostIP {} is not an IP address", quoted(text))))?;
    Ok(Some(address.to_canonical()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::go_json, *};

    fn read(value: Value) -> Result<Vec<PortMapping>, CniError> {
        port_mappings("portMappings", &go_json::read::<Vec<Entry>>(value).unwrap())
    }

    fn mapping(host_port: u16, protocol: &str, host_ip: &str) -> PortMapping {
        let (protocol, host_ip) = (protocol.parse().unwrap(), host_ip.parse().ok());
        PortMapping { host_port, container_port: 80, protocol, host_ip }
    }

    #[test]
    fn port_mappings_are_read_in_any_case() {
        let ports = json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": "192.0.2.1"},
            {"HostPort": 53, "ContainerPort": 80, "Protocol": "udp", "HostIP": "2001:DB8::1"},
            {"hostPort": 53, "containerPort": 80, "protocol": "Sctp"},
            {"hostPort": 65535, "containerPort": 80},
        ]);
        let expected = [
            mapping(8080, "tcp", "192.0.2.1"),
            mapping(53, "udp", "2001:db8::1"),
            mapping(53, "sctp", ""),
            mapping(65535, "tcp", ""),
        ];
        assert_eq!(read(ports).unwrap(), expected);
        assert_eq!(read(json!([])).unwrap(), []);
    }

    #[test]
    fn invalid_port_mappings_are_refused() {
        let good = json!({"hostPort": 80, "containerPort": 80});
        let with = |key: &str, value: Value| {
            let mut entry = good.clone();
            entry[key] = value;
            json!([entry])
        };
        for (ports, expected) in [
            (with("hostPort", json!(0)), "portMappings: hostPort 0 is not 1 to 65535"),
            (with("hostPort", json!(65536)), "portMappings: hostPort 65536 is not"),
            (with("containerPort", json!(0)), "portMappings: containerPort 0 is not"),
            (with("protocol", json!("icmp")), "protocol \"icmp\""),
            (with("hostIP", json!("eth0")), "hostIP \"eth0\""),
            (json!([good.clone(), good.clone()]), "has hostPort 80/tcp twice"),
        ] {
            let error = read(ports).unwrap_err();
            assert!(error.message.contains(expected), "{error:?} does not contain {expected:?}");
        }
    }
}
