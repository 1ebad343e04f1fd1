//! Behaviour of containerd only: annotations, limits, and its network status.

use std::{fs, time::Duration};

use e2e::{
    Lab, Settings, Timeouts,
    runtime::{Containerd, PodOptions, Runtime, write_conflist},
    wait_for,
};
use serde_json::{Value, json};

/// No grace: the agent's STATUS fails as soon as the DPU is away.
fn node() -> (Lab, Containerd) {
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let containerd = Containerd::install(&lab);
    (lab, containerd)
}

/// Rates in byte/s of the queueing disciplines at the pods' representors.
fn limits(lab: &Lab) -> Vec<u64> {
    let queues = lab.card.dpu.json("tc", &["qdisc", "show"]);
    let limited = queues.into_iter().filter(|queue| queue["kind"] == "tbf");
    limited.map(|queue| queue["options"]["rate"].as_u64().unwrap()).collect()
}

#[test]
fn annotated_limit_is_applied_or_refused() {
    let (lab, containerd) = node();
    let slow = [("kubernetes.io/ingress-bandwidth", "10M"), ("example.org/other", "x")];
    let pod = containerd.run_with("slow", &slow).unwrap();
    assert_eq!(limits(&lab), [1_250_000]);
    let reported = containerd.addresses(&pod);
    let all = lab.operator().get("attachments")[0]["addresses"].to_string();
    assert!(
        reported.len() == 2 && reported.iter().all(|one| all.contains(one)),
        "{reported:?}, not {all}"
    );
    let sending = containerd.run_with("sending", &[("kubernetes.io/egress-bandwidth", "20M")]);
    if lab.operator().has_egress_limits() {
        containerd.remove(&sending.unwrap()).unwrap();
    } else {
        let complaint = sending.unwrap_err();
        assert!(complaint.contains("an egress rate of 20000000 bit/s"), "{complaint}");
    }
    containerd.remove(&pod).unwrap();
    assert!(limits(&lab).is_empty());
    lab.assert_clean_slate();
}

#[test]
fn unsupported_containerd_annotation_is_refused() {
    let (lab, containerd) = node();
    for (annotation, value, why) in [
        ("dpu-offload.io/vlan", "7", "annotation dpu-offload.io/vlan"),
        ("dpu-offload.io/mac", "5", "annotation dpu-offload.io/mac"),
        ("dpu-offload.io/network", "nowhere", "network \"nowhere\""),
    ] {
        let complaint = containerd.run_with("pod", &[(annotation, value)]).unwrap_err();
        assert!(complaint.contains(why), "{complaint}");
    }
    let twice = [
        ("kubernetes.io/ingress-bandwidth", "10M"),
        ("dpu-offload.io/bandwidth", "{\"ingressRate\": 8000000}"),
    ];
    let complaint = containerd.run_with("pod", &twice).unwrap_err();
    assert!(complaint.contains("contradicts runtimeConfig.bandwidth"), "{complaint}");
    lab.assert_clean_slate();
}

#[test]
fn containerd_annotations_are_honoured() {
    let (lab, containerd) = node();
    let asked = [
        ("dpu-offload.io/network", "green"),
        ("dpu-offload.io/mac", "02:11:22:33:44:55"),
        ("dpu-offload.io/ips", "10.2.0.77,fd00:10:2::77"),
        ("dpu-offload.io/bandwidth", "{\"ingressRate\": 8000000}"),
        ("example.org/mac", "x"),
    ];
    let pod = containerd.run_with("pod", &asked).unwrap();
    assert_eq!(containerd.addresses(&pod), ["10.2.0.77", "fd00:10:2::77"]);
    let attachment = &lab.operator().get("attachments")[0];
    assert_eq!((&attachment["network"], &attachment["mac"]), (&json!("green"), &json!(asked[1].1)));
    assert_eq!(limits(&lab), [1_000_000]);
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn annotated_networks_are_all_attached() {
    let (lab, containerd) = node();
    let networks = "green,wire@data";
    let pod = containerd.run_with("pod", &[("k8s.v1.cni.cncf.io/networks", networks)]).unwrap();
    let attachments = lab.operator().get("attachments");
    let held = |name: &str| attachments.iter().find(|it| it["key"]["interfaceName"] == name);
    assert!(held("net1").is_some() && held("data").is_some(), "{attachments:?}");
    let (reported, own) =
        (containerd.addresses(&pod), held("eth0").unwrap()["addresses"].to_string());
    assert!(
        reported.len() == 2 && reported.iter().all(|one| own.contains(one)),
        "{reported:?}, not {own}"
    );
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
    let complaint = containerd.run_with("pod", &[("k8s.v1.cni.cncf.io/networks", "green,nowhere")]);
    assert!(complaint.unwrap_err().contains("network \"nowhere\""));
    lab.assert_clean_slate();
}

/// containerd's pods are in the namespace `default`.
#[test]
fn pods_get_networks_that_are_for_their_namespace() {
    let networks = "[[network]]\nname = \"own\"\nnamespaces = [\"default\"]\n\
                    [[network.subnets]]\ncidr = \"10.8.0.0/24\"\n\
                    [[network]]\nname = \"others\"\nnamespaces = [\"prod\"]\n\
                    [[network.subnets]]\ncidr = \"10.9.0.0/24\"\n";
    let lab = Lab::start(&Settings { networks: networks.into(), ..Settings::default() });
    let containerd = Containerd::install(&lab);
    let on = |network| containerd.run_with("pod", &[("dpu-offload.io/network", network)]);
    let complaint = on("others").unwrap_err();
    assert!(
        complaint.contains("network others") && complaint.contains("\"default\""),
        "{complaint}"
    );
    let pod = on("own").unwrap();
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
}

/// containerd calls STATUS since 2.1. Before, the node stays ready and each pod fails.
#[test]
fn containerd_reports_absent_dpu() {
    let (mut lab, containerd) = node();
    assert!(containerd.has_network());
    lab.service.stop();
    let asks = Containerd::version() >= (2, 1);
    wait_for("its word for the network", Duration::from_secs(30), || {
        (!lab.status().status.success() && containerd.has_network() != asks).then_some(())
    });
    assert!(containerd.run("pod").is_err());
    lab.start_service();
    lab.wait_until_good();
    wait_for("a good word for the network", Duration::from_secs(30), || {
        containerd.has_network().then_some(())
    });
    lab.assert_clean_slate();
}

#[test]
fn first_configuration_by_name_is_used() {
    let (lab, containerd) = node();
    let folder = lab.path().join("net.d");
    let shipped = fs::read_to_string(folder.join("10-dpu-offload.conflist")).unwrap();
    let of_green = shipped.replace(r#""network":"""#, r#""network":"green""#);
    assert_ne!(of_green, shipped);
    fs::write(folder.join("20-green.conflist"), &of_green).unwrap();
    assert_eq!(network_of_a_pod(&lab, &containerd), "blue");
    fs::write(folder.join("05-green.conflist"), &of_green).unwrap();
    // containerd notices another file by inotify and reads it later.
    wait_for("a pod on green", Duration::from_secs(60), || {
        (network_of_a_pod(&lab, &containerd) == "green").then_some(())
    });
    lab.assert_clean_slate();
}

fn network_of_a_pod(lab: &Lab, containerd: &Containerd) -> String {
    let pod = containerd.run("pod").unwrap();
    let network = lab.operator().get("attachments")[0]["network"].as_str().unwrap().to_owned();
    containerd.remove(&pod).unwrap();
    network
}

/// Networks of the attachments by interface.
fn networks(lab: &Lab) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = lab.operator().get("attachments").into_iter();
    let pair = |one: Value| (text(&one["key"]["interfaceName"]), text(&one["network"]));
    let mut networks: Vec<_> = all.map(pair).collect();
    networks.sort();
    networks
}

fn on_green(conflist: &mut Value) {
    conflist["name"] = json!("green");
    conflist["plugins"][0]["network"] = json!("green");
}

#[test]
fn each_configuration_adds_an_interface() {
    let lab = Lab::start(&Settings::default());
    write_conflist(&lab, "net.d/20-green.conflist", on_green);
    let containerd = Containerd::install_with(&lab, "max_conf_num = 2", &[]);
    let pod = containerd.run("pod").unwrap();
    let expected = [("eth0", "blue"), ("eth1", "green")];
    assert_eq!(networks(&lab), expected.map(|(name, network)| (name.into(), network.into())));
    let reported = containerd.addresses(&pod);
    assert!(
        reported[0].starts_with("10.1.") && reported[1].starts_with("fd00:10:1:"),
        "{reported:?}"
    );
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
}

/// A RuntimeClass names a runtime, which may have its own configurations.
#[test]
fn runtime_class_selects_the_network() {
    let lab = Lab::start(&Settings::default());
    let folder = write_conflist(&lab, "green.d/10-green.conflist", on_green);
    let containerd = Containerd::install_with(&lab, "", &[("other", &folder)]);
    let of_class =
        |handler| containerd.run_as("pod", &PodOptions { handler, ..PodOptions::default() });
    for (handler, network) in [("", "blue"), ("other", "green")] {
        let pod = of_class(handler).unwrap();
        assert_eq!(networks(&lab), [("eth0".into(), network.into())]);
        containerd.remove(&pod).unwrap();
    }
    let complaint = of_class("nowhere").unwrap_err();
    assert!(complaint.contains("nowhere"), "{complaint}");
    lab.assert_clean_slate();
}
