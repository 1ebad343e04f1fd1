//! netavark's call for a container, and its conversion to a CNI call.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    network::{AGENT_SOCKET, NETWORK, Network, unknown_option},
    refusal::Refusal,
};
use crate::cni::{
    environment::{Environment, Verb},
    version::Version,
};

/// A setup or teardown.
#[derive(Debug, Deserialize)]
pub(super) struct ContainerCall {
    container_id: String,
    #[serde(default)]
    container_name: String,
    port_mappings: Option<Vec<PortMapping>>,
    network: Network,
    network_options: ContainerOptions,
}

/// The container's settings in a network. Its `aliases` are ignored: podman gives every container one, and the DPU's
/// networks resolve no names.
#[derive(Debug, Deserialize)]
struct ContainerOptions {
    interface_name: String,
    static_ips: Option<Vec<String>>,
    static_mac: Option<String>,
    options: Option<BTreeMap<String, String>>,
}

/// A mapping of `range` consecutive ports (0 counts as 1).
#[derive(Debug, Deserialize)]
struct PortMapping {
    container_port: u16,
    #[serde(default)]
    host_ip: String,
    host_port: u16,
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    range: u16,
}

impl ContainerCall {
    pub(super) fn interface_name(&self) -> &str {
        &self.network_options.interface_name
    }

    pub(super) fn environment(&self, verb: Verb, netns: &str) -> Environment {
        Environment {
            command: verb.as_str().into(),
            container_id: self.container_id.clone(),
            netns: netns.into(),
            interface_name: self.interface_name().into(),
            args: format!("IgnoreUnknown=1;K8S_POD_NAME={}", self.container_name),
            ..Environment::default()
        }
    }

    /// The configuration of the CNI call. A DEL uses only the agent's socket: it must succeed even if the network was
    /// changed or removed.
    pub(super) fn configuration(&self, verb: Verb) -> Result<Value, Refusal> {
        let (network, runtime_config) = match verb {
            Verb::Add => {
                self.check()?;
                (self.network.option(NETWORK), self.runtime_config()?)
            }
            _ => (None, json!({})),
        };
        Ok(json!({
            "cniVersion": Version::NEWEST.as_str(),
            "name": self.network.name,
            "type": "host-shim",
            "network": network,
            "agentSocket": self.network.option(AGENT_SOCKET),
            "runtimeConfig": runtime_config,
        }))
    }

    /// Checks the network again: podman's file may have been edited since its creation.
    fn check(&self) -> Result<(), Refusal> {
        self.network.check()?;
        let mut of_container = self.network_options.options.iter().flatten();
        match of_container.next() {
            Some((key, value)) => Err(unknown_option(key, value)),
            None => self.network.check_options(),
        }
    }

    fn runtime_config(&self) -> Result<Value, Refusal> {
        let options = &self.network_options;
        let mut config = serde_json::Map::new();
        if let Some(ips) = options.static_ips.as_ref().filter(|ips| !ips.is_empty()) {
            config.insert("ips".into(), json!(ips));
        }
        if let Some(mac) = options.static_mac.as_ref().filter(|mac| !mac.is_empty()) {
            config.insert("mac".into(), json!(mac));
        }
        let ports = self.ports()?;
        if !ports.is_empty() {
            config.insert("portMappings".into(), ports.into());
        }
        Ok(config.into())
    }

    /// The port mappings in CNI's form.
    fn ports(&self) -> Result<Vec<Value>, Refusal> {
        let mappings = self.port_mappings.iter().flatten();
        mappings.map(PortMapping::to_cni).collect::<Result<Vec<_>, _>>().map(|all| all.concat())
    }
}

impl PortMapping {
    fn to_cni(&self) -> Result<Vec<Value>, Refusal> {
        let last = self.range.max(1) - 1;
        let fits = |port: u16| port.checked_add(last).is_some();
        if !fits(self.container_port) || !fits(self.host_port) {
            return Err(Refusal(format!(
                "the port mapping of {} ports from {} on to {} leads beyond port 65535",
                self.range, self.host_port, self.container_port
            )));
        }
        let one = |protocol: &str, offset: u16| {
            json!({
                "hostPort": self.host_port + offset,
                "containerPort": self.container_port + offset,
                "protocol": protocol,
                "hostIP": self.host_ip,
            })
        };
        // podman separates several protocols by commas.
        let protocols = if self.protocol.is_empty() { "tcp" } else { &self.protocol };
        let all = protocols.split(',');
        Ok(all.flat_map(|protocol| (0..=last).map(move |offset| one(protocol, offset))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As netavark 1.17 passes it for `podman run --network green:ip=10.2.0.9,mac=02:00:00:00:00:09`.
    fn call(changes: &Value) -> ContainerCall {
        let mut document = json!({
            "container_id": "752b2d7c8f1e",
            "container_name": "web",
            "port_mappings": null,
            "network": {
                "name": "green",
                "id": "2f259bab93aa",
                "driver": "dpu-offload",
                "network_interface": null,
                "subnets": null,
                "ipv6_enabled": false,
                "internal": false,
                "dns_enabled": false,
                "options": { "network": "blue", "agent_socket": "/run/other.sock" },
                "ipam_options": null,
            },
            "network_options": {
                "aliases": ["752b2d7c8f1e"],
                "interface_name": "eth0",
                "static_ips": ["10.2.0.9"],
                "static_mac": "02:00:00:00:00:09",
            },
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            *document.pointer_mut(key).unwrap_or_else(|| panic!("no {key}")) = value.clone();
        }
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn setup_becomes_an_add() {
        let call = call(&json!({}));
        let environment = call.environment(Verb::Add, "/run/netns/netns-1");
        assert_eq!(environment.container_id, "752b2d7c8f1e");
        assert_eq!(environment.interface_name, "eth0");
        assert_eq!(environment.arg("K8S_POD_NAME"), Some("web"));
        let wanted = json!({
            "cniVersion": "1.1.0",
            "name": "green",
            "type": "host-shim",
            "network": "blue",
            "agentSocket": "/run/other.sock",
            "runtimeConfig": { "ips": ["10.2.0.9"], "mac": "02:00:00:00:00:09" },
        });
        assert_eq!(call.configuration(Verb::Add), Ok(wanted));
    }

    #[test]
    fn changed_network_is_checked_at_setup() {
        let call = call(&json!({ "/network/internal": true }));
        let refusal = call.configuration(Verb::Add).unwrap_err().0;
        assert!(refusal.starts_with("--internal is not for"), "{refusal}");
        assert!(call.configuration(Verb::Del).is_ok());
    }

    #[test]
    fn network_without_options_uses_its_name() {
        let call = call(&json!({ "/network/options": null, "/network_options/static_ips": [] }));
        let configuration = call.configuration(Verb::Add).unwrap();
        assert_eq!(configuration["network"], Value::Null);
        assert_eq!(configuration["name"], "green");
        assert_eq!(configuration["runtimeConfig"], json!({ "mac": "02:00:00:00:00:09" }));
    }

    #[test]
    fn port_ranges_become_single_mappings() {
        let mapping = json!({ "container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp,udp", "range": 2 });
        let call = call(&json!({ "/port_mappings": [mapping] }));
        let ports = &call.configuration(Verb::Add).unwrap()["runtimeConfig"]["portMappings"];
        let mappings: Vec<_> = ports
            .as_array()
            .unwrap()
            .iter()
            .map(|port| (&port["hostPort"], &port["protocol"]))
            .collect();
        assert_eq!(
            json!(mappings),
            json!([[8080, "tcp"], [8081, "tcp"], [8080, "udp"], [8081, "udp"]])
        );
        assert_eq!(ports[3]["containerPort"], 81);
    }

    #[test]
    fn port_ranges_beyond_65535_are_refused() {
        let mapping = json!({ "container_port": 65535, "host_port": 80, "range": 2 });
        let refusal = call(&json!({ "/port_mappings": [mapping] })).configuration(Verb::Add);
        let expected = "the port mapping of 2 ports from 80 on to 65535 leads beyond port 65535";
        assert_eq!(refusal, Err(Refusal(expected.into())));
    }

    #[test]
    fn teardown_succeeds_for_any_network() {
        let call = call(&json!({
            "/network/options": { "mtu": "1", "agent_socket": "/run/other.sock" },
            "/port_mappings": [{ "container_port": 65535, "host_port": 80, "range": 9 }],
        }));
        assert!(call.configuration(Verb::Add).is_err());
        let del = call.configuration(Verb::Del).unwrap();
        assert_eq!(
            (&del["agentSocket"], &del["runtimeConfig"]),
            (&json!("/run/other.sock"), &json!({}))
        );
    }
}
