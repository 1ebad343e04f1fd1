//! VFs that a kubelet assigns. The kubelet is fake; a real one needs a cluster.

use std::time::Duration;

use e2e::{Answer, Call, Kubelet, Lab, Netns, Settings, openmetrics, wait_for};
use offload_proto::kubelet::deviceplugin::RegisterRequest;

const LIMIT: Duration = Duration::from_secs(60);
/// VFs that do not belong to the kubelet, and a network that uses them.
const OURS: &str = r#"
[[pool]]
name = "ours"
select = ["p0#2-3"]
[[network]]
name = "plain"
pool = "ours"
subnets = [{ cidr = "10.77.0.0/24" }]
"#;
const RESOURCE: &str = "dpu-offload.io/default";

/// ADD for a pod in the namespace `shop`.
fn add(lab: &Lab, pod: &str, netns: &Netns) -> Answer {
    add_to(lab, "blue", "eth0", pod, netns)
}

fn add_to(lab: &Lab, network: &str, interface: &str, pod: &str, netns: &Netns) -> Answer {
    let labels = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=1");
    let call = Call::new("ADD", &lab.configuration(network));
    let call = call.of(netns.name(), Some(&netns.path()), interface);
    lab.execute(&call.with("CNI_ARGS", labels))
}

#[test]
fn pod_gets_the_kubelets_vf() {
    let mut kubelet = Kubelet::start();
    let lab = kubelet.lab();
    let registered = kubelet.registered();
    assert_eq!(registered.resource_name, RESOURCE);
    let devices = kubelet.all_devices(&registered);
    let (chosen, _) = &devices[2];
    kubelet.wait_for_device(&registered, chosen, "Healthy");
    kubelet.assign("cart-0", chosen);

    let (cart, greedy) = (Netns::new("cart"), Netns::new("greedy"));
    let result = add(&lab, "cart-0", &cart).result();
    assert_eq!(result["interfaces"][0]["pciID"], chosen.as_str());
    assert_eq!(add(&lab, "cart-0", &cart).result(), result, "likewise when it is repeated");
    let refused = ["VF pool \"default\" ", "dpu-offload.io/default", "POOL_PINNED_ONLY"];
    add(&lab, "greedy-0", &greedy).fails(140, &refused);
    lab.add("blue", &greedy, "eth0").fails(140, &refused);
    // The kubelet reports a wrong device: that of the other pod.
    kubelet.assign("greedy-0", chosen);
    add(&lab, "greedy-0", &greedy).fails(108, &[chosen, "is attached"]);

    kubelet.stop();
    let socket = kubelet.pods_socket();
    add(&lab, "greedy-0", &greedy).fails(11, &["KUBELET_FAILED", socket.to_str().unwrap()]);
    lab.assert_invariants();
    lab.del("blue", &cart, "eth0").nothing();
    lab.assert_clean_slate();
}

/// Each ADD asks the DPU twice: without the VF, which the DPU refuses, and with it.
#[test]
fn kubelet_vfs_move_speculatively() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab_with(Settings { has_metrics: true, ..Settings::default() }, "");
    let registered = kubelet.registered();
    let devices = kubelet.all_devices(&registered);
    let pods = [("cart-0", Netns::new("cart")), ("till-0", Netns::new("till"))];
    for ((name, netns), (device, _)) in pods.iter().zip(&devices) {
        kubelet.wait_for_device(&registered, device, "Healthy");
        kubelet.assign(name, device);
        let _ = add(&lab, name, netns).result();
    }
    let page = openmetrics::scrape(&lab.card.host).unwrap();
    let labels = [("outcome", "right")];
    let right = openmetrics::value(&page, "dpu_offload_agent_speculative_moves", "_total", &labels);
    assert_eq!(right, Some(2.0));
    lab.assert_invariants();
}

#[test]
fn vf_used_by_host_is_unhealthy() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab();
    let registered = kubelet.registered();
    let device = kubelet.all_devices(&registered)[1].0.clone();
    kubelet.wait_for_device(&registered, &device, "Healthy");
    let links = lab.card.host.json("ip", &["link"]);
    let has_device = |link: &&serde_json::Value| {
        link["ifalias"].as_str().is_some_and(|alias| alias.split(' ').any(|word| word == device))
    };
    let name = links.iter().find(has_device).unwrap()["ifname"].as_str().unwrap();
    lab.card.host.ip(&["address", "add", "192.0.2.1/24", "dev", name]);
    lab.card.host.ip(&["link", "set", name, "up"]);
    kubelet.wait_for_device(&registered, &device, "Unhealthy");
    let vfs = lab.operator().get("vfs");
    let used = vfs.iter().find(|vf| vf["vf"]["device"] == device.as_str()).unwrap();
    assert!(used.to_string().contains("another program on the host uses it: "), "{used}");
    lab.card.host.ip(&["address", "flush", "dev", name]);
    lab.card.host.ip(&["link", "set", name, "down"]);
    kubelet.wait_for_device(&registered, &device, "Healthy");
}

/// The first VF of a pool of two, once the kubelet knows both.
fn first_of_two(kubelet: &Kubelet, registered: &RegisterRequest) -> String {
    wait_for("both VFs of the kubelet's", LIMIT, || {
        let devices = kubelet.devices(registered);
        (devices.len() == 2).then(|| devices[0].0.clone())
    })
}

/// As Multus calls: first the default network, whose pool does not belong to the kubelet.
#[test]
fn kubelet_vf_serves_its_pools_network() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab_with(Settings { pool: 2, ..Settings::default() }, OURS);
    let registered = kubelet.registered();
    let chosen = first_of_two(&kubelet, &registered);
    kubelet.wait_for_device(&registered, &chosen, "Healthy");
    kubelet.assign("cart-0", &chosen);
    let cart = Netns::new("cart");
    let first = add_to(&lab, "plain", "eth0", "cart-0", &cart).result();
    assert_ne!(first["interfaces"][0]["pciID"], chosen.as_str());
    let second = add_to(&lab, "blue", "net1", "cart-0", &cart).result();
    assert_eq!(second["interfaces"][0]["pciID"], chosen.as_str());
    lab.assert_invariants();
}

/// The pod's network uses another pool, although the kubelet assigned it a VF.
#[test]
fn unused_vf_of_the_kubelet_is_reported() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab_with(Settings { pool: 2, ..Settings::default() }, OURS);
    let registered = kubelet.registered();
    let chosen = first_of_two(&kubelet, &registered);
    kubelet.assign("cart-0", &chosen);
    let cart = Netns::new("cart");
    let _ = add_to(&lab, "plain", "eth0", "cart-0", &cart).result();
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let described = || lab.operator().output(&["describe", "host", "node-1"]);
    wait_for("the VF in describe", LIMIT, || described().contains(&chosen).then_some(()));
    assert!(lab.agent.log().contains("shop/cart-0"), "the log names the pod");
    let events = lab.operator().output(&["describe", "attachment", &id]);
    assert!(events.contains("KubeletVfUnused") && events.contains(&chosen), "{events}");
    assert!(lab.operator().faults().is_empty(), "the pod is connected");
    let found = lab.operator().dpuctl(&["doctor", "-o", "json"]).stdout;
    let found: serde_json::Value = serde_json::from_slice(&found).unwrap();
    let found = found["findings"].as_array().unwrap().clone();
    let found: Vec<_> = found.iter().map(|it| (&it["code"], &it["subject"])).collect();
    assert_eq!(found, [(&"KUBELET_VF_UNUSED".into(), &id.as_str().into())]);

    kubelet.take_back("cart-0");
    wait_for("no VF in describe", LIMIT, || (!described().contains(&chosen)).then_some(()));
    let events = lab.operator().output(&["describe", "attachment", &id]);
    assert!(events.contains("KubeletVfUnusedCleared"), "{events}");
    lab.assert_invariants();
}

#[test]
fn requesting_init_container_is_named() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab();
    let registered = kubelet.registered();
    kubelet.all_devices(&registered);
    kubelet.add_unreported_container("1", "setup");
    let pod = Netns::new("pod");
    let words = [
        "gives VFs only to requests",
        "container setup of pod shop/cart-0",
        RESOURCE,
        "POOL_PINNED_ONLY",
    ];
    add(&lab, "cart-0", &pod).fails(140, &words);
    lab.assert_clean_slate();
}
