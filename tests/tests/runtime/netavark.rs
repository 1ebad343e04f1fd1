//! Behaviour of podman 5 only, whose networks come from netavark's plugins: `hack/runtimes --next run` has it.

use e2e::{
    Lab, Settings,
    runtime::{Podman, Runtime},
};
use serde_json::{Value, json};

fn podman() -> (Lab, Podman) {
    let lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    let podman = Podman::install(&lab);
    (lab, podman)
}

/// Networks of the attachments by interface.
fn networks(lab: &Lab) -> Vec<[Value; 2]> {
    let all = lab.operator().get("attachments").into_iter();
    let pair = |one: Value| [one["key"]["interfaceName"].clone(), one["network"].clone()];
    let mut networks: Vec<_> = all.map(pair).collect();
    networks.sort_by_key(|[interface, _]| interface.to_string());
    networks
}

#[test]
fn podman_network_refuses_dpu_settings() {
    let (lab, podman) = podman();
    for (options, why) in [
        (&["--subnet", "10.9.0.0/24"][..], "--subnet is not"),
        (&["--internal"], "--internal is not"),
        (&["--opt", "vlan=7"], "\"vlan\" with the value \"7\""),
        (&["--opt", "mtu=1400"], "\"mtu\""),
    ] {
        let complaint = podman.create("green", options).unwrap_err();
        assert!(complaint.contains(why), "{options:?}: {complaint}");
    }
    podman.create("mauve", &[]).unwrap();
    let complaint = podman.run_with("pod", &["--network", "mauve"]).unwrap_err();
    assert!(complaint.contains("network \"mauve\""), "{complaint}");
    for id in podman.ids() {
        podman.remove(&id).unwrap();
    }
    lab.assert_clean_slate();
}

#[test]
fn running_container_joins_and_leaves_networks() {
    let (lab, podman) = podman();
    podman.create("other", &["--opt", "network=green"]).unwrap();
    // podman names the interfaces of several networks in any order.
    let both = ["--network", "blue:interface_name=eth0", "--network", "other:interface_name=eth1"];
    let id = podman.run_with("pod", &both).unwrap();
    let on_both = [["eth0", "blue"], ["eth1", "green"]].map(|pair| pair.map(Value::from));
    assert_eq!(networks(&lab), on_both);
    for _ in 0..2 {
        podman.output(&["network", "disconnect", "other", &id]).unwrap();
        assert_eq!(networks(&lab), on_both[..1]);
        podman.output(&["network", "connect", "other", &id]).unwrap();
        assert_eq!(networks(&lab), on_both);
    }
    podman.output(&["restart", "--time", "0", &id]).unwrap();
    assert_eq!(networks(&lab), on_both);
    podman.remove(&id).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn podman_container_has_resolvers_and_addresses() {
    let (lab, podman) = podman();
    podman.create("green", &[]).unwrap();
    let wished = "green:ip=10.2.0.9,ip=fd00:10:2::9,mac=02:00:00:00:02:09";
    let id = podman.run_with("pod", &["--network", wished]).unwrap();
    let resolvers = podman.output(&["exec", &id, "cat", "/etc/resolv.conf"]).unwrap();
    assert!(resolvers.contains("nameserver 10.2.0.53"), "{resolvers}");
    assert!(resolvers.contains("search green.example"), "{resolvers}");
    let attachment = lab.operator().get("attachments").remove(0);
    let addresses = attachment["addresses"].as_array().unwrap().iter();
    let addresses: Vec<_> = addresses.map(|one| one["address"].clone()).collect();
    assert_eq!(addresses, [json!("10.2.0.9/24"), json!("fd00:10:2::9/64")]);
    assert_eq!(attachment["mac"], "02:00:00:00:02:09");
    podman.remove(&id).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn podman_inspect_shows_addresses() {
    let (lab, podman) = podman();
    let id = podman.run("pod").unwrap();
    let format = "{{json .NetworkSettings.Networks.blue}}";
    let shown = podman.output(&["inspect", "--format", format, &id]).unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let address = |key: &str, length: &str| {
        json!(format!("{}/{}", shown[key].as_str().unwrap(), shown[length]))
    };
    let attachment = lab.operator().get("attachments").remove(0);
    let has = |number: usize| &attachment["addresses"][number]["address"];
    assert_eq!(*has(0), address("IPAddress", "IPPrefixLen"));
    assert_eq!(*has(1), address("GlobalIPv6Address", "GlobalIPv6PrefixLen"));
    assert_eq!(attachment["mac"], shown["MacAddress"]);
    podman.remove(&id).unwrap();
    lab.assert_clean_slate();
}
