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
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("shop", "web", "u"));
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
    let limits = json!({"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4});
    let limits = of_runtime("bandwidth", &limits).unwrap().interface.bandwidth;
    assert_eq!((limits.ingress_rate, limits.ingress_burst), (1, 2));
    assert_eq!((limits.egress_rate, limits.egress_burst), (3, 4));
    let dns = json!({"Servers": ["10.96.0.10"], "Searches": null, "Options": null});
    let dns = of_runtime("dns", &dns).unwrap().dns.unwrap();
    assert_eq!((dns.nameservers, dns.search), (vec!["10.96.0.10".into()], vec![]));
    let ports = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
    let ports = of_runtime("portMappings", &ports).unwrap().interface.port_mappings;
    assert_eq!((ports[0].host_port, ports[0].container_port), (8080, 80));
    let mac = of_runtime("MAC", &json!("02:00:00:00:00:01")).unwrap().interface.mac;
    assert_eq!(mac, Some(MacAddress([2, 0, 0, 0, 0, 1])));
}

#[test]
fn unknown_capability_key_is_refused() {
    let ports = json!([{"containerPort": 80, "range": 5}]);
    for (key, value, named, known) in [
        ("bandwidth", json!({"IngressRate": 1, "Latency": 5}), "Latency", "ingressRate, ingressB"),
        ("bandwidth", json!({"ingress_rate": 8000}), "ingress_rate", "ingressRate, "),
        ("dns", json!({"nameservers": ["10.0.0.1"]}), "nameservers", "servers, searches, "),
        ("portMappings", ports, "range", "hostPort, "),
    ] {
        let error = of_runtime(key, &value).unwrap_err();
        assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
        assert!(error.message.starts_with(&format!("runtimeConfig.{key}.{named} ")), "{error:?}");
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
