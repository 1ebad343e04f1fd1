//! Guaranteed rates of VFs and total limits of their networks.

use model::{Bandwidth, PortSettings};
use serde_json::{Value, json};
use vf_alloc::FunctionId;

use crate::dpu::{Dpu, VF, failure, settings, sharing};

#[test]
fn rate_node_ends_with_its_last_pod() {
    let dpu = Dpu::new();
    dpu.devlink("port function rate add {card}/tenant tx_max 40mbit");
    let [one, two] = [sharing(0, 20_000_000), sharing(1, 20_000_000)];
    for settings in [&one, &two, &two] {
        dpu.programmer.program(settings).unwrap();
    }
    assert_eq!(dpu.node("offload-blue"), json!({"type": "node", "tx_max": 2_500_000}));
    let leaf = json!(
        {"type": "leaf", "tx_share": 375_000, "tx_max": 1_250_000, "parent": "offload-blue"}
    );
    assert_eq!(dpu.rate(), leaf);
    let (is_in_place, shown) = dpu.found_rate(&two);
    let rates = [" 5000000 bit/s", " 10000000 bit/s", " 3000000 bit/s", " 20000000 bit/s"];
    assert!(is_in_place && shown.contains("offload-blue"), "{shown}");
    assert!(shown.split(", ").zip(rates).all(|(shown, rate)| shown.ends_with(rate)), "{shown}");

    dpu.programmer.unprogram(one.vf).unwrap();
    assert_eq!((dpu.rate(), &dpu.node("offload-blue")["tx_max"]), (leaf, &json!(2_500_000)));
    for _ in 0..2 {
        dpu.programmer.unprogram(two.vf).unwrap();
        dpu.assert_idle();
        assert_eq!(dpu.node("offload-blue"), Value::Null);
    }
    assert_eq!(dpu.node("tenant"), json!({"type": "node", "tx_max": 5_000_000}));
}

#[test]
fn changed_rate_tree_is_repaired() {
    let dpu = Dpu::new();
    let settings = sharing(1, 20_000_000);
    dpu.programmer.program(&settings).unwrap();
    let port = dpu.port();
    dpu.devlink("port function rate add {card}/tenant");
    for change in [
        format!("{port} noparent"),
        format!("{port} parent tenant"),
        format!("{port} tx_share 1mbit"),
        "{card}/offload-blue tx_max 5mbit".to_owned(),
        "{card}/offload-blue tx_max 0".to_owned(),
    ] {
        dpu.devlink(&format!("port function rate set {change}"));
        assert!(!dpu.found_rate(&settings).0, "{change}");
        assert_eq!(dpu.programmer.repair(&settings).unwrap().steps, ["port-rate"], "{change}");
        assert!(dpu.found_rate(&settings).0, "{change}");
        let found = (&dpu.rate()["parent"], &dpu.rate()["tx_share"]);
        assert_eq!(found, (&json!("offload-blue"), &json!(375_000)), "{change}");
        assert_eq!(dpu.node("offload-blue")["tx_max"], 2_500_000, "{change}");
    }
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
    assert_eq!(dpu.node("tenant"), json!({"type": "node"}));
}

#[test]
fn foreign_rate_node_keeps_its_leaf() {
    let dpu = Dpu::new();
    dpu.devlink("port function rate add {card}/tenant");
    dpu.devlink(&format!("port function rate set {} parent tenant", dpu.port()));
    dpu.programmer.program(&settings()).unwrap();
    assert!(dpu.found_rate(&settings()).0);
    dpu.programmer.unprogram(VF).unwrap();
    assert_eq!(dpu.rate(), json!({"type": "leaf", "parent": "tenant"}));
    dpu.programmer.program(&sharing(1, 20_000_000)).unwrap();
    assert_eq!(dpu.rate()["parent"], "offload-blue");
}

/// A total that changed between two attaches applies to both.
#[test]
fn rate_node_follows_the_latest_pod() {
    let dpu = Dpu::new();
    let [before, after] = [sharing(0, 20_000_000), sharing(1, 30_000_000)];
    for settings in [&before, &after] {
        dpu.programmer.program(settings).unwrap();
    }
    assert_eq!(dpu.node("offload-blue")["tx_max"], 3_750_000);
    assert!(dpu.found_rate(&before).0 && dpu.found_rate(&after).0);
    dpu.programmer.program(&PortSettings { total_egress: None, ..before.clone() }).unwrap();
    assert!(!dpu.found_rate(&before).0);
    dpu.programmer.program(&PortSettings { total_egress: None, ..after }).unwrap();
    assert_eq!(dpu.node("offload-blue"), Value::Null);
}

#[test]
fn a_node_without_leaves_is_deleted() {
    let dpu = Dpu::new();
    let shares = Bandwidth { egress_share: 6_000_000_000, ..Bandwidth::default() };
    let refused = PortSettings { bandwidth: shares, ..sharing(1, 20_000_000) };
    let (step, shown) = failure(&dpu.programmer.program(&refused).unwrap_err());
    assert_eq!(step, "port-rate");
    assert!(shown.ends_with("TX rate value exceed link maximum speed 5000Mbps."), "{shown}");
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-blue"), Value::Null);

    // As a service leaves them that was killed in between.
    for node in ["offload-blue", "offload-green", "tenant"] {
        dpu.devlink(&format!("port function rate add {{card}}/{node}"));
    }
    dpu.devlink(&format!("port function rate set {} parent offload-green", dpu.port()));
    dpu.eswitch().representors().unwrap();
    let left =
        ["offload-blue", "offload-green", "tenant"].map(|node| dpu.node(node)["type"].clone());
    assert_eq!(left, [Value::Null, "node".into(), "node".into()]);
    dpu.programmer.unprogram(VF).unwrap();
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-green"), Value::Null);
}

#[test]
fn concurrent_pods_share_a_rate_node() {
    let dpu = Dpu::new();
    std::thread::scope(|scope| {
        for vf in [0, 1] {
            let programmer = &dpu.programmer;
            scope.spawn(move || {
                for _ in 0..20 {
                    programmer.program(&sharing(vf, 20_000_000)).unwrap();
                    programmer.unprogram(FunctionId::local(0, vf)).unwrap();
                }
            });
        }
    });
    dpu.assert_idle();
    assert_eq!(dpu.node("offload-blue"), Value::Null);
}
