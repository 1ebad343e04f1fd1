//! Operators' work with `dpuctl`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::Duration,
};

use e2e::{FabricKind, Lab, Netns, Settings, openmetrics, scenarios::pods::addresses, wait_for};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

fn apply(lab: &Lab, file: &str, text: &str) -> String {
    let path = lab.path().join(file);
    fs::write(&path, text).unwrap();
    lab.operator().output(&["apply", "-f", path.to_str().unwrap()])
}

const RED: &str =
    r#"{ "name": "red", "subnets": [{ "cidr": "10.8.0.0/24", "gateway": "10.8.0.1" }] }"#;

#[test]
fn network_is_applied_changed_and_deleted() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    assert!(apply(&lab, "red.json", RED).contains("created"));
    assert!(apply(&lab, "red.json", RED).contains("unchanged"));
    let yaml = "name: red\nmtu: 1400\nsubnets:\n- cidr: 10.8.0.0/24\n  gateway: 10.8.0.1\n";
    assert!(apply(&lab, "red.yaml", yaml).contains("changed"));
    let result = lab.add("red", &pod, "eth0").result();
    assert_eq!(result["interfaces"][0]["mtu"], 1400);

    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    assert!(lab.operator().get("networks").iter().any(|n| n["network"]["name"] == "red"));
    lab.del("red", &pod, "eth0").nothing();
    lab.await_settled();
    let _ = lab.operator().output(&["delete", "network", "red"]);
    lab.add("red", &pod, "eth0").fails(101, &["red"]);
    lab.assert_clean_slate();
}

#[test]
fn subnets_come_and_go_under_running_pods() {
    let mut lab = Lab::start(&Settings::default());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = apply(&lab, "red.json", RED);
    let of_a = lab.add("red", &a, "eth0").result();
    assert_eq!(addresses(&of_a).len(), 1);
    let add = ["add", "subnet", "red", "fd00:8::/64", "--gateway", "fd00:8::1"];
    assert!(lab.operator().output(&add).contains("network/red changed"));
    assert!(lab.operator().output(&add).contains("network/red unchanged"));
    let of_b = addresses(&lab.add("red", &b, "eth0").result());
    assert!(of_b[1].starts_with("fd00:8::") && a.pings(&of_b[0]), "{of_b:?}");

    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    let attachments = lab.operator().get("attachments");
    for (cidr, pod) in [("10.8.0.0/24", &a), ("fd00:8::/64", &b)] {
        let complaint = lab.operator().is_refused(&["delete", "subnet", "red", cidr]);
        let is_named = |of: &Value| complaint.contains(of["id"].as_str().unwrap());
        let holder = attachments.iter().find(|of| is_named(of)).unwrap();
        assert!(complaint.contains("LEASE_IN_THE_WAY"), "{complaint}");
        assert!(cidr.starts_with("10.") || holder["key"]["containerId"] == pod.name());
    }
    for (line, code, reported) in [
        ("add subnet green 10.77.0.0/24", "NETWORK_FIXED", "green comes"),
        ("delete subnet green 10.2.0.0/24", "NETWORK_FIXED", "green comes"),
        ("add subnet none 10.77.0.0/24", "NETWORK_UNKNOWN", "no network \"none\""),
        ("add subnet red 10.1.7.0/24", "INVALID_REQUEST", "overlaps 10.1.0.0/16"),
        ("add subnet red 10.8.0.0/24", "INVALID_REQUEST", "subnet 10.8.0.0/24"),
        ("add subnet red 10.7.0.1/24", "INVALID_REQUEST", "10.7.0.1/24 has host bits"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let complaint = lab.operator().is_refused(&words);
        assert!(complaint.contains(code) && complaint.contains(reported), "{line}: {complaint}");
    }
    lab.assert_invariants();
    lab.del("red", &b, "eth0").nothing();
    lab.await_settled();
    for reported in ["network/red changed", "network/red unchanged"] {
        let printed = lab.operator().output(&["delete", "subnet", "red", "fd00:8::/64"]);
        assert!(printed.contains(reported), "{printed}");
    }
    let of_b = lab.add("red", &b, "eth0").result();
    assert_eq!(addresses(&of_b).len(), 1);
    for pod in [&a, &b] {
        lab.del("red", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn renamed_network_keeps_its_pods() {
    let mut lab = Lab::start(&Settings::default());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = apply(&lab, "red.json", RED);
    let of_a = lab.add("red", &a, "eth0").result();
    let renamed = lab.operator().output(&["rename", "network", "red", "crimson"]);
    assert!(renamed.contains("network/red renamed to crimson"), "{renamed}");
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    let shown = lab.operator().get("attachments");
    assert_eq!(shown[0]["network"], "crimson");
    let of_b = addresses(&lab.add("crimson", &b, "eth0").result());
    assert_ne!(of_b, addresses(&of_a));
    assert!(a.pings(&of_b[0]) && b.pings(&addresses(&of_a)[0]), "{of_b:?}");
    lab.add("red", &Netns::new("late"), "eth0").fails(101, &["red"]);
    lab.assert_invariants();
    lab.del("red", &a, "eth0").nothing();
    lab.del("crimson", &b, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn conflicting_change_is_refused_and_shown() {
    let lab = Lab::start(&Settings::default());
    let _ = apply(&lab, "red.json", RED);
    let printed = lab.operator().output(&["get", "networks", "red", "-o", "yaml"]);
    assert!(
        apply(&lab, "mine.yaml", &printed.replace("mtu: 1500", "mtu: 1400")).contains("changed")
    );
    let late = lab.path().join("late.yaml");
    fs::write(&late, printed.replace("mtu: 1500", "mtu: 1300")).unwrap();
    let arguments = ["apply", "-f", late.to_str().unwrap()];
    let refused = lab.operator().is_refused(&arguments);
    for line in ["-mtu: 1400\n", "+mtu: 1300\n", "code: NETWORK_CONFLICT\n"] {
        assert!(refused.contains(line), "{refused}");
    }
    let mtu = || {
        lab.operator().json(&["get", "networks", "red"])["networks"][0]["network"]["mtu"].clone()
    };
    assert_eq!(mtu(), 1400);
    let _ = lab.operator().output(&[&arguments[..], &["--force-conflicts"]].concat());
    assert_eq!(mtu(), 1300);
}

/// Each update starts from the network as the previous one left it.
#[test]
fn concurrent_subnet_additions_are_all_kept() {
    let lab = Lab::start(&Settings::default());
    let _ = apply(&lab, "red.json", RED);
    let cidrs: Vec<_> = (0..8).map(|number| format!("10.8{number}.0.0/16")).collect();
    let change = |verb: &str, cidrs: &[String]| {
        thread::scope(|scope| {
            for cidr in cidrs {
                let operator = lab.operator();
                scope.spawn(move || drop(operator.output(&[verb, "subnet", "red", cidr])));
            }
        });
    };
    let subnets = || {
        let networks = lab.operator().get("networks");
        let red = networks.iter().find(|of| of["network"]["name"] == "red").unwrap();
        let subnets = red["network"]["subnets"].as_array().unwrap().iter();
        subnets.map(|of| of["cidr"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    change("add", &cidrs);
    let all = cidrs.iter().cloned().chain(["10.8.0.0/24".to_owned()]).collect();
    assert_eq!(subnets(), all);
    change("delete", &cidrs);
    assert_eq!(subnets(), ["10.8.0.0/24".to_owned()].into());
}

#[test]
fn used_network_is_deleted_only_by_force() {
    let lab = Lab::start(&Settings::default());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = apply(&lab, "red.json", RED);
    let _ = lab.add("red", &a, "eth0").result();
    let of_b = lab.add("red", &b, "eth0").result();
    let complaint = lab.operator().is_refused(&["delete", "network", "red"]);
    assert!(complaint.contains("NETWORK_IN_USE"), "{complaint}");
    let _ = lab.operator().output(&["delete", "network", "red", "--force"]);
    lab.add("red", &Netns::new("c"), "eth0").fails(101, &["red"]);
    assert!(addresses(&of_b).iter().all(|address| a.pings(address)));
    lab.assert_invariants();
    lab.del("red", &a, "eth0").nothing();
    lab.del("red", &b, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn file_network_cannot_be_changed_by_api() {
    let lab = Lab::start(&Settings::default());
    let complaint = lab.operator().is_refused(&["delete", "network", "green"]);
    assert!(complaint.contains("NETWORK_FIXED"), "{complaint}");
}

#[test]
fn released_attachment_leaves_its_pod() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let _ = lab.operator().output(&["release", &id, "--reason", "maintenance", "--yes"]);
    lab.assert_clean_slate();
    let links = pod.json("ip", &["link"]);
    assert!(links.iter().all(|link| link["ifname"] != "eth0"), "{links:?}");
    lab.del("blue", &pod, "eth0").nothing();
    let complaint = lab.operator().is_refused(&["release", &id, "--reason", "again", "--yes"]);
    assert!(complaint.contains(&id), "{complaint}");
}

#[test]
fn dpuctl_tables_list_objects() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let result = lab.add("blue", &pod, "eth0").result();
    let operator = lab.operator();
    let attachments = operator.output(&["get", "attachments"]);
    for word in ["NETWORK", "blue", "node-1", "Attached", &addresses(&result)[0]] {
        assert!(attachments.contains(word), "{word:?} is not in:\n{attachments}");
    }
    assert!(operator.output(&["get", "vfs", "-o", "wide"]).contains("d000:00:00.4"));
    assert!(operator.output(&["get", "pools", "-o", "wide"]).contains("p0#0-3"));
    assert!(operator.output(&["get", "networks"]).contains("fd00:10:2::/64"));
    let status = operator.output(&["status"]);
    assert!(status.contains("dpu-1") && status.contains("node-1"), "{status}");

    let id = operator.get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let described = operator.output(&["describe", "attachment", &id]);
    for word in [pod.name(), "fabric-join", "pf0vf"] {
        assert!(described.contains(word), "{word:?} is not in:\n{described}");
    }
    assert!(operator.output(&["get", "vfs", "-o", "yaml"]).contains("device:"));
}

#[test]
fn software_card_is_named_as_software() {
    let lab = Lab::start(&Settings::default());
    let vfs = lab.operator().output(&["get", "vfs", "-o", "wide"]);
    let named = vfs.lines().filter(|line| line.contains("software VF (veth)")).count();
    assert_eq!(named, lab.operator().get("vfs").len(), "{vfs}");
}

#[test]
fn deleted_network_waits_for_releases() {
    let lab = Lab::start(&Settings::default());
    let pods = ["a", "b", "c"].map(Netns::new);
    let _ = apply(&lab, "red.json", RED);
    for pod in &pods {
        let _ = lab.add("red", pod, "eth0").result();
    }
    // A DEL is answered before its VF and its addresses are free.
    for pod in &pods {
        lab.del("red", pod, "eth0").nothing();
    }
    let _ = lab.operator().output(&["delete", "network", "red"]);
    lab.assert_clean_slate();
}

/// Phases of the service in display order.
const PHASES: [(&str, &str); 9] = [
    ("attach", "locks"),
    ("attach", "reserve"),
    ("attach", "journal"),
    ("attach", "program"),
    ("attach", "total"),
    ("detach", "locks"),
    ("detach", "journal"),
    ("detach", "unprogram"),
    ("detach", "total"),
];

/// By operation, phase and kind: count, sum in nanoseconds, and cumulative counts by bucket bound in nanoseconds.
type Phases = BTreeMap<[String; 3], u64>;

fn phases_of_top(lab: &Lab) -> Phases {
    let look = lab.operator().output(&["top", "--phases", "--once", "-o", "json"]);
    let look: Value = serde_json::from_str(&look).unwrap();
    let text = |of: &Value, name: &str| of[name].as_str().unwrap().to_owned();
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let reported = |of: &Value| {
        let buckets = of["buckets"].as_array().unwrap().iter();
        let buckets =
            buckets.map(|it| (number(it, "upperBoundNs").to_string(), number(it, "count")));
        let ends = [("count", number(of, "count")), ("sum", number(of, "sumNs"))];
        let all = ends.map(|(what, value)| (what.to_owned(), value)).into_iter().chain(buckets);
        let (operation, phase) = (text(of, "operation"), text(of, "phase"));
        let keyed = |(what, value)| ([operation.clone(), phase.clone(), what], value);
        all.map(keyed).collect::<Vec<_>>()
    };
    look["phases"].as_array().unwrap().iter().flat_map(reported).collect()
}

fn phases_of_metrics(lab: &Lab) -> Option<Phases> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
    let whole = |value: f64| value.round() as u64;
    let nanoseconds = |seconds: f64| whole(seconds * 1e9);
    let page = openmetrics::scrape(&lab.card.dpu)?;
    let mut phases = Phases::new();
    for operation in ["attach", "detach"] {
        let family = format!("dpu_offload_service_{operation}_phase_duration_seconds");
        for (sample, value) in &page[&family].samples {
            let (what, value) = match sample.labels.get("le").map(String::as_str) {
                Some("+Inf") => continue,
                Some(bound) => (nanoseconds(bound.parse().unwrap()).to_string(), whole(*value)),
                None if sample.name.ends_with("_sum") => ("sum".into(), nanoseconds(*value)),
                None => ("count".into(), whole(*value)),
            };
            phases.insert([operation.into(), sample.labels["phase"].clone(), what], value);
        }
    }
    Some(phases)
}

#[test]
fn top_shows_phases_like_metrics() {
    let lab = Lab::start(&Settings { has_metrics: true, ..Settings::default() });
    let pod = Netns::new("pod");
    let comes_and_goes = || {
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.del("blue", &pod, "eth0").nothing();
        lab.await_settled();
    };
    comes_and_goes();
    let phases = wait_for("both to tell the same", LIMIT, || {
        let reported = phases_of_top(&lab);
        (phases_of_metrics(&lab)? == reported).then_some(reported)
    });
    for (operation, phase) in PHASES {
        let end = |what: &str| phases[&[operation, phase, what].map(String::from)];
        assert!(end("count") > 0 && end("sum") > 0, "{operation} {phase}: {phases:?}");
    }

    wait_for("a table of current activity", LIMIT, || {
        let table = thread::scope(|scope| {
            let operator = lab.operator();
            let table = scope
                .spawn(move || operator.output(&["top", "--phases", "--once", "--interval", "1"]));
            while !table.is_finished() {
                comes_and_goes();
            }
            table.join().unwrap()
        });
        let rows: Vec<Vec<_>> =
            table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.iter().map(|row| (row[0], row[1])).eq(PHASES), "{table}");
        let is_quick = |row: &Vec<&str>| row[3].parse().is_ok_and(|p50: f64| p50 > 0.0);
        let is_whole = |row: &Vec<&str>| row[1] != "total" || row.last() == Some(&"100%");
        rows.iter().all(|row| is_quick(row) && is_whole(row)).then_some(())
    });
    let complaint = lab.operator().is_refused(&["top", "--phases", "--network", "blue"]);
    assert!(complaint.contains("'--network <NETWORK>'"), "{complaint}");
    lab.assert_clean_slate();
}

/// Data from journal and card is shown, and a VF that is released during the outage becomes free later.
#[test]
fn ovs_outage_hides_nothing_else() {
    let kind_of_fabric = FabricKind::OpenVswitch;
    let mut lab = Lab::start(&Settings { kind_of_fabric, ..Settings::with_vfs(2) });
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = lab.add("blue", &a, "eth0").result();
    let _ = lab.add("blue", &b, "eth0").result();
    lab.vswitch.as_mut().unwrap().kill_daemon();

    let vfs = lab.operator().get("vfs");
    assert!(vfs.iter().all(|vf| vf["representor"] != ""), "{vfs:?}");
    let output = lab.operator().dpuctl(&["top", "--once", "--interval", "1"]);
    let [shown, warned] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && shown.contains("pf0vf0"), "{shown}");
    assert!(warned.starts_with("warning: ") && warned.contains("not known: "), "{warned}");
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let described = lab.operator().output(&["describe", "attachment", &id]);
    let is_reported =
        |step: [&str; 2]| described.lines().any(|line| line.split_whitespace().take(2).eq(step));
    assert!(
        is_reported(["guard", "unknown"]) && is_reported(["representor-up", "yes"]),
        "{described}"
    );
    assert!(described.contains("Unknown:\n  can't count"), "{described}");

    lab.del("blue", &a, "eth0").nothing();
    let states = |lab: &Lab| -> Vec<_> {
        let vfs = lab.operator().get("vfs").into_iter();
        vfs.map(|vf| vf["state"].as_str().unwrap().to_owned()).collect()
    };
    wait_for("a VF that waits", LIMIT, || {
        states(&lab).contains(&"VF_STATE_ABSENT".to_owned()).then_some(())
    });
    let vswitch = lab.vswitch.as_mut().unwrap();
    vswitch.kill_database();
    let complaint = lab.operator().is_refused(&["doctor"]);
    assert!(complaint.contains("code: PORTS_UNREADABLE"), "{complaint}");
    assert!(complaint.contains("advice: start"), "{complaint}");

    let vswitch = lab.vswitch.as_mut().unwrap();
    vswitch.start_database();
    vswitch.start_daemon();
    wait_for("the VF to be free", LIMIT, || {
        states(&lab).contains(&"VF_STATE_FREE".to_owned()).then_some(())
    });
    lab.wait_until_good();
    lab.assert_invariants();
    lab.del("blue", &b, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn status_shows_a_connected_host_and_no_problems() {
    let lab = Lab::start(&Settings::default());
    let status: Value =
        serde_json::from_str(&lab.operator().output(&["status", "-o", "json"])).unwrap();
    assert_eq!(status["hosts"][0]["connected"], true, "{status}");
    assert_eq!(lab.operator().faults(), [Value::Null; 0]);
}
