//! What runtimes read in the results of their calls, and the order of their calls.

use std::time::Duration;

use e2e::{Lab, Netns, eventually};
use serde_json::{Value, json};

use crate::runtimes::{Recorded, lab};

const LIMIT: Duration = Duration::from_secs(30);

/// An ADD of CRI-O, without the limit that not every kernel supports.
fn add_of_cri_o() -> Recorded {
    let add = Recorded::read("cri-o-1.37-add");
    add.set("/runtimeConfig/bandwidth/egressRate", 0).set("/runtimeConfig/bandwidth/egressBurst", 0)
}

/// A call of Multus for a second network without options, from the short form of the annotation.
fn of_multus(name: &str, interface: &str, network: &str) -> Recorded {
    let call = Recorded::read(name);
    let arguments = call.variable("CNI_ARGS").split(";MAC=").next().unwrap().to_owned();
    call.with("CNI_ARGS", &arguments)
        .with("CNI_IFNAME", interface)
        .set("/name", network)
        .set("/network", network)
        .set("/deviceID", Value::Null)
        .set("/pciBusID", Value::Null)
        .set("/runtimeConfig", json!({}))
}

/// Addresses as podman 4 and go-cni read them: by the interface of each, if it is in a sandbox.
fn addresses_by_interface(result: &Value, interface: &str) -> Vec<String> {
    let is_own = |index: u64| {
        let one = &result["interfaces"][usize::try_from(index).unwrap()];
        one["name"] == interface && !one["sandbox"].as_str().unwrap_or_default().is_empty()
    };
    let ips = result["ips"].as_array().unwrap().iter();
    let own = ips.filter(|ip| ip["interface"].as_u64().is_some_and(is_own));
    own.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

/// Addresses in a namespace, IPv4 first, as in `ip`.
fn addresses_inside(pod: &Netns, interface: &str) -> Vec<String> {
    let link = pod.json("ip", &["address", "show", "dev", interface]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    let held = held.filter(|held| held["scope"] == "global");
    held.map(|held| format!("{}/{}", held["local"].as_str().unwrap(), held["prefixlen"])).collect()
}

/// containerd reads the addresses of `eth0`; CRI-O those of the first result, in order; podman 4 the interface with a
/// sandbox and its addresses; Multus also MAC address, MTU and gateway.
#[test]
fn runtimes_read_the_pods_addresses() {
    let lab = lab();
    let calls = [
        (Recorded::read("containerd-2.1.9-add-bare"), "containerd-2.1.9-del-at-removal"),
        (add_of_cri_o(), "cri-o-1.37-del"),
        (Recorded::read("podman-4.3.1-add"), "podman-4.3.1-del"),
        (of_multus("multus-4-add", "net1", "green"), "multus-4-del"),
    ];
    for (add, del) in calls {
        let pod = Netns::new("pod");
        let interface = add.variable("CNI_IFNAME").to_owned();
        let version = add.version();
        let result = add.execute(&lab, &pod, None).result();
        assert_eq!(result["cniVersion"], version.as_str(), "{del}");
        assert_read(&result, &interface, &pod);
        Recorded::read(del).execute(&lab, &pod, Some(&result)).nothing();
    }
    lab.assert_clean_slate();
}

#[track_caller]
fn assert_read(result: &Value, interface: &str, pod: &Netns) {
    let link = pod.json("ip", &["link", "show", "dev", interface]).remove(0);
    let reported = &result["interfaces"][0];
    assert_eq!(reported["sandbox"], json!(pod.path()));
    assert_eq!(reported["mac"], link["address"]);
    assert!(reported["mtu"].is_null() || reported["mtu"] == link["mtu"], "{reported}");
    let addresses = addresses_inside(pod, interface);
    assert_eq!(addresses_by_interface(result, interface), addresses);
    assert!(addresses.len() == 2 && addresses[0].contains('.'), "{addresses:?}");
    for ip in result["ips"].as_array().unwrap() {
        assert!(ip["gateway"].as_str().is_some_and(|gateway| gateway.ends_with('1')), "{ip}");
    }
}

/// podman 4 writes them into the container's resolv.conf.
#[test]
fn result_contains_network_resolvers() {
    let lab = lab();
    let pod = Netns::new("pod");
    let add = Recorded::read("podman-4.3.1-add").set("/network", "green");
    let result = add.execute(&lab, &pod, None).result();
    let expected = json!({ "nameservers": ["10.2.0.53"], "search": ["green.example"] });
    assert_eq!(result["dns"], expected);
    Recorded::read("podman-4.3.1-del").execute(&lab, &pod, Some(&result)).nothing();
    lab.assert_clean_slate();
}

#[test]
fn cri_o_gc_keeps_listed_pod() {
    let lab = lab();
    let [listed, stale] = ["listed", "stale"].map(Netns::new);
    let kept = add_of_cri_o().execute(&lab, &listed, None).result();
    let _ = add_of_cri_o().execute(&lab, &stale, None).result();
    let gc = ["/cni.dev~1attachments", "/cni.dev~1valid-attachments"]
        .into_iter()
        .fold(Recorded::read("cri-o-1.37-gc"), |gc, key| {
            gc.set(&format!("{key}/0/containerID"), listed.name())
        });
    gc.execute(&lab, &listed, None).nothing();
    assert_eq!(holders_once(&lab, 1), [listed.name()]);
    assert_eq!(stale.json("ip", &["link", "show"]).len(), 1, "nothing but lo");
    lab.assert_invariants();
    for name in ["cri-o-1.37-check", "cri-o-1.37-del"] {
        Recorded::read(name).execute(&lab, &listed, Some(&kept)).nothing();
    }
    lab.assert_clean_slate();
}

/// Containers of the attachments, once there are that many.
fn holders_once(lab: &Lab, count: usize) -> Vec<String> {
    let holders = || -> Vec<String> {
        let all = lab.operator().get("attachments").into_iter();
        all.map(|one| one["key"]["containerId"].as_str().unwrap().to_owned()).collect()
    };
    eventually(LIMIT, || (holders().len() == count).then_some(()));
    holders()
}

#[test]
fn multus_removes_interfaces_in_reverse() {
    let lab = lab();
    let pod = Netns::new("pod");
    let delegates = [("eth0", "blue"), ("net1", "green")];
    let results = delegates.map(|(interface, network)| {
        of_multus("multus-4-add", interface, network).execute(&lab, &pod, None).result()
    });
    let devices = [0, 1].map(|one: usize| results[one]["interfaces"][0]["pciID"].clone());
    assert_ne!(devices[0], devices[1]);
    lab.assert_invariants();
    for ((interface, network), result) in delegates.iter().zip(&results).rev() {
        let del = of_multus("multus-4-del", interface, network);
        del.execute(&lab, &pod, Some(result)).nothing();
        lab.assert_invariants();
    }
    // The kubelet repeats the removal when nothing is left.
    for (interface, network) in delegates.iter().rev() {
        let del = of_multus("multus-4-del", interface, network).with("CNI_NETNS", "");
        del.execute(&lab, &pod, None).nothing();
    }
    lab.assert_clean_slate();
}

/// Multus calls DEL of the failed delegate and of the earlier ones, and repeats all of them.
#[test]
fn failed_multus_delegate_undoes_all() {
    let lab = lab();
    let pod = Netns::new("pod");
    for network in ["nowhere", "green"] {
        let first = of_multus("multus-4-add", "eth0", "blue").execute(&lab, &pod, None).result();
        let second = of_multus("multus-4-add", "net1", network).execute(&lab, &pod, None);
        if network == "nowhere" {
            second.fails(101, &["nowhere"]);
        } else {
            let _ = second.result();
        }
        of_multus("multus-4-del", "net1", network).execute(&lab, &pod, None).nothing();
        of_multus("multus-4-del", "eth0", "blue").execute(&lab, &pod, Some(&first)).nothing();
        lab.assert_clean_slate();
    }
}
