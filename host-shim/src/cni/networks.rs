//! Further networks of a pod. An annotation names them in the form of the Network Plumbing Working Group's
//! specification for multiple networks (short, or JSON); or `networks` of the configuration does.

use std::{collections::BTreeSet, net::IpAddr};

use model::InterfaceRequest;
use offload_proto::form::{
    INTERFACE_NAMES, MOST_INTERFACES, is_interface_name, is_interface_name_prefix,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    annotations::{self, check_network},
    config::Configuration,
    environment::{Environment, quoted},
    error::{CniError, invalid},
    foreign::unsupported,
    go_json::named,
    pod_request::{PodRequest, decode},
};
use crate::protocol::FurtherInterface;

/// The specification's annotation.
const OF_SPECIFICATION: &str = "k8s.v1.cni.cncf.io/networks";
/// Our annotation, in the same form.
const OURS: &str = "dpu-offload.io/networks";
/// The prefix of interface names that the pod does not choose; the place in the list follows.
const PREFIX: &str = "net";

/// One requested network, in the specification's form.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
struct Selection {
    name: String,
    namespace: String,
    interface: String,
    mac: String,
    ips: Vec<String>,
    bandwidth: Value,
    #[serde(rename = "portMappings")]
    port_mappings: Value,
    #[serde(rename = "default-route")]
    default_route: Vec<String>,
    #[serde(rename = "cni-args")]
    cni_args: CniArgs,
}

/// `cni-args` of a selection.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CniArgs {
    #[serde(rename = "allowedSources")]
    allowed_sources: Vec<String>,
    #[serde(rename = "ipFamilies")]
    ip_families: Option<Vec<String>>,
}

/// The interfaces that the pod gets in addition to that of `environment`, which has `pod_request`.
///
/// # Errors
/// [`UNSUPPORTED_FIELD`](super::error::code::UNSUPPORTED_FIELD) for a request that cannot be served.
/// [`INVALID_CONFIGURATION`](super::error::code::INVALID_CONFIGURATION) for a malformed or contradictory one.
pub(super) fn further(
    environment: &Environment,
    configuration: &Configuration,
    pod_request: &PodRequest,
) -> Result<Vec<FurtherInterface>, CniError> {
    let Some((title, selections)) = asked_for(configuration)? else { return Ok(Vec::new()) };
    if selections.len() >= MOST_INTERFACES {
        let (asked, most) = (selections.len(), MOST_INTERFACES - 1);
        return Err(invalid(format!("{title} asks for {asked} networks: {most} at most")));
    }
    let prefix = prefix(configuration)?;
    let numbered = selections.into_iter().zip(1..);
    let interface = |(selection, number): (Selection, u32)| {
        let title = format!("{title}: network {}", quoted(&selection.name));
        selection.interface(&title, (prefix, number), &pod_request.pod.namespace)
    };
    let interfaces = numbered.map(interface).collect::<Result<Vec<_>, _>>()?;
    check_distinct(&title, &environment.interface_name, pod_request, &interfaces)?;
    Ok(interfaces)
}

/// The networks that the configuration names for pods without an annotation.
///
/// # Errors
/// As [`further`].
pub(super) fn named_in(configuration: &Configuration) -> Result<Vec<String>, CniError> {
    let Some((title, selections)) = of_configuration(configuration)? else { return Ok(Vec::new()) };
    let name = |selection: Selection| {
        check_network(&title, &selection.name)?;
        Ok(selection.name)
    };
    selections.into_iter().map(name).collect()
}

/// The list and its name in messages. `None`: the pod asks for no further networks.
fn asked_for(configuration: &Configuration) -> Result<Option<(String, Vec<Selection>)>, CniError> {
    let by_runtime = named(configuration.runtime_config.clone(), &[annotations::CAPABILITY]);
    let annotations = by_runtime.get(annotations::CAPABILITY).and_then(Value::as_object);
    let annotation = |name| annotations.and_then(|all: &Map<String, Value>| all.get(name));
    let (title, text) = match (annotation(OF_SPECIFICATION), annotation(OURS)) {
        (Some(one), Some(other)) if one != other => {
            let message = format!(
                "annotations {OF_SPECIFICATION} and {OURS} ask for different networks: leave one out"
            );
            return Err(invalid(message));
        }
        (Some(text), _) => (OF_SPECIFICATION, text),
        (None, Some(text)) => (OURS, text),
        (None, None) => return of_configuration(configuration),
    };
    let title = format!("annotation {title}");
    let text = text.as_str().ok_or_else(|| invalid(format!("{title} is no text")))?;
    let selections = of_text(&title, text)?;
    Ok(Some((title, selections)))
}

/// `networks` of the configuration: names in the short form, or objects.
fn of_configuration(
    configuration: &Configuration,
) -> Result<Option<(String, Vec<Selection>)>, CniError> {
    let title = "networks";
    let Some(networks) = &configuration.networks else { return Ok(None) };
    let selections = networks.iter().map(|network| match network {
        Value::String(text) => short(title, text),
        object => decode(title, object),
    });
    Ok(Some((title.to_owned(), selections.collect::<Result<_, _>>()?)))
}

fn of_text(title: &str, text: &str) -> Result<Vec<Selection>, CniError> {
    if !text.trim_start().starts_with('[') {
        return text.split(',').map(|one| short(title, one)).collect();
    }
    let list: Value = serde_json::from_str(text)
        .map_err(|error| invalid(format!("{title} is no JSON: {error}")))?;
    decode(title, &list)
}

/// Parses `<namespace>/<name>@<interface>`; only the name is required.
fn short(title: &str, text: &str) -> Result<Selection, CniError> {
    let text = text.trim();
    let (path, interface) = match text.split_once('@') {
        Some((_, "")) => {
            let text = quoted(text);
            return Err(invalid(format!("{title} {text} names no interface after the @")));
        }
        Some((path, interface)) => (path, interface),
        None => (text, ""),
    };
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    let [name, namespace, interface] = [name, namespace, interface].map(str::to_owned);
    Ok(Selection { name, namespace, interface, ..Selection::default() })
}

fn prefix(configuration: &Configuration) -> Result<&str, CniError> {
    let prefix = configuration.interface_prefix.as_deref().unwrap_or(PREFIX);
    match is_interface_name_prefix(prefix) {
        true => Ok(prefix),
        false => {
            let prefix = quoted(prefix);
            Err(invalid(format!("interfacePrefix {prefix} can't begin an interface's name")))
        }
    }
}

impl Selection {
    fn interface(
        self,
        title: &str,
        (prefix, place): (&str, u32),
        own_namespace: &str,
    ) -> Result<FurtherInterface, CniError> {
        check_network(title, &self.name)?;
        if !self.namespace.is_empty() && self.namespace != own_namespace {
            let way_out = "UNSUPPORTED: leave it out: the DPU's networks are in no namespace, and list the namespaces \
                           whose pods may use them";
            let key = format!("{title}: namespace");
            return Err(unsupported(&key, &self.namespace.into()).with_details(way_out));
        }
        let place = self.interface.is_empty().then_some(place);
        let interface_name = match place {
            Some(place) => format!("{prefix}{place}"),
            None => self.interface,
        };
        if !is_interface_name(&interface_name) {
            let name = quoted(&interface_name);
            return Err(invalid(format!(
                "{title}: interface {name} can't name an interface: use {INTERFACE_NAMES}"
            )));
        }
        let mut pod_request = PodRequest::default();
        let key = |name: &str| format!("{title}: {name}");
        pod_request.take_mac(&key("mac"), Some(&self.mac))?;
        pod_request.take_addresses(&key("ips"), Some(&self.ips))?;
        pod_request.take_sources(&key("allowedSources"), &self.cni_args.allowed_sources)?;
        pod_request.take_families(&key("ipFamilies"), self.cni_args.ip_families.as_deref())?;
        let capabilities = [("bandwidth", &self.bandwidth), ("portMappings", &self.port_mappings)];
        for (name, value) in capabilities {
            pod_request.take_capability(&key(name), name, value)?;
        }
        Ok(FurtherInterface {
            interface_name,
            place,
            interface: InterfaceRequest { network: self.name, ..pod_request.interface },
            default_gateways: gateways(title, &self.default_route)?,
        })
    }
}

/// Two gateways of one family are refused by [`check_distinct`].
fn gateways(title: &str, texts: &[String]) -> Result<Vec<IpAddr>, CniError> {
    let title = format!("{title}: default-route");
    let read = |text: &String| {
        text.parse::<IpAddr>()
            .map_err(|_| invalid(format!("{title} {} is no IP address", quoted(text))))
    };
    texts.iter().map(read).collect()
}

/// Refuses values that two interfaces cannot share.
fn check_distinct(
    title: &str,
    first: &str,
    pod_request: &PodRequest,
    interfaces: &[FurtherInterface],
) -> Result<(), CniError> {
    let names = interfaces.iter().map(|one| one.interface_name.as_str());
    refuse_twice(title, "interface", [first].into_iter().chain(names))?;
    let further = interfaces.iter().map(|one| &one.interface);
    let all = further.clone().chain([&pod_request.interface]);
    refuse_twice(title, "MAC address", all.clone().filter_map(|one| one.mac))?;
    refuse_twice(title, "address", all.flat_map(|one| &one.addresses).map(|one| one.ip))?;
    let gateways = interfaces.iter().flat_map(|one| &one.default_gateways);
    let families = gateways.map(|gateway| if gateway.is_ipv6() { "IPv6" } else { "IPv4" });
    refuse_twice(title, "default-route of", families)?;
    refuse_twice(title, "network", further.map(|one| one.network.as_str()))
}

fn refuse_twice<T: Ord + std::fmt::Display>(
    title: &str,
    what: &str,
    all: impl Iterator<Item = T>,
) -> Result<(), CniError> {
    let mut seen = BTreeSet::new();
    for one in all {
        if let Some(one) = seen.replace(one) {
            return Err(invalid(format!("{title} asks for {what} {one} twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::Bandwidth;
    use serde_json::json;

    use super::*;
    use crate::cni::error::code;

    /// The further interfaces of a pod in namespace shop, for the fields of a configuration.
    fn of_fields(fields: &Value) -> Result<Vec<FurtherInterface>, CniError> {
        let mut document = json!({"cniVersion": "1.1.0", "name": "n", "type": "host-shim"});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let configuration = Configuration::read(document.to_string().as_bytes()).unwrap();
        let environment = Environment {
            args: "K8S_POD_NAMESPACE=shop;MAC=02:00:00:00:00:01;IP=10.1.0.5".into(),
            interface_name: "eth0".into(),
            ..Environment::default()
        };
        let pod_request = PodRequest::gather(&environment, &configuration)?;
        further(&environment, &configuration, &pod_request)
    }

    fn annotated(text: &str) -> Result<Vec<FurtherInterface>, CniError> {
        of_fields(&json!({"runtimeConfig": {annotations::CAPABILITY: {OF_SPECIFICATION: text}}}))
    }

    fn named(interfaces: Vec<FurtherInterface>) -> Vec<(String, String)> {
        interfaces.into_iter().map(|one| (one.interface_name, one.interface.network)).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, network)| ((*name).into(), (*network).into())).collect()
    }

    #[test]
    fn further_interfaces_are_named_by_place() {
        let found = annotated("blue, shop/red@storage ,green").unwrap();
        let places: Vec<_> = found.iter().map(|one| one.place).collect();
        assert_eq!(places, [Some(1), None, Some(3)]);
        assert_eq!(named(found), pairs(&[("net1", "blue"), ("storage", "red"), ("net3", "green")]));
        let fields = json!({"networks": ["blue", {"name": "red"}], "interfacePrefix": "eth"});
        let found = of_fields(&fields).unwrap();
        assert_eq!(named(found), pairs(&[("eth1", "blue"), ("eth2", "red")]));
    }

    #[test]
    fn annotation_replaces_configured_networks() {
        let fields = json!({
            "networks": ["blue"],
            "runtimeConfig": {annotations::CAPABILITY: {OURS: "red"}},
        });
        assert_eq!(named(of_fields(&fields).unwrap()), pairs(&[("net1", "red")]));
        assert_eq!(of_fields(&json!({})), Ok(vec![]));
    }

    #[test]
    fn json_form_supports_all_requests() {
        let text = json!([{
            "name": "blue", "namespace": "shop", "interface": "data",
            "mac": "02:00:00:00:00:07", "ips": ["10.2.0.7/24", "fd02::7"],
            "bandwidth": {"ingressRate": 8000},
            "portMappings": [{"hostPort": 8080, "containerPort": 80}],
            "default-route": ["10.2.0.1"],
            "cni-args": {"allowedSources": ["10.2.0.100"]},
        }]);
        let [found] = <[_; 1]>::try_from(annotated(&text.to_string()).unwrap()).unwrap();
        let bandwidth = Bandwidth { ingress_rate: 8000, ..Bandwidth::default() };
        let requested = &found.interface;
        assert_eq!((found.interface_name.as_str(), requested.bandwidth), ("data", bandwidth));
        assert_eq!(requested.mac.unwrap().to_string(), "02:00:00:00:00:07");
        assert_eq!(requested.addresses, ["10.2.0.7/24", "fd02::7"].map(|it| it.parse().unwrap()));
        assert_eq!(requested.port_mappings[0].host_port, 8080);
        assert_eq!(found.default_gateways, ["10.2.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(requested.allowed_sources, ["10.2.0.100".parse().unwrap()].into());
    }

    #[test]
    fn unknown_selection_keys_are_refused() {
        for (text, key, known) in [
            (r#"[{"name": "blue", "vlan": 7}]"#, ".vlan", "portMappings"),
            (r#"[{"name": "blue", "infiniband-guid": "c2"}]"#, ".infiniband-guid", "default-route"),
            (r#"[{"name": "blue", "cni-args": {"x": 1}}]"#, ".x", "allowedSources"),
            ("other/blue", "network \"blue\": namespace \"other\"", "in no namespace"),
        ] {
            let error = annotated(text).unwrap_err();
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(
                error.message.starts_with(&format!("annotation {OF_SPECIFICATION}")),
                "{error:?}"
            );
            assert!(error.message.contains(key) && error.details.contains(known), "{error:?}");
        }
    }

    #[test]
    fn malformed_or_contradictory_networks_are_refused() {
        let list = |one: &str, other: &str| format!("[{one},{other}]");
        for (text, expected) in [
            (String::new(), "name a network"),
            ("blue,".into(), "network \"\""),
            ("Blue_1".into(), "\"Blue_1\""),
            ("blue@".into(), "names no interface"),
            ("blue@a/b".into(), "\"a/b\""),
            ("[{".into(), "is no JSON"),
            (r#"[{"name": 5}]"#.into(), "malformed"),
            (r#"{"name": "blue"}"#.into(), "name a network"),
            (r#"[{"name": "blue", "mac": "x"}]"#.into(), "network \"blue\": mac"),
            (r#"[{"name": "blue", "ips": ["10.1"]}]"#.into(), "network \"blue\": ips"),
            (r#"[{"name": "blue", "default-route": ["x"]}]"#.into(), "no IP address"),
            ("blue@eth0".into(), "interface eth0 twice"),
            ("blue@net2,red".into(), "interface net2 twice"),
            ("blue,red,blue".into(), "blue twice"),
            (
                r#"[{"name": "blue", "mac": "02:00:00:00:00:01"}]"#.into(),
                "MAC address 02:00:00:00:00:01 twice",
            ),
            (r#"[{"name": "blue", "ips": ["10.1.0.5/24"]}]"#.into(), "address 10.1.0.5 twice"),
            (
                list(
                    r#"{"name": "blue", "default-route": ["10.2.0.1"]}"#,
                    r#"{"name": "red", "default-route": ["10.3.0.1"]}"#,
                ),
                "default-route of IPv4 twice",
            ),
            (vec!["blue"; 64].join(","), "64 networks: 63 at most"),
        ] {
            let error = annotated(&text).unwrap_err();
            assert_eq!(error.code, code::INVALID_CONFIGURATION, "{text}: {error:?}");
            assert!(error.message.contains(expected), "{text}: {error:?}");
        }
        let both = json!({OURS: "blue", OF_SPECIFICATION: "red"});
        let error = of_fields(&json!({"runtimeConfig": {annotations::CAPABILITY: both}}));
        assert!(error.unwrap_err().message.contains("leave one out"));
        let error = of_fields(&json!({"networks": ["blue"], "interfacePrefix": "a/"}));
        assert!(error.unwrap_err().message.contains("interfacePrefix"));
    }
}
