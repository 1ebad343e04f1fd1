//! What a pod asks for. Sources in ascending priority: the configuration, `CNI_ARGS`, `args.cni`, the pod's
//! annotations, `runtimeConfig`. An annotation that contradicts `runtimeConfig` is refused.

use model::{Bandwidth, InterfaceRequest, IpFamilies};
use netlink::MacAddress;
use offload_proto::{form, v1::Pod};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use vf_alloc::Device;

use super::{
    annotations::{self, Annotation, Requested},
    config::Configuration,
    environment::{Environment, quoted, shown},
    error::{CniError, code, invalid},
    foreign::unsupported,
    go_json::{self, GoJsonError, is_zero, named},
    port_mappings::port_mappings,
    result::Dns,
};

/// What a pod asks for. Only the form is checked; the DPU decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// The pod.
    pub pod: Pod,
    /// What the pod asks of the DPU for its interface.
    pub interface: InterfaceRequest,
    /// The path of the device-info file to write.
    pub device_info_file: Option<String>,
    /// Resolver settings that replace the network's.
    pub dns: Option<Dns>,
}

/// The `bandwidth` capability.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct BandwidthCapability {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

impl From<BandwidthCapability> for Bandwidth {
    fn from(limits: BandwidthCapability) -> Self {
        let BandwidthCapability { ingress_rate, ingress_burst, egress_rate, egress_burst } = limits;
        Self { ingress_rate, ingress_burst, egress_rate, egress_burst, ..Self::default() }
    }
}

/// The `dns` capability.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DnsCapability {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl From<DnsCapability> for Dns {
    fn from(DnsCapability { servers, searches, options }: DnsCapability) -> Self {
        Self { nameservers: servers, search: searches, options, ..Self::default() }
    }
}

/// The keys of `runtimeConfig` that the plugin knows.
const CAPABILITIES: [&str; 9] = [
    "mac",
    "ips",
    "deviceID",
    "bandwidth",
    "CNIDeviceInfoFile",
    "dns",
    "portMappings",
    annotations::CAPABILITY,
    "cgroupPath",
];

impl PodRequest {
    /// Gathers the requests from all sources.
    ///
    /// # Errors
    /// [`code::UNSUPPORTED_FIELD`] for a request that the plugin cannot serve. [`code::INVALID_CONFIGURATION`] or
    /// [`code::INVALID_ENVIRONMENT`] for a malformed one. The message names key and value.
    pub fn gather(
        environment: &Environment,
        configuration: &Configuration,
    ) -> Result<Self, CniError> {
        environment.check_args()?;
        if let Some(foreign) = &configuration.foreign_key {
            return Err(foreign.refusal(&configuration.network()));
        }
        // The order of these calls is the sources' priority: a later one overwrites an earlier one.
        let network = configuration.network();
        let interface = InterfaceRequest { network, ..InterfaceRequest::default() };
        let mut pod_request = Self { pod: pod(environment), interface, ..Self::default() };
        pod_request.take_device(configuration)?;
        pod_request.take_mac("mac", configuration.mac.as_deref())?;
        pod_request.take_addresses("ips", configuration.ips.as_deref())?;
        pod_request.take_families("ipFamilies", configuration.ip_families.as_deref())?;
        pod_request.take_environment(environment)?;
        pod_request.take_mac("args.cni.mac", configuration.args.cni.mac.as_deref())?;
        pod_request.take_addresses("args.cni.ips", configuration.args.cni.ips.as_deref())?;
        let families = configuration.args.cni.ip_families.as_deref();
        pod_request.take_families("args.cni.ipFamilies", families)?;
        let sources = configuration.args.cni.allowed_sources.as_deref().unwrap_or_default();
        pod_request.take_sources("args.cni.allowedSources", sources)?;
        let by_runtime = named(configuration.runtime_config.clone(), &CAPABILITIES);
        for (key, value) in &by_runtime {
            pod_request.take_capability(&format!("runtimeConfig.{key}"), key, value)?;
        }
        pod_request.take_annotations(&by_runtime)?;
        Ok(pod_request)
    }

    fn take_device(&mut self, configuration: &Configuration) -> Result<(), CniError> {
        let (id, bus_id) = (&configuration.device_id, &configuration.pci_bus_id);
        if let (Some(id), Some(bus_id)) = (id, bus_id)
            && !id.is_empty()
            && !bus_id.is_empty()
            && id != bus_id
        {
            let (id, bus_id) = (quoted(id), quoted(bus_id));
            let message = format!("deviceID {id} and pciBusID {bus_id} name different devices");
            return Err(invalid(message));
        }
        self.take_named_device("pciBusID", bus_id.as_deref())?;
        self.take_named_device("deviceID", id.as_deref())
    }

    fn take_environment(&mut self, environment: &Environment) -> Result<(), CniError> {
        let of_environment =
            |error: CniError| CniError { code: code::INVALID_ENVIRONMENT, ..error };
        self.take_mac("CNI_ARGS MAC", environment.arg("MAC")).map_err(of_environment)?;
        let addresses: Option<Vec<_>> =
            environment.arg("IP").map(|ips| ips.split(',').map(str::to_owned).collect());
        self.take_addresses("CNI_ARGS IP", addresses.as_deref()).map_err(of_environment)
    }

    /// `name` is the key's name in messages.
    pub(super) fn take_capability(
        &mut self,
        name: &str,
        key: &str,
        value: &Value,
    ) -> Result<(), CniError> {
        if is_zero(value) {
            return Ok(());
        }
        match key {
            "mac" => self.take_mac(name, Some(&decode::<String>(name, value)?))?,
            "ips" => self.take_addresses(name, Some(&decode::<Vec<String>>(name, value)?))?,
            "deviceID" => self.take_named_device(name, Some(&decode::<String>(name, value)?))?,
            "bandwidth" => {
                self.interface.bandwidth = decode::<BandwidthCapability>(name, value)?.into();
            }
            "CNIDeviceInfoFile" => self.take_device_info_file(name, value)?,
            "dns" => {
                let dns: Dns = decode::<DnsCapability>(name, value)?.into();
                self.dns = (!dns.is_empty()).then_some(dns);
            }
            "portMappings" => {
                let entries: Vec<_> = decode(name, value)?;
                self.interface.port_mappings = port_mappings(name, &entries)?;
            }
            // Annotations are read after all capabilities. `cgroupPath` asks for nothing: it names the cgroup of the
            // pod's processes.
            annotations::CAPABILITY | "cgroupPath" => {}
            _ => return Err(unsupported(name, value)),
        }
        Ok(())
    }

    fn take_annotations(&mut self, by_runtime: &Map<String, Value>) -> Result<(), CniError> {
        let Some(value) = by_runtime.get(annotations::CAPABILITY).filter(|value| !value.is_null())
        else {
            return Ok(());
        };
        for Annotation { title, requested } in annotations::read(value)? {
            match requested {
                Requested::Network(name) => {
                    annotations::check_network(&title, &name)?;
                    self.interface.network = name;
                }
                Requested::AllowedSources(sources) => self.take_sources(&title, &sources)?,
                Requested::IpFamilies(families) => self.take_families(&title, Some(&families))?,
                Requested::Capability(key, value) => {
                    self.take_capability(&title, key, &value)?;
                    check_agreement(&title, key, &value, by_runtime)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_mac(&mut self, key: &str, value: Option<&str>) -> Result<(), CniError> {
        let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(()) };
        let mac: MacAddress = text.parse().map_err(|error| invalid(format!("{key}: {error}")))?;
        if !mac.is_unicast() {
            return Err(invalid(format!("{key} {mac} is not a unicast address")));
        }
        self.interface.mac = Some(mac);
        Ok(())
    }

    pub(super) fn take_addresses(
        &mut self,
        key: &str,
        value: Option<&[String]>,
    ) -> Result<(), CniError> {
        let Some(addresses) = value.filter(|addresses| !addresses.is_empty()) else {
            return Ok(());
        };
        let read = |text: &String| {
            text.parse()
                .map_err(|_| invalid(format!("{key} {} is not an IP address", quoted(text))))
        };
        self.interface.addresses = addresses.iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// An empty list asks for no address.
    pub(super) fn take_families(
        &mut self,
        key: &str,
        value: Option<&[String]>,
    ) -> Result<(), CniError> {
        let Some(names) = value else { return Ok(()) };
        let mut families = IpFamilies { ipv4: false, ipv6: false };
        for name in names {
            match name.as_str() {
                "IPv4" => families.ipv4 = true,
                "IPv6" => families.ipv6 = true,
                other => {
                    let other = quoted(other);
                    let message = format!("{key} {other} is no IP family: write IPv4 or IPv6");
                    return Err(invalid(message));
                }
            }
        }
        self.interface.families = Some(families);
        Ok(())
    }

    pub(super) fn take_sources(&mut self, key: &str, sources: &[String]) -> Result<(), CniError> {
        let read = |text: &String| {
            text.parse().map_err(|_| {
                invalid(format!(
                    "{key} {} is neither a MAC address nor an IP address",
                    quoted(text)
                ))
            })
        };
        self.interface.allowed_sources = sources.iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn take_named_device(&mut self, key: &str, value: Option<&str>) -> Result<(), CniError> {
        let Some(text) = value.filter(|text| !text.is_empty()) else { return Ok(()) };
        let device = full_device(text).ok_or_else(|| no_device(key, text))?;
        self.interface.device = Some(device);
        Ok(())
    }

    fn take_device_info_file(&mut self, key: &str, value: &Value) -> Result<(), CniError> {
        let path: String = decode(key, value)?;
        let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if !is_plain {
            return Err(invalid(format!("{key} {} is not an absolute path", quoted(&path))));
        }
        self.device_info_file = Some(path);
        Ok(())
    }
}

fn pod(environment: &Environment) -> Pod {
    let arg = |key| environment.arg(key).unwrap_or_default().to_owned();
    Pod { namespace: arg("K8S_POD_NAMESPACE"), name: arg("K8S_POD_NAME"), uid: arg("K8S_POD_UID") }
}

/// Refuses an annotation that differs from the runtime's request for the same capability.
fn check_agreement(
    title: &str,
    key: &str,
    value: &Value,
    by_runtime: &Map<String, Value>,
) -> Result<(), CniError> {
    let requested_by = |value| {
        let mut pod_request = PodRequest::default();
        pod_request.take_capability(title, key, value).map(|()| pod_request)
    };
    match by_runtime.get(key).filter(|value| !is_zero(value)) {
        Some(other) if requested_by(value)? != requested_by(other)? => {
            Err(annotations::contradiction(title, key, other))
        }
        _ => Ok(()),
    }
}

/// The full PCI address in lower case, such as `0000:03:00.2`. The text may omit the domain.
fn full_device(text: &str) -> Option<Device> {
    let in_full = match text.matches(':').count() {
        1 => form::device(&format!("0000:{text}")),
        _ => form::device(text),
    };
    in_full.map(Device::from)
}

/// VFs also have names such as `pf0vf3`, but runtimes and device plugins pass PCI addresses.
fn no_device(key: &str, text: &str) -> CniError {
    let message = format!("{key} {} is no PCI address", quoted(text));
    CniError::new(code::UNSUPPORTED_FIELD, message).with_details(
        "UNSUPPORTED: name the VF by its PCI address, such as 0000:03:00.2, which `dpuctl get vfs` \
         lists, or leave it out",
    )
}

/// Decodes the value of a key; `key` is its name in messages.
pub(super) fn decode<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T, CniError> {
    go_json::read(value.clone()).map_err(|error| match error {
        GoJsonError::UnknownKey { key: unknown, known } => {
            let known = known.join(", ");
            unsupported(&format!("{key}.{unknown}"), value)
                .with_details(format!("UNSUPPORTED: leave it out: {key} has the keys {known}"))
        }
        malformed @ GoJsonError::Malformed { .. } => {
            invalid(format!("{key} {} is malformed: {malformed}", shown(value)))
        }
    })
}

#[cfg(test)]
mod tests {
    use model::WantedAddress;
    use serde_json::json;

    use super::*;

    fn gather(args: &str, fields: &Value) -> Result<PodRequest, CniError> {
        let mut document = json!({"cniVersion": "1.1.0", "name": "n", "type": "host-shim"});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let environment = Environment { args: args.into(), ..Environment::default() };
        let configuration = Configuration::read(document.to_string().as_bytes()).unwrap();
        PodRequest::gather(&environment, &configuration)
    }

    fn addresses(texts: &[&str]) -> Vec<WantedAddress> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn of_runtime(key: &str, value: &Value) -> Result<PodRequest, CniError> {
        gather("", &json!({"runtimeConfig": {key: value}}))
    }

    #[test]
    fn later_request_source_wins() {
        let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
        let text = |last: u8| mac(last).to_string();
        let mut fields = json!({"mac": text(1), "ips": ["10.0.0.1"]});
        assert_eq!(gather("", &fields).unwrap().interface.mac, Some(mac(1)));
        let args = format!("MAC={};IP=10.0.0.2/24,fd00::2", text(2));
        let pod_request = gather(&args, &fields).unwrap();
        assert_eq!(pod_request.interface.mac, Some(mac(2)));
        assert_eq!(pod_request.interface.addresses, addresses(&["10.0.0.2/24", "fd00::2"]));
        fields["args"] = json!({"cni": {"mac": text(3), "ips": ["10.0.0.3"]}});
        assert_eq!(gather(&args, &fields).unwrap().interface.mac, Some(mac(3)));
        fields["runtimeConfig"] = json!({"mac": text(4), "ips": ["10.0.0.4"]});
        let pod_request = gather(&args, &fields).unwrap();
        assert_eq!(pod_request.interface.mac, Some(mac(4)));
        assert_eq!(pod_request.interface.addresses, addresses(&["10.0.0.4"]));
    }

    #[test]
    fn ip_families_are_read_from_each_source() {
        let only = |ipv4, ipv6| Some(IpFamilies { ipv4, ipv6 });
        let families = |fields: Value| gather("", &fields).map(|it| it.interface.families);
        assert_eq!(families(json!({})), Ok(None));
        assert_eq!(families(json!({"ipFamilies": ["IPv6"]})), Ok(only(false, true)));
        let both = json!({"ipFamilies": ["IPv6"], "args": {"cni": {"ipFamilies": []}}});
        assert_eq!(families(both), Ok(only(false, false)));
        let annotation = |text: &str| json!({"dpu-offload.io/ip-families": text});
        let of_pod = |text: &str| of_runtime(annotations::CAPABILITY, &annotation(text));
        assert_eq!(of_pod("IPv4").unwrap().interface.families, only(true, false));
        assert_eq!(of_pod("none").unwrap().interface.families, only(false, false));
        for text in ["ipv4", "none,IPv4", "IPv4,"] {
            assert_eq!(of_pod(text).unwrap_err().code, code::INVALID_CONFIGURATION, "{text}");
        }
    }

    #[test]
    fn cni_args_name_the_pod_in_any_order() {
        let args = "K8S_POD_UID=u;IgnoreUnknown=1;K8S_POD_NAME=web;X=1;K8S_POD_NAMESPACE=shop";
        let pod = gather(args, &json!({})).unwrap().pod;
        assert_eq!(
            (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()),
            ("shop", "web", "u")
        );
    }

    #[test]
    fn device_is_read_from_multus_and_runtime() {
        let both = json!({"deviceID": "0000:03:00.2", "pciBusID": "0000:03:00.2"});
        assert_eq!(gather("", &both).unwrap().interface.device, Some("0000:03:00.2".into()));
        let differing = json!({"deviceID": "0000:03:00.2", "pciBusID": "0000:03:00.3"});
        assert_eq!(gather("", &differing).unwrap_err().code, code::INVALID_CONFIGURATION);
        let pod_request = of_runtime("deviceID", &json!("D000:00:00.1")).unwrap();
        assert_eq!(pod_request.interface.device, Some("d000:00:00.1".into()));
    }

    #[test]
    fn devices_are_completed_and_checked() {
        assert_eq!(full_device("03:00.2"), Some("0000:03:00.2".into()));
        assert_eq!(full_device("10000:e1:00.0"), Some("10000:e1:00.0".into()));
        for text in
            ["", "mlx5_core.sf.2", "0000:03:00", "0000.03.00.2", "0000:03:00.2/x", "g000:00:00.0"]
        {
            assert_eq!(full_device(text), None, "{text}");
        }
    }

    #[test]
    fn capabilities_are_honoured() {
        let limits = json!({"ingressRate": 1000, "egressBurst": 7});
        let limits = of_runtime("bandwidth", &limits).unwrap().interface.bandwidth;
        assert_eq!((limits.ingress_rate, limits.egress_burst), (1000, 7));
        let dns = json!({"servers": ["10.0.0.10"], "searches": ["a"], "options": ["ndots:5"]});
        let dns = of_runtime("dns", &dns).unwrap().dns.unwrap();
        assert_eq!((dns.nameservers, dns.search), (vec!["10.0.0.10".into()], vec!["a".into()]));
        let pod_request = of_runtime("CNIDeviceInfoFile", &json!("/var/run/x/a.json")).unwrap();
        assert_eq!(pod_request.device_info_file.as_deref(), Some("/var/run/x/a.json"));
        assert!(of_runtime("cgroupPath", &json!("/kubepods/x")).is_ok());
    }

    /// containerd passes the names of Go's struct fields.
    #[test]
    fn capabilities_are_read_in_any_case() {
        let limits =
            json!({"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4});
        let limits = of_runtime("bandwidth", &limits).unwrap().interface.bandwidth;
        assert_eq!((limits.ingress_rate, limits.ingress_burst), (1, 2));
        assert_eq!((limits.egress_rate, limits.egress_burst), (3, 4));
        let dns = json!({"Servers": ["10.96.0.10"], "Searches": null, "Options": null});
        let dns = of_runtime("dns", &dns).unwrap().dns.unwrap();
        assert_eq!((dns.nameservers, dns.search), (vec!["10.96.0.10".into()], vec![]));
        let ports =
            json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
        let ports = of_runtime("portMappings", &ports).unwrap().interface.port_mappings;
        assert_eq!((ports[0].host_port, ports[0].container_port), (8080, 80));
        let mac = of_runtime("MAC", &json!("02:00:00:00:00:01")).unwrap().interface.mac;
        assert_eq!(mac, Some(MacAddress([2, 0, 0, 0, 0, 1])));
    }

    #[test]
    fn unknown_capability_key_is_refused() {
        let ports = json!([{"containerPort": 80, "range": 5}]);
        for (key, value, named, known) in [
            (
                "bandwidth",
                json!({"IngressRate": 1, "Latency": 5}),
                "Latency",
                "ingressRate, ingressB",
            ),
            ("bandwidth", json!({"ingress_rate": 8000}), "ingress_rate", "ingressRate, "),
            ("dns", json!({"nameservers": ["10.0.0.1"]}), "nameservers", "servers, searches, "),
            ("portMappings", ports, "range", "hostPort, "),
        ] {
            let error = of_runtime(key, &value).unwrap_err();
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(
                error.message.starts_with(&format!("runtimeConfig.{key}.{named} ")),
                "{error:?}"
            );
            assert!(error.details.contains(known), "{error:?}");
        }
        assert!(of_runtime("bandwidth", &json!({"Latency": 0})).is_ok());
    }

    #[test]
    fn foreign_key_is_refused_naming_the_network() {
        let error = gather("", &json!({"vlan": 100, "network": "blue"})).unwrap_err();
        assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
        assert!(error.details.contains("`vlan` of network \"blue\""), "{error:?}");
    }

    #[test]
    fn refusal_of_device_shows_a_valid_one() {
        let of_configuration = gather("", &json!({"deviceID": "pf0vf1"})).unwrap_err();
        let of_runtime = of_runtime("deviceID", &json!("pf0vf1")).unwrap_err();
        for error in [of_configuration, of_runtime] {
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(error.message.contains("\"pf0vf1\" is no PCI"), "{error:?}");
            assert!(error.details.contains("0000:03:00.2"), "{error:?}");
        }
    }

    #[test]
    fn unsupported_requests_are_refused_by_key() {
        for (key, value, shown) in [
            ("infinibandGUID", json!("c2:11"), "c2:11"),
            ("ipRanges", json!([[{"subnet": "10.1.2.0/24"}]]), "10.1.2.0/24"),
            ("aliases", json!(["db"]), "db"),
            ("deviceID", json!("mlx5_core.sf.2"), "mlx5_core.sf.2"),
            ("somethingNew", json!(true), "true"),
        ] {
            let error = of_runtime(key, &value).unwrap_err();
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{key}");
            assert!(error.message.contains(key) && error.message.contains(shown), "{error:?}");
        }
    }

    #[test]
    fn empty_values_request_nothing() {
        for (key, value) in [
            ("portMappings", json!([])),
            ("aliases", json!([])),
            ("infinibandGUID", json!("")),
            ("ipRanges", json!(null)),
            ("mac", json!("")),
            ("io.kubernetes.cri.pod-annotations", json!({"example.org/x": "1"})),
        ] {
            assert_eq!(of_runtime(key, &value), gather("", &json!({})), "{key}");
        }
    }

    fn of_annotations(ours: &Value, mut fields: Value) -> Result<PodRequest, CniError> {
        let named =
            |(name, value): (&String, &Value)| (format!("dpu-offload.io/{name}"), value.clone());
        let all: Value = ours.as_object().unwrap().iter().map(named).collect();
        fields["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = all;
        gather("MAC=02:00:00:00:00:02", &fields)
    }

    #[test]
    fn annotations_override_all_but_runtime_config() {
        let asked = json!({
            "network": "red", "mac": "02:00:00:00:00:05", "ips": "10.1.0.5,fd00::5",
            "bandwidth": "{\"ingressRate\": 8000}",
        });
        let fields = json!({"network": "blue", "ips": ["10.1.0.1"]});
        let pod_request = of_annotations(&asked, fields).unwrap();
        assert_eq!(pod_request.interface.network, "red");
        assert_eq!(pod_request.interface.mac, Some(MacAddress([2, 0, 0, 0, 0, 5])));
        assert_eq!(pod_request.interface.addresses, addresses(&["10.1.0.5", "fd00::5"]));
        assert_eq!(pod_request.interface.bandwidth.ingress_rate, 8000);
        assert_eq!(of_annotations(&json!({}), json!({})).unwrap().interface.network, "n");
    }

    #[test]
    fn annotation_contradicting_runtime_config_is_refused() {
        let mac = |text: &str| json!({"runtimeConfig": {"mac": text}});
        let asked = json!({"mac": "02:00:00:00:00:0a"});
        assert!(of_annotations(&asked, mac("02:00:00:00:00:0A")).is_ok());
        let error = of_annotations(&asked, mac("02:00:00:00:00:06")).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIGURATION);
        let expected =
            "annotation dpu-offload.io/mac contradicts runtimeConfig.mac \"02:00:00:00:00:06\"";
        assert!(error.message.starts_with(expected), "{error:?}");
        let limits = json!({"runtimeConfig": {"bandwidth": {"IngressRate": 9000}}});
        let asked = json!({"bandwidth": "{\"ingressRate\": 8000}"});
        let error = of_annotations(&asked, limits).unwrap_err();
        assert!(error.message.contains("contradicts runtimeConfig.bandwidth"), "{error:?}");
    }

    #[test]
    fn unsupported_annotations_are_refused() {
        for (name, value, expected) in [
            ("vlan", "7", code::UNSUPPORTED_FIELD),
            ("bandwidth", "{\"latency\": 5}", code::UNSUPPORTED_FIELD),
            ("network", "", code::INVALID_CONFIGURATION),
            ("network", "Blue_1", code::INVALID_CONFIGURATION),
            ("mac", "03:00:00:00:00:01", code::INVALID_CONFIGURATION),
            ("ips", "10.1.0.5,,fd00::5", code::INVALID_CONFIGURATION),
            ("bandwidth", "{\"ingressRate\": \"10M\"}", code::INVALID_CONFIGURATION),
        ] {
            let error = of_annotations(&json!({name: value}), json!({})).unwrap_err();
            assert_eq!(error.code, expected, "{error:?}");
            let title = format!("annotation dpu-offload.io/{name}");
            assert!(error.message.starts_with(&title), "{error:?}");
        }
    }

    #[test]
    fn malformed_pod_requests_are_refused() {
        for (key, value) in [
            ("mac", json!("02:00:00:00:00")),
            ("mac", json!("03:00:00:00:00:01")),
            ("mac", json!(5)),
            ("ips", json!(["10.0.0.256"])),
            ("ips", json!("10.0.0.1")),
            ("bandwidth", json!({"ingressRate": -1})),
            ("portMappings", json!([{"hostPort": 0, "containerPort": 80}])),
            ("portMappings", json!([{"hostPort": "80", "containerPort": 80}])),
            ("CNIDeviceInfoFile", json!("relative")),
            ("CNIDeviceInfoFile", json!("/a/../../etc/passwd")),
        ] {
            let error = of_runtime(key, &value).unwrap_err();
            assert_eq!(error.code, code::INVALID_CONFIGURATION, "{key}");
            assert!(error.message.contains(key));
        }
        assert_eq!(gather("MAC=x", &json!({})).unwrap_err().code, code::INVALID_ENVIRONMENT);
        assert_eq!(gather("IP=x", &json!({})).unwrap_err().code, code::INVALID_ENVIRONMENT);
    }
}
