//! Cards of two PFs, and cards whose PFs have another controller number on the DPU.

use std::{collections::BTreeSet, time::Duration};

use e2e::{Card, CardSettings, Lab, Netns, Settings, scenarios::life, wait_for};
use serde_json::Value;

/// Both PFs serve the pools `spread` and `pack`; only the first serves `default`.
const POOLS: &str = r#"
[[pool]]
name = "spread"
select = ["p0", "p1"]
policy = "spread"
[[pool]]
name = "pack"
select = ["p0", "p1"]
policy = "pack"
"#;

const NETWORKS: &str = r#"
[[network]]
name = "spread"
pool = "spread"
[[network]]
name = "pack"
pool = "pack"
"#;

/// VFs of each PF.
const VFS: usize = 4;

fn two_pfs() -> Settings {
    let card = CardSettings { pfs: 2, ..CardSettings::default() };
    let mut settings = Settings { card, service: POOLS.into(), ..Settings::default() };
    settings.networks.push_str(NETWORKS);
    settings
}

/// On a BlueField the host's PFs have controller 1.
fn bluefield() -> Settings {
    let card = CardSettings { controller: 1, ..CardSettings::default() };
    Settings { card, ..Settings::default() }
}

/// The PF of a pod's VF, from the alias of its link.
fn pf_of(lab: &Lab, network: &str, pod: &Netns) -> usize {
    let result = lab.add(network, pod, "eth0").result();
    let pci = result["interfaces"][0]["pciID"].as_str().unwrap();
    let link = &pod.json("ip", &["link", "show", "eth0"])[0];
    let alias = link["ifalias"].as_str().unwrap();
    assert!(alias.contains(pci), "{alias} is not {pci}");
    (0..2).find(|pf| alias.contains(&format!(" pf{pf}vf"))).unwrap()
}

/// Numbers of used VFs of each PF: outside the host's namespace, and not free on the DPU.
fn held(lab: &Lab) -> [usize; 2] {
    let on_host: Vec<_> = Card::ends_in(&lab.card.host).into_values().map(|end| end.name).collect();
    let count = |pf: usize| {
        let is_of = |vf: &&Value| vf["vf"]["pf"].as_u64().unwrap_or(0) == pf as u64;
        let vfs = lab.operator().get("vfs");
        let held = vfs.iter().filter(is_of).filter(|vf| vf["state"] != "VF_STATE_FREE").count();
        let there = on_host.iter().filter(|name| name.starts_with(&format!("p{pf}v"))).count();
        assert_eq!(held + there, VFS, "{vfs:?}, on the host: {on_host:?}");
        held
    };
    [count(0), count(1)]
}

fn pods(count: usize) -> Vec<Netns> {
    (0..count).map(|_| Netns::new("pod")).collect()
}

#[test]
fn spread_pool_uses_emptiest_pf() {
    let lab = Lab::start(&two_pfs());
    let pods = pods(2 * VFS);
    for (number, pair) in (1..).zip(pods.chunks(2)) {
        let pfs: BTreeSet<_> = pair.iter().map(|pod| pf_of(&lab, "spread", pod)).collect();
        assert_eq!(pfs.len(), 2, "one PF has served both");
        assert_eq!(held(&lab), [number, number]);
    }
    lab.assert_invariants();
    lab.add("spread", &Netns::new("late"), "eth0").fails(102, &["spread"]);

    let of_second: Vec<_> = pods.iter().filter(|pod| has_vf_of(pod, 1)).collect();
    for pod in &of_second[..2] {
        lab.del("spread", pod, "eth0").nothing();
    }
    lab.assert_invariants();
    assert_eq!(held(&lab), [VFS, VFS - 2]);
    for pod in &of_second[..2] {
        assert_eq!(pf_of(&lab, "spread", pod), 1);
    }
    for pod in &pods {
        lab.del("spread", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

fn has_vf_of(pod: &Netns, pf: usize) -> bool {
    let link = &pod.json("ip", &["link", "show", "eth0"])[0];
    link["ifalias"].as_str().unwrap().contains(&format!(" pf{pf}vf"))
}

#[test]
fn pack_pool_fills_one_pf_first() {
    let lab = Lab::start(&two_pfs());
    let pods = pods(VFS + 1);
    let first = pf_of(&lab, "pack", &pods[0]);
    for pod in &pods[1..VFS] {
        assert_eq!(pf_of(&lab, "pack", pod), first);
    }
    assert_eq!(held(&lab)[1 - first], 0);
    assert_eq!(pf_of(&lab, "pack", &pods[VFS]), 1 - first);
    lab.assert_invariants();

    lab.del("pack", &pods[0], "eth0").nothing();
    lab.assert_invariants();
    assert_eq!(pf_of(&lab, "pack", &pods[0]), first);
    for pod in &pods {
        lab.del("pack", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn exhausted_pool_spares_other_pf() {
    let lab = Lab::start(&two_pfs());
    let pods = pods(VFS + 1);
    for pod in &pods[..VFS] {
        assert_eq!(pf_of(&lab, "blue", pod), 0);
    }
    lab.add("blue", &pods[VFS], "eth0").fails(102, &["default"]);
    assert_eq!(held(&lab), [VFS, 0]);
    assert_eq!(pf_of(&lab, "pack", &pods[VFS]), 1);
    lab.assert_invariants();
}

/// Both PFs have a pod, so VFs with the same number must not be confused.
#[test]
fn both_pfs_pods_get_vfs_back() {
    let mut lab = Lab::start(&two_pfs());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let pfs = [&a, &b].map(|pod| pf_of(&lab, "spread", pod));
    assert_ne!(pfs[0], pfs[1]);
    for (pod, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        pod.ip(&["addr", "add", address, "dev", "eth0"]);
    }
    assert!(a.pings("192.0.2.2"));
    lab.reset_card();
    lab.wait_until_good();
    for (pod, pf) in [(&a, pfs[0]), (&b, pfs[1])] {
        wait_for("the VF", Duration::from_secs(60), || {
            let links = pod.json("ip", &["link"]);
            links.iter().any(|link| link["ifname"] == "eth0").then_some(())
        });
        assert!(has_vf_of(pod, pf), "{} has a VF of another PF", pod.name());
        lab.del("spread", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn bluefield_pods_survive_restarts_and_reset() {
    life::pods_survive_restarts_and_reset(&bluefield());
}

#[test]
fn names_show_the_controller() {
    let lab = Lab::start(&bluefield());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let names: BTreeSet<_> = lab
        .card
        .representors()
        .iter()
        .map(|link| link["ifname"].as_str().unwrap().to_owned())
        .collect();
    let operator = lab.operator();
    let vfs = operator.get("vfs");
    let reported: BTreeSet<_> =
        vfs.iter().map(|vf| vf["representor"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reported, names);
    assert!(names.contains("c1pf0vf0"), "{names:?}");
    assert!(vfs.iter().all(|vf| vf["vf"]["controller"] == 1), "{vfs:?}");
    assert!(operator.output(&["get", "vfs"]).contains("c1pf0vf0"));
    assert!(operator.output(&["get", "pools", "-o", "wide"]).contains("c1p0#0-3"));
    let id = operator.get("attachments")[0]["id"].as_str().unwrap().to_owned();
    assert!(operator.output(&["describe", "attachment", &id]).contains("c1pf0vf"));
    assert!(Card::ends_in(&lab.card.host).values().all(|end| end.name.starts_with("c1p0v")));
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
