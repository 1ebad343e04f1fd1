//! Differences of a containerd built with adapters/go-cni: it needs no plugin, stores the agent's result, and calls
//! STATUS in every version.

use std::{fs, time::Duration};

use e2e::{
    Lab, Settings, Timeouts,
    runtime::{Containerd, Runtime},
    wait_for,
};
use serde_json::json;

#[test]
fn go_cni_containerd_honours_annotations() {
    let lab = Lab::start(&Settings::default());
    let containerd = Containerd::install_with_go_cni(&lab);
    let asked = [
        ("dpu-offload.io/network", "green"),
        ("dpu-offload.io/ips", "10.2.0.77,fd00:10:2::77"),
        ("kubernetes.io/ingress-bandwidth", "8M"),
        ("k8s.v1.cni.cncf.io/networks", "wire@data"),
    ];
    let pod = containerd.run_with("pod", &asked).unwrap();
    assert_eq!(containerd.addresses(&pod), ["10.2.0.77", "fd00:10:2::77"]);
    let queues = lab.card.dpu.json("tc", &["qdisc", "show"]);
    let limits: Vec<_> = queues.iter().filter(|queue| queue["kind"] == "tbf").collect();
    assert!(limits.len() == 1 && limits[0]["options"]["rate"] == 1_000_000, "{limits:?}");
    assert_eq!(lab.operator().get("attachments").len(), 2);
    assert!(fs::read_dir(lab.path().join("nothing")).unwrap().next().is_none());
    let networks = &containerd.cni_configurations()["Networks"];
    let names = [0, 1].map(|number: usize| &networks[number]["Config"]["Name"]);
    assert_eq!(names, [&json!("cni-loopback"), &json!("dpu-offload")]);
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
    let refused = containerd.run_with("pod", &[("dpu-offload.io/vlan", "7")]).unwrap_err();
    assert!(refused.contains("annotation dpu-offload.io/vlan"), "{refused}");
    lab.assert_clean_slate();
}

#[test]
fn go_cni_result_survives_containerd() {
    let lab = Lab::start(&Settings::default());
    let containerd = Containerd::install_with_go_cni(&lab);
    let pod = containerd.run_with("pod", &[("dpu-offload.io/network", "green")]).unwrap();
    let result = containerd.cni_result(&pod);
    assert_eq!(result["DNS"][0]["nameservers"], json!(["10.2.0.53"]));
    assert!(result["Interfaces"]["eth0"]["PciID"].is_string(), "{result}");
    assert_eq!(result["Raw"][0]["interfaces"][0]["name"], "eth0");
    containerd.crash();
    containerd.recover();
    assert_eq!(containerd.cni_result(&pod), result);
    containerd.remove(&pod).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn go_cni_containerd_reports_absent_dpu() {
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let containerd = Containerd::install_with_go_cni(&lab);
    assert!(containerd.has_network());
    lab.service.stop();
    let limit = Duration::from_secs(30);
    wait_for("a bad word for the network", limit, || (!containerd.has_network()).then_some(()));
    lab.start_service();
    lab.wait_until_good();
    wait_for("a good word for the network", limit, || containerd.has_network().then_some(()));
    lab.assert_clean_slate();
}
