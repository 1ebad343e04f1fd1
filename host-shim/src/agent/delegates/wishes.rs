//! What a caller asks for of an interface that other plugins make, in the form in which they are asked.

use std::net::IpAddr;

use model::{Bandwidth, InterfaceRequest, PortMapping};
use offload_proto::{Failure, Reason, v1};
use serde_json::{Map, Value, json};

use super::{catalogue::Chain, default_routes::DefaultRoutes};
use crate::{
    cni::go_json,
    protocol::{AddRequest, FurtherInterface, Key},
};

/// An interface that other plugins shall make.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) struct Delegation {
    /// Its key.
    pub key: Key,
    /// The interface of the pod whose attachment leads it.
    pub group_interface: String,
    /// Its place among the further interfaces of its ADD, from 0.
    pub place: usize,
    pub(super) chain: Chain,
    /// `CNI_ARGS`
    pub(super) arguments: String,
    /// `runtimeConfig`
    pub(super) wishes: Map<String, Value>,
    pub(super) default_routes: DefaultRoutes,
    /// The addresses of the DPU that it shall have. `None`: its plugins see to them.
    pub lease: Option<v1::LeaseRequest>,
}

impl Delegation {
    /// That of the further interface in a place among `all` of an ADD.
    ///
    /// # Errors
    /// [`Reason::Unsupported`]: something is asked for that its plugins don't take.
    pub(super) fn new(
        add: &AddRequest,
        place: usize,
        all: &[FurtherInterface],
        chain: Chain,
    ) -> Result<Self, Failure> {
        let interface = &all[place];
        let requested = &interface.interface;
        let chain = chain.of_caller(&add.folders);
        let mut wishes = wishes(requested);
        let lease = lease(interface, &chain);
        if lease.is_some() {
            wishes.remove("ips");
        }
        refuse_without_capability(requested, &chain.network)?;
        for wish in wishes.keys() {
            if !chain.plugins.iter().any(|plugin| has_capability(plugin, wish)) {
                let why =
                    format!("none of the plugins in {} has the capability", chain.file.display());
                return Err(unsupported(&chain.network, wish, &why));
            }
        }
        let key = Key { interface_name: interface.interface_name.clone(), ..add.key.clone() };
        let arguments = arguments(&add.pod, &key.container_id);
        let default_routes = DefaultRoutes::of(interface, all);
        Ok(Self {
            key,
            group_interface: add.key.interface_name.clone(),
            place,
            chain,
            arguments,
            wishes,
            default_routes,
            lease,
        })
    }

    /// The gateways of the pod's default routes that go by it.
    pub(in crate::agent) fn default_gateways(&self) -> &[IpAddr] {
        self.default_routes.gateways()
    }

    /// The network that it is on.
    pub(in crate::agent) fn network(&self) -> &str {
        &self.chain.network
    }
}

/// What the DPU is asked for.
fn lease(interface: &FurtherInterface, chain: &Chain) -> Option<v1::LeaseRequest> {
    let network = chain.leased_network()?.to_owned();
    let interface_name = interface.interface_name.clone();
    let addresses = interface.interface.addresses.iter().map(ToString::to_string).collect();
    Some(v1::LeaseRequest { interface_name, network, addresses })
}

/// Whether the runtime is to pass a plugin what it has of a capability.
pub(super) fn has_capability(plugin: &Map<String, Value>, capability: &str) -> bool {
    // The capabilities themselves are keys of a map, which are as they are spelled.
    let capabilities = go_json::get(plugin, "capabilities");
    capabilities.is_some_and(|capabilities| capabilities[capability] == Value::Bool(true))
}

/// By capability, in the form of CNI's conventions.
fn wishes(requested: &InterfaceRequest) -> Map<String, Value> {
    let mut wishes = Map::new();
    if let Some(mac) = requested.mac {
        wishes.insert("mac".into(), mac.to_string().into());
    }
    if !requested.addresses.is_empty() {
        wishes.insert("ips".into(), json!(requested.addresses));
    }
    if requested.bandwidth != Bandwidth::default() {
        wishes.insert("bandwidth".into(), bandwidth(&requested.bandwidth));
    }
    if !requested.port_mappings.is_empty() {
        let mappings = requested.port_mappings.iter().map(port_mapping).collect();
        wishes.insert("portMappings".into(), mappings);
    }
    wishes
}

fn bandwidth(limits: &Bandwidth) -> Value {
    json!({
        "ingressRate": limits.ingress_rate,
        "ingressBurst": limits.ingress_burst,
        "egressRate": limits.egress_rate,
        "egressBurst": limits.egress_burst,
    })
}

fn port_mapping(mapping: &PortMapping) -> Value {
    json!({
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": mapping.protocol.name(),
        "hostIP": mapping.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    })
}

/// Refuses requests for which CNI's conventions have no capability.
fn refuse_without_capability(requested: &InterfaceRequest, network: &str) -> Result<(), Failure> {
    let refused = [
        ("allowedSources", !requested.allowed_sources.is_empty()),
        ("a VF", requested.device.is_some()),
        ("ipFamilies", requested.families.is_some()),
    ];
    match refused.into_iter().find(|(_, is_asked_for)| *is_asked_for) {
        Some((wish, _)) => Err(unsupported(network, wish, "plugins have no capability for it")),
        None => Ok(()),
    }
}

fn unsupported(network: &str, wish: &str, why: &str) -> Failure {
    let message =
        format!("network {network} is made by other plugins, which do not support {wish}: {why}");
    Failure::new(Reason::Unsupported, message)
}

/// As Kubernetes' runtimes have them.
fn arguments(pod: &v1::Pod, container_id: &str) -> String {
    if pod.name.is_empty() {
        return String::new();
    }
    let v1::Pod { namespace, name, uid } = pod;
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
         K8S_POD_INFRA_CONTAINER_ID={container_id};K8S_POD_UID={uid}"
    )
}

#[cfg(test)]
mod tests {
    use model::{IpFamilies, Protocol};

    use super::{super::record::tests::delegated, *};
    use crate::agent::vfs::tests::attach_of;

    fn delegation(
        requested: InterfaceRequest,
        capabilities: &Value,
    ) -> Result<Delegation, Failure> {
        let mut add = attach_of("c", &crate::agent::vfs::record("a", "c")).request;
        add.pod = v1::Pod { namespace: "shop".into(), name: "cart-0".into(), uid: "u".into() };
        let mut chain = delegated("net1").chain;
        chain.plugins[0].insert("capabilities".into(), capabilities.clone());
        let interface_name = "net1".into();
        let interface =
            FurtherInterface { interface_name, interface: requested, ..Default::default() };
        Delegation::new(&add, 0, &[interface], chain)
    }

    #[test]
    fn requests_are_passed_as_capabilities() {
        let port = PortMapping {
            host_port: 80,
            container_port: 8080,
            protocol: Protocol::Tcp,
            host_ip: None,
        };
        let requested = InterfaceRequest {
            mac: Some("02:00:00:00:00:07".parse().unwrap()),
            addresses: vec!["10.7.0.5/24".parse().unwrap()],
            bandwidth: Bandwidth { ingress_rate: 8000, ..Bandwidth::default() },
            port_mappings: vec![port],
            ..InterfaceRequest::default()
        };
        let all = json!({"mac": true, "ips": true, "bandwidth": true, "portMappings": true});
        let passed = delegation(requested.clone(), &all).unwrap();
        assert_eq!(passed.wishes["mac"], "02:00:00:00:00:07");
        assert_eq!(passed.wishes["ips"], json!(["10.7.0.5/24"]));
        assert_eq!(passed.wishes["bandwidth"]["ingressRate"], 8000);
        assert_eq!(passed.wishes["portMappings"][0]["hostPort"], 80);
        assert!(passed.arguments.contains(";K8S_POD_NAME=cart-0;"));
        for capability in ["mac", "ips", "bandwidth", "portMappings"] {
            let mut most = all.clone();
            most[capability] = false.into();
            let failure = delegation(requested.clone(), &most).unwrap_err();
            assert_eq!(failure.reason, Reason::Unsupported);
            assert!(failure.message.contains(capability), "{failure}");
        }
    }

    #[test]
    fn capabilities_match_keys_in_any_case() {
        let plugin = json!({"type": "bridge", "Capabilities": {"mac": true, "ips": false}});
        let plugin = plugin.as_object().unwrap();
        assert!(has_capability(plugin, "mac") && !has_capability(plugin, "ips"));
        assert!(!has_capability(plugin, "MAC"), "a capability is no field");
    }

    #[test]
    fn request_without_capability_is_refused() {
        for (requested, wish) in [
            (
                InterfaceRequest {
                    allowed_sources: ["10.7.0.0/24".parse().unwrap()].into(),
                    ..Default::default()
                },
                "allowedSources",
            ),
            (
                InterfaceRequest {
                    families: Some(IpFamilies { ipv4: true, ipv6: false }),
                    ..Default::default()
                },
                "ipFamilies",
            ),
            (
                InterfaceRequest { device: Some("0000:03:00.2".into()), ..Default::default() },
                "a VF",
            ),
        ] {
            let failure = delegation(requested, &json!({})).unwrap_err();
            assert!(failure.message.contains(wish), "{failure}");
        }
    }
}
