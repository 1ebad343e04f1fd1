//! `[[host_port]]` of the agent's configuration file.

use std::collections::HashSet;

use netlink::IpNetwork;
use offload_proto::{
    Failure, Reason,
    form::{HOST_PORT_CONTAINER, INTERFACE_NAMES, is_interface_name},
};
use serde::Deserialize;

use super::out_of_range::out_of_range;
use crate::protocol::Key;

/// An attachment of the host itself, in its own namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPort {
    /// The DPU's network.
    pub network: String,
    /// The interface's name.
    #[serde(default = "default_name")]
    pub name: String,
    /// Destinations reached through the port, in addition to the network's subnets.
    #[serde(default)]
    pub routes: Vec<IpNetwork>,
}

fn default_name() -> String {
    "offload0".into()
}

impl HostPort {
    #[must_use]
    pub(super) fn key(&self) -> Key {
        Key::of_host_port(&self.name)
    }

    fn check(&self) -> impl Iterator<Item = String> {
        let (name, network) = (&self.name, &self.network);
        let unnamed = network
            .is_empty()
            .then(|| out_of_range("host_port.network", "\"\"", "a network's name"));
        let misnamed = (!is_interface_name(name))
            .then(|| out_of_range("host_port.name", format_args!("{name:?}"), INTERFACE_NAMES));
        // The kernel refuses a route with host bits, and the port would fail.
        let is_host = |route: &&IpNetwork| route.ip() != route.network();
        let misrouted = self.routes.iter().filter(is_host).map(|route| {
            let range = format_args!("a prefix: {}/{}", route.network(), route.prefix());
            out_of_range("host_port.routes", route, range)
        });
        unnamed.into_iter().chain(misnamed).chain(misrouted)
    }
}

/// Refuses calls for host ports: only the configuration creates and removes them.
///
/// # Errors
/// The container id is reserved for host ports.
pub(super) fn refuse(container_id: &str) -> Result<(), Failure> {
    if container_id != HOST_PORT_CONTAINER {
        return Ok(());
    }
    let message = format!(
        "the container id {container_id} is reserved for host ports: configure them as [[host_port]] in the agent's file"
    );
    Err(Failure::new(Reason::InvalidRequest, message))
}

/// Problems of host ports in the configuration: one sentence each, without a full stop.
pub(super) fn problems(ports: &[HostPort]) -> impl Iterator<Item = String> {
    let mut seen = HashSet::new();
    let twice = ports.iter().filter(move |port| !seen.insert(&port.name));
    let twice =
        twice.map(|port| format!("`host_port.name` is {:?} twice: name each otherwise", port.name));
    ports.iter().flat_map(HostPort::check).chain(twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(network: &str, name: &str) -> HostPort {
        HostPort { network: network.into(), name: name.into(), routes: Vec::new() }
    }

    #[test]
    fn host_ports_need_networks_and_unique_names() {
        let problems_of = |ports: &[HostPort]| problems(ports).collect::<Vec<_>>().join("\n");
        assert_eq!(problems_of(&[port("blue", "offload0"), port("blue", "offload1")]), "");
        assert!(problems_of(&[port("", "offload0")]).contains("host_port.network"));
        assert!(problems_of(&[port("blue", "a/b")]).contains("host_port.name"));
        let routes = vec!["10.96.0.0/12".parse().unwrap(), "10.1.2.3/16".parse().unwrap()];
        let misrouted = problems_of(&[HostPort { routes, ..port("blue", "offload0") }]);
        assert!(misrouted.starts_with("`host_port.routes` is 10.1.2.3/16, "), "{misrouted}");
        assert!(misrouted.ends_with(" 10.1.0.0/16"), "{misrouted}");
        let twice = problems_of(&[port("blue", "offload0"), port("red", "offload0")]);
        assert!(twice.contains("\"offload0\" twice"), "{twice}");
    }
}
