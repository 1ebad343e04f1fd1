//! A PF's settings for its VFs, on QEMU's igb cards in hack/vm's virtual machine, checked with `ip`.
use std::{fs, path::PathBuf, process::Command, time::Duration};

use netlink::{
    CarrierWatch, Link, LinkChange, Netns, Request, Rtnl, VfLinkState, VfSetting, VfSettings,
};
use serde_json::{Value, json};

/// The first igb card, with two VFs until it is dropped.
struct Card {
    pf: Link,
    rtnl: Rtnl,
    num_vfs: PathBuf,
}

impl Card {
    async fn new() -> Self {
        let mut rtnl = Rtnl::open().unwrap();
        let is_igb = |link: &Link| {
            let driver = format!("/sys/class/net/{}/device/driver", link.name);
            fs::read_link(driver).is_ok_and(|driver| driver.ends_with("igb"))
        };
        let pf = rtnl.links().unwrap().into_iter().find(is_igb);
        let pf = pf.expect("this test needs an igb card: hack/vm");
        let num_vfs = PathBuf::from(format!("/sys/class/net/{}/device/sriov_numvfs", pf.name));
        fs::write(&num_vfs, "0").unwrap();
        fs::write(&num_vfs, "2").unwrap();
        // The driver limits rates to the speed of its link, so the link must be up.
        rtnl.change_link(pf.index, &LinkChange::new().up()).unwrap();
        if let Some(watch) =
            CarrierWatch::unless_there(&Netns::current().unwrap(), &mut rtnl, pf.index).unwrap()
        {
            assert!(watch.wait(Duration::from_secs(60)).await.unwrap(), "the PF has no carrier");
        }
        Self { pf, rtnl, num_vfs }
    }

    fn set(&mut self, vf: u32, setting: VfSetting) {
        self.rtnl.batch(&[Request::set_vf(self.pf.index, vf, setting)]).unwrap();
    }

    /// A VF as `ip` displays it.
    fn shown(&self, vf: usize) -> Value {
        let command = ["-j", "link", "show", self.pf.name.as_str()];
        let output = Command::new("ip").args(command).output().unwrap();
        let links: Value = serde_json::from_slice(&output.stdout).unwrap();
        links[0]["vfinfo_list"][vf].clone()
    }

    fn settings(&mut self, vf: u32) -> VfSettings {
        self.rtnl.vf_settings(self.pf.index).unwrap()[&vf]
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        drop(fs::write(&self.num_vfs, "0"));
    }
}

#[tokio::test]
async fn vf_settings_reach_the_card() {
    let mut card = Card::new().await;
    let [other, before] = [0, 1].map(|vf| card.settings(vf));
    // A VF that is created while its PF is up has reported a random MAC address.
    let fresh = VfSettings { mac: before.mac, spoof_check: true, ..VfSettings::default() };
    assert_eq!(before, fresh);
    let mac = "02:00:00:00:00:09".parse().unwrap();
    let wanted = VfSettings {
        mac: Some(mac),
        vlan: 7,
        priority: 3,
        rate_mbit: (0, 100),
        spoof_check: false,
        trust: true,
        link_state: VfLinkState::Auto,
    };
    for setting in wanted.changes_from(&before) {
        card.set(1, setting);
    }
    let shown = card.shown(1);
    assert_eq!(shown["address"], "02:00:00:00:00:09", "{shown}");
    assert_eq!(shown["vlan_list"][0]["vlan"], 7, "{shown}");
    assert_eq!(shown["vlan_list"][0]["qos"], 3, "{shown}");
    assert_eq!(shown["rate"]["max_tx"], 100, "{shown}");
    assert_eq!((&shown["spoofchk"], &shown["trust"]), (&json!(false), &json!(true)), "{shown}");
    assert_eq!(card.settings(0), other, "the other VF is as it was");
    assert_eq!(card.settings(1), wanted);
    for setting in before.changes_from(&wanted) {
        card.set(1, setting);
    }
    assert_eq!(card.settings(1), before);
}

#[tokio::test]
async fn driver_refusal_is_reported() {
    let mut card = Card::new().await;
    let name = card.pf.name.clone();
    let mut refused = |vf, setting| {
        let request = Request::set_vf(card.pf.index, vf, setting);
        card.rtnl.batch(&[request]).unwrap_err()
    };
    let error = refused(1, VfSetting::LinkState(VfLinkState::Disable));
    assert!(error.is_unsupported(), "{error}");
    let reported = format!(" disable for VF 1 of link {name}");
    assert!(error.to_string().contains(&reported), "{error}");
    let error = refused(9, VfSetting::Vlan(7, 0));
    assert!(error.to_string().contains("VLAN 7 with priority 0"), "{error}");
}

#[test]
fn ordinary_link_has_no_vfs() {
    let loopback = 1;
    assert!(Rtnl::open().unwrap().vf_settings(loopback).unwrap().is_empty());
}
