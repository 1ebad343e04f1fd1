//! Rules that a card has offloaded, whichever program set them.

use std::sync::Arc;

use drivers::{
    counters::Offloaded,
    eswitch::Representor,
    fabric::{
        BridgeSettings,
        ovs::{Datapath, OvsFabric, OvsSettings, Vswitch},
    },
    programmer::Programmer,
};
use model::{Bandwidth, PortSettings};
use netlink::MacAddress;
use serde_json::Value;
use test_clock::wait_until;
use vf_alloc::FunctionId;

use crate::{
    dpu::{Dpu, of_pod, send, settings},
    open_vswitch::OpenVswitch,
};

/// With `hw-offload` the daemon turns each decision, including the guard, into one filter. `tc` shows that the card has
/// the one for a pod's frames to another.
#[test]
fn ovs_offloads_decided_flows_to_the_card() {
    let dpu = Dpu::new();
    let mut vswitch = OpenVswitch::start_in(&dpu.netns.path());
    assert_eq!(OpenVswitch::datapath(), "system", "run this by hack/test vm");
    vswitch.vsctl("--no-wait set Open_vSwitch . other_config:hw-offload=true");
    vswitch.kill_daemon();
    vswitch.start_daemon();
    let bridge = BridgeSettings { name: "br-ovs".into(), ..BridgeSettings::default() };
    let settings = OvsSettings { bridge, datapath: Datapath::System };
    let database = Arc::new(Vswitch::at(vswitch.socket()));
    let fabric = dpu.netns.netns.run(|| OvsFabric::open(&settings, &database)).unwrap().unwrap();
    let programmer = Programmer::new(Arc::clone(&dpu.eswitch), Arc::new(fabric));
    // In an emulated machine the daemon may take longer for its first bridge than one attempt waits.
    let is_prepared = || dpu.netns.netns.run(|| programmer.prepare()).unwrap().is_ok();
    wait_until("the bridge is there", is_prepared);

    let one =
        PortSettings { vlan: None, trunk: [].into(), bandwidth: Bandwidth::default(), ..of_pod() };
    let other = PortSettings {
        vf: FunctionId::local(0, 0),
        mac: MacAddress([2, 0, 0, 0, 1, 2]),
        addresses: vec!["10.9.0.2".parse().unwrap()],
        ..one.clone()
    };
    programmer.program(&one).unwrap();
    programmer.program(&other).unwrap();
    let ports = dpu.eswitch().representors().unwrap();
    let [port_of_other, port] = &ports[..] else { panic!("{ports:?}") };
    let (pod, pod_of_other) = (dpu.pod_behind(port), dpu.pod_behind(port_of_other));
    pod_of_other.run(&format!("ip link set eth0 address {}", other.mac));
    pod_of_other.run("ip address flush dev eth0");
    pod_of_other.run("ip address add 10.9.0.2/24 dev eth0");
    pod_of_other.run(&format!("ip neighbour replace 10.9.0.1 lladdr {} dev eth0", one.mac));
    // The switch learns the other pod's port.
    send(&pod_of_other, "10.9.0.1:80");
    let leads_to_other = |flower: &Value| {
        let action = &flower["actions"][0];
        action["kind"] == "mirred" && action["to_dev"] == port_of_other.name
    };
    let by_card = || {
        send(&pod, "10.9.0.2:80");
        let flowers = dpu.flowers(&port.name).into_iter();
        flowers
            .filter(|flower| flower["in_hw"] == true && leads_to_other(flower))
            .collect::<Vec<_>>()
    };
    wait_until("the card forwards to the other", || !by_card().is_empty());
    let flowers = by_card();
    let mac = one.mac.to_string();
    assert!(flowers.iter().all(|flower| flower["keys"]["src_mac"] == mac), "{flowers:?}");
}

/// What `tc` and `bridge` show as offloaded: flower filters and FDB entries.
fn offloaded_by_tools(dpu: &Dpu, port: &str) -> Offloaded {
    let filters = dpu.netns.json(&format!("tc -j filter show dev {port} ingress"));
    let filters = filters.as_array().unwrap().iter();
    let filters =
        filters.filter(|it| it["kind"] == "flower" && it["options"]["handle"] != Value::Null);
    let macs = dpu.netns.json(&format!("bridge -j fdb show brport {port}"));
    let macs = macs.as_array().unwrap().iter().filter(|it| it["state"] != "permanent");
    let has_flag = |it: &&Value| it["flags"].as_array().unwrap().contains(&"offload".into());
    let is_left = |it: &&Value| it["options"]["actions"][0]["control_action"]["type"] == "trap";
    let kept_there = filters.clone().filter(|it| it["options"]["in_hw"] == true);
    let in_hardware =
        kept_there.filter(|it| !is_left(it)).count() + macs.clone().filter(has_flag).count();
    let rules = filters.count() + macs.count();
    Offloaded { rules: rules as u64, in_hardware: in_hardware as u64 }
}

#[test]
fn offloaded_rules_are_counted() {
    let dpu = Dpu::new();
    dpu.programmer.program(&settings()).unwrap();
    let Representor { name, index, .. } = dpu.representor();
    let offloaded = || dpu.fabric.offloaded(&[index].into()).unwrap()[&index];
    wait_until("the pod's FDB entry is offloaded", || {
        let shown = offloaded();
        // The kernel handles the answers to DHCP clients of both versions and everything that may not certainly pass.
        shown == offloaded_by_tools(&dpu, &name)
            && shown.in_hardware > 0
            && shown.in_hardware + 3 == shown.rules
    });
    let before = offloaded();
    for (preference, flags) in [(7, "skip_sw"), (8, "skip_hw")] {
        let place = format!("dev {name} ingress pref {preference} protocol ip");
        dpu.netns.run(&format!("tc filter add {place} flower {flags} src_ip 10.9.0.1 action drop"));
    }
    let rules = before.rules + 2;
    let expected = Offloaded { rules, in_hardware: before.in_hardware + 1 };
    assert_eq!(offloaded(), expected);
    assert_eq!(offloaded_by_tools(&dpu, &name), expected);
}
