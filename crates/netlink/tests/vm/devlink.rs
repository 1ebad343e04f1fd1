//! Cards by devlink: netdevsim devices, checked with `devlink`.

use std::time::Duration;

use netlink::{
    Devlink, DevlinkDevice, DevlinkEvent, DevlinkMonitor, DevlinkPort, EswitchMode, MacAddress,
    PortVf, RateChange, RateSubject,
};
use serde_json::{Value, json};
use test_clock::within;

use crate::netdevsim::Netdevsim;
use crate::support::TestNetns;

/// A namespace with a card of two VFs, and its devlink interface.
struct Lab {
    card: Netdevsim,
    device: DevlinkDevice,
    devlink: Devlink,
    netns: TestNetns,
}

impl Lab {
    fn legacy() -> Self {
        let netns = TestNetns::new();
        let card = Netdevsim::plug(&netns, 2);
        let devlink = Devlink::open_in(&netns.netns).unwrap();
        Self { device: card.device().parse().unwrap(), netns, devlink, card }
    }

    fn switchdev() -> Self {
        let mut lab = Self::legacy();
        lab.devlink.set_eswitch_mode(&lab.device, EswitchMode::Switchdev).unwrap();
        lab
    }

    /// What `devlink` prints, below the answer's only key.
    fn shown(&self, command: &str) -> Value {
        let shown = self.netns.json(&format!("devlink -j {command}"));
        shown.as_object().unwrap().values().next().unwrap().clone()
    }

    fn vf_port(&mut self, number: u16) -> DevlinkPort {
        let wanted = PortVf { controller: 0, pf: 0, vf: number };
        let is_wanted = |port: &DevlinkPort| port.vf == Some(wanted);
        self.devlink.ports().unwrap().into_iter().find(is_wanted).expect("no such port")
    }
}

#[test]
fn card_and_eswitch_mode_are_read() {
    let mut lab = Lab::legacy();
    assert_eq!(lab.devlink.devices().unwrap(), [lab.device.clone()]);
    let device = lab.card.device();
    let mut switch = |mode| {
        lab.devlink.set_eswitch_mode(&lab.device, mode).unwrap();
        assert_eq!(lab.devlink.eswitch_mode(&lab.device).unwrap(), Some(mode));
        lab.netns.json(&format!("devlink -j dev eswitch show {device}"))["dev"][&device].clone()
    };
    assert_eq!(switch(EswitchMode::Switchdev)["mode"], "switchdev");
    assert_eq!(switch(EswitchMode::Legacy)["mode"], "legacy");
}

#[test]
fn ports_are_listed_with_their_functions() {
    let mut lab = Lab::switchdev();
    let ports = lab.devlink.ports().unwrap();
    assert_eq!(ports.len(), 3);
    let shown = lab.shown("port show");
    for port in &ports {
        let shown = &shown[port.to_string()];
        let link = lab.netns.link(shown["netdev"].as_str().unwrap());
        assert_eq!(link["ifindex"], json!(port.link));
        assert_eq!(shown["flavour"] == "pcivf", port.vf.is_some());
        if let Some(PortVf { controller, pf, vf }) = port.vf {
            let reported = [&shown["controller"], &shown["pfnum"], &shown["vfnum"]];
            assert_eq!(reported, [&json!(controller), &json!(pf), &json!(vf)]);
            assert_eq!(link["phys_port_name"], format!("pf{pf}vf{vf}"));
        }
        assert_eq!(port.mac, None, "netdevsim has no functions to be set");
        assert_eq!(lab.devlink.port(&port.device, port.index).unwrap().as_ref(), Some(port));
    }
    assert_eq!(lab.devlink.port(&lab.device, 9999).unwrap(), None);
    let absent = "netdevsim/absent".parse().unwrap();
    assert_eq!(lab.devlink.port(&absent, 0).unwrap(), None);
}

#[test]
fn rate_limits_apply_to_ports_and_nodes() {
    let mut lab = Lab::switchdev();
    let port = lab.vf_port(1);
    let leaf = RateSubject::Leaf(port.index);
    let Lab { device, devlink, .. } = &mut lab;
    let limit = RateChange::new().share_bits(3_000_000).max_bits(10_000_000);
    devlink.set_rate(device, &leaf, &limit).unwrap();
    devlink.add_rate_node(device, "tenant", &RateChange::new().max_bits(100_000_000)).unwrap();
    devlink.set_rate(device, &leaf, &RateChange::new().parent(Some("tenant"))).unwrap();

    let rate = lab.devlink.rate(&lab.device, &leaf).unwrap().unwrap();
    assert_eq!((rate.share_bits, rate.max_bits), (3_000_000, 10_000_000));
    assert_eq!(rate.parent.as_deref(), Some("tenant"));
    let shown = lab.shown("port function rate show");
    let reported =
        json!({"type": "leaf", "tx_share": 375_000, "tx_max": 1_250_000, "parent": "tenant"});
    assert_eq!(shown[port.to_string()], reported);
    let node = json!({"type": "node", "tx_max": 12_500_000});
    assert_eq!(shown[format!("{}/tenant", lab.device)], node);

    let Lab { device, devlink, .. } = &mut lab;
    let held = devlink.delete_rate_node(device, "tenant").unwrap_err().to_string();
    let why = "Node has children. Cannot delete node.";
    // Linux 6.1 prefixes its sentences with "leftover: ".
    assert!(held.contains(&format!(" tenant of {device}: ")) && held.ends_with(why), "{held}");
    let free = RateChange::new().parent(None).share_bits(0).max_bits(0);
    devlink.set_rate(device, &leaf, &free).unwrap();
    devlink.delete_rate_node(device, "tenant").unwrap();
    assert_eq!(devlink.rate(device, &RateSubject::Node("tenant".into())).unwrap(), None);
    let mut rates = devlink.rates().unwrap();
    rates.retain(|rate| rate.max_bits != 0 || rate.share_bits != 0 || rate.parent.is_some());
    assert_eq!(rates, []);
    let shown = lab.shown("port function rate show");
    assert_eq!(shown.as_object().unwrap().len(), 2, "a leaf for each VF");
    assert_eq!(shown[port.to_string()], json!({"type": "leaf"}));
}

#[test]
fn devlink_refusal_has_kernel_sentence() {
    let mut lab = Lab::switchdev();
    let port = lab.vf_port(0);
    let Lab { device, devlink, .. } = &mut lab;
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let refused = devlink.set_port_mac(&port, mac).unwrap_err();
    assert!(refused.is_unsupported());
    let why = "Port doesn't support function attributes";
    let reported = refused.to_string();
    assert!(
        reported.contains(&format!(" port {port} to {mac}: ")) && reported.ends_with(why),
        "{reported}"
    );

    let leaf = RateSubject::Leaf(port.index);
    let finer = RateChange::new().max_bits(1_500_000);
    let refused = devlink.set_rate(device, &leaf, &finer).unwrap_err().to_string();
    assert!(refused.contains("to at most 1500000 bit/s: "), "{refused}");
    assert!(refused.ends_with("TX rate value not in link speed units of 1Mbps."), "{refused}");

    let absent: DevlinkDevice = "pci/0000:ff:1f.7".parse().unwrap();
    let refused = devlink.set_eswitch_mode(&absent, EswitchMode::Switchdev).unwrap_err();
    assert!(refused.is_not_found(), "{refused}");
}

/// The first event for which `wanted` returns a value, within a minute.
async fn first<T>(monitor: &mut DevlinkMonitor, wanted: impl Fn(DevlinkEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(monitor.next().await.unwrap()) {
                return found;
            }
        }
    };
    within(Duration::from_secs(60), search).await.expect("no such event")
}

#[tokio::test]
async fn devlink_monitor_reports_ports() {
    let lab = Lab::legacy();
    let mut monitor = DevlinkMonitor::open(&lab.netns.netns).unwrap();
    let device = lab.card.device();
    lab.netns.run(&format!("devlink dev eswitch set {device} mode switchdev"));
    let second_vf = Some(PortVf { controller: 0, pf: 0, vf: 1 });
    let port = first(&mut monitor, |event| match event {
        DevlinkEvent::PortChanged(port) if port.vf == second_vf => {
            port.link.is_some().then_some(port)
        }
        _ => None,
    });
    let port = port.await;
    assert_eq!(port.device, lab.device);

    lab.netns.run(&format!("devlink dev eswitch set {device} mode legacy"));
    let gone = first(&mut monitor, |event| match event {
        DevlinkEvent::PortGone { device, index } if index == port.index => Some(device),
        _ => None,
    });
    assert_eq!(gone.await, lab.device);

    drop(lab.card);
    let gone = first(&mut monitor, |event| match event {
        DevlinkEvent::DeviceGone(device) => Some(device),
        _ => None,
    });
    assert_eq!(gone.await, lab.device);
}
