//! Conditions: a failure makes one of them false, and its repair makes it true again.

use std::{fs, process::Command, thread, time::Duration};

use e2e::{FabricKind, Lab, Netns, Settings, openmetrics, run, wait_for};
use jiff::Timestamp;
use mtls::Role;
use nix::sys::signal::Signal;
use offload_proto::{ConditionReason, v1::ConditionType};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

/// A network with room for one pod.
const SMALL: &str = r#"
[[network]]
name = "blue"
default = true
subnets = [{ cidr = "10.1.0.0/24", ranges = [{ start = "10.1.0.2", end = "10.1.0.2" }] }]
"#;

fn await_fault(lab: &Lab, reason: &str) -> Value {
    wait_for(&format!("{reason} to be a condition"), LIMIT, || lab.operator().fault(reason))
}

fn await_truth(lab: &Lab) {
    wait_for("all conditions to be true", LIMIT, || {
        lab.operator().faults().is_empty().then_some(())
    });
}

fn exit_code(lab: &Lab, arguments: &[&str]) -> Option<i32> {
    lab.operator().dpuctl(arguments).status.code()
}

/// Whether the metric shows the condition as false for this object.
fn is_scraped(lab: &Lab, kind: &str, object: &str) -> bool {
    let Some(page) = openmetrics::scrape(&lab.card.dpu) else { return false };
    let labels = [("type", kind), ("object", object), ("status", "false")];
    openmetrics::value(&page, "dpu_offload_service_condition", "", &labels) == Some(1.0)
}

/// A lab whose uplink ends in another namespace.
fn lab_with_uplink() -> (Lab, Netns) {
    let fabric = "uplinks = [\"uplink\"]".to_owned();
    let lab = Lab::start(&Settings { fabric, ..Settings::default() });
    let outside = Netns::new("outside");
    let peer = ["peer", "name", "eth0", "netns", outside.name()];
    lab.card.dpu.ip(&[&["link", "add", "uplink", "type", "veth"][..], &peer].concat());
    outside.ip(&["link", "set", "eth0", "up"]);
    await_truth(&lab);
    (lab, outside)
}

#[test]
fn uplink_without_carrier_is_a_condition() {
    let (lab, outside) = lab_with_uplink();
    assert_eq!(exit_code(&lab, &["status"]), Some(0));
    let before = Timestamp::now();
    outside.ip(&["link", "set", "eth0", "down"]);
    let links = lab.card.dpu.json("ip", &["link", "show", "uplink"]);
    assert_eq!(links[0]["operstate"], "LOWERLAYERDOWN");
    let down = await_fault(&lab, "UPLINK_WITHOUT_CARRIER");
    assert_eq!(
        (&down["type"], &down["object"]),
        (&json!("CONDITION_TYPE_UPLINKS_UP"), &json!("uplink/uplink"))
    );
    assert_eq!(down["affectsPods"], true);
    let time = |key: &str| down[key].as_str().unwrap().parse::<Timestamp>().unwrap();
    let (since, checked) = (time("since"), time("checked"));
    assert!(before <= since && since <= checked && checked <= Timestamp::now(), "{down}");
    wait_for("the metric", LIMIT, || is_scraped(&lab, "UplinksUp", "uplink/uplink").then_some(()));
    for verb in ["status", "doctor"] {
        assert_eq!(exit_code(&lab, &[verb]), Some(5), "{verb}");
    }
    outside.ip(&["link", "set", "eth0", "up"]);
    await_truth(&lab);
    lab.assert_clean_slate();
}

#[test]
fn status_waits_for_a_condition() {
    let (lab, outside) = lab_with_uplink();
    outside.ip(&["link", "set", "eth0", "down"]);
    await_fault(&lab, "UPLINK_WITHOUT_CARRIER");
    let wait = |kind, seconds| exit_code(&lab, &["status", "--wait", kind, "--timeout", seconds]);
    assert_eq!(wait("UplinksUp", "1"), Some(5));
    assert_eq!(wait("JournalWritable", "1"), Some(0));
    assert_eq!(wait("Uplinks", "1"), Some(2));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait("uplinksup", "60"));
        outside.ip(&["link", "set", "eth0", "up"]);
        assert_eq!(waiting.join().unwrap(), Some(0));
    });
}

#[test]
fn refusing_pool_is_a_condition() {
    let lab = Lab::start(&Settings::with_vfs(1));
    let (first, second) = (Netns::new("first"), Netns::new("second"));
    let _ = lab.add("blue", &first, "eth0").result();
    assert_eq!(lab.operator().faults(), [Value::Null; 0], "a full pool is no failure");
    for _ in 0..2 {
        lab.add("blue", &second, "eth0").fails(102, &[]);
    }
    let refused = lab.operator().fault("VFS_EXHAUSTED").unwrap();
    assert_eq!(
        (&refused["type"], &refused["object"]),
        (&json!("CONDITION_TYPE_ATTACHES_SERVED"), &json!("pool/default"))
    );
    assert!(refused["message"].as_str().unwrap().starts_with("2 ADDs "), "{refused}");
    wait_for("the event", LIMIT, || lab.service.log().contains("AttachRefused").then_some(()));
    assert_eq!(exit_code(&lab, &["status"]), Some(5));
    lab.status().nothing();

    lab.del("blue", &first, "eth0").nothing();
    let _ = lab.add("blue", &second, "eth0").result();
    await_truth(&lab);
    lab.assert_invariants();
}

#[test]
fn exhausted_subnet_is_a_condition() {
    let lab = Lab::start(&Settings { networks: SMALL.into(), cool_down: 0, ..Settings::default() });
    let (first, second) = (Netns::new("first"), Netns::new("second"));
    let _ = lab.add("blue", &first, "eth0").result();
    lab.add("blue", &second, "eth0").fails(103, &[]);
    let refused = lab.operator().fault("ADDRESSES_EXHAUSTED").unwrap();
    assert_eq!(refused["object"], "network/blue");
    lab.del("blue", &first, "eth0").nothing();
    let _ = lab.add("blue", &second, "eth0").result();
    await_truth(&lab);
}

#[test]
fn agent_without_file_descriptors_is_a_condition() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let agent = lab.agent.id();
    let limit = |files: usize| {
        let limit = format!("--nofile={files}:");
        let limited = run(Command::new("prlimit").args(["--pid", &agent.to_string(), &limit]));
        assert!(limited.status.success(), "{limited:?}");
    };
    limit(fs::read_dir(format!("/proc/{agent}/fd")).unwrap().count() + 3);
    for _ in 0..2 {
        lab.add("blue", &pod, "eth0").fails(11, &["OVERLOADED"]);
        assert_eq!(lab.operator().fault("OVERLOADED"), None);
    }
    lab.add("blue", &pod, "eth0").fails(11, &["OVERLOADED"]);
    assert_eq!(await_fault(&lab, "OVERLOADED")["affectsPods"], true);
    limit(1024);
    let _ = lab.add("blue", &pod, "eth0").result();
    await_truth(&lab);
    lab.assert_invariants();
}

#[test]
fn representors_in_a_foreign_bridge_are_a_condition() {
    let settings = Settings { kind_of_fabric: FabricKind::Bridge, ..Settings::with_vfs(1) };
    let lab = Lab::start(&settings);
    let representor = lab.card.representors()[0]["ifname"].as_str().unwrap().to_owned();
    let dpu = &lab.card.dpu;
    dpu.ip(&["link", "add", "br-foreign", "type", "bridge"]);
    dpu.ip(&["link", "set", &representor, "master", "br-foreign"]);
    let pod = Netns::new("pod");
    let (code, _) = lab.add("blue", &pod, "eth0").error();
    assert_eq!(code, 115);
    assert_eq!(lab.operator().fault("PROGRAMMING_FAILED").unwrap()["object"], "pool/default");
    dpu.ip(&["link", "delete", "br-foreign"]);
    let _ = lab.add("blue", &pod, "eth0").result();
    await_truth(&lab);
    lab.assert_invariants();
}

#[test]
fn pods_unknown_after_journal_loss_are_a_condition() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.lose_journal();
    lab.wait_until_good();
    let lost = await_fault(&lab, "ATTACHMENT_UNRECORDED");
    assert_eq!((&lost["object"], &lost["affectsPods"]), (&json!("host/node-1"), &json!(true)));
    lab.del("blue", &pod, "eth0").nothing();
    await_truth(&lab);
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}

#[test]
fn endless_release_is_a_condition() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.agent.stop();
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let _ = lab.operator().output(&["release", &id, "--reason", "a test", "--yes"]);
    let stuck = wait_for("the condition", 2 * LIMIT, || lab.operator().fault("RELEASE_STUCK"));
    assert_eq!(stuck["object"], "host/node-1");
    lab.start_agent();
    lab.wait_until_good();
    await_truth(&lab);
}

#[test]
fn host_under_maintenance_has_no_condition() {
    let mut lab = Lab::start(&Settings::default());
    lab.agent.stop();
    assert_eq!(await_fault(&lab, "HOST_NOT_CONNECTED")["object"], "host/node-1");
    let file = lab.path().join("dpu-service.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[[host]]\n", "[[host]]\nmaintenance = true\n")).unwrap();
    await_truth(&lab);
    assert_eq!(exit_code(&lab, &["status"]), Some(0));
    fs::write(&file, text).unwrap();
    await_fault(&lab, "HOST_NOT_CONNECTED");
    lab.start_agent();
    await_truth(&lab);
}

#[test]
fn dead_ovsdb_is_a_condition() {
    let mut lab =
        Lab::start(&Settings { kind_of_fabric: FabricKind::OpenVswitch, ..Settings::default() });
    lab.vswitch.as_mut().unwrap().kill_database();
    let clock = e2e::Stopwatch::start();
    let gone = await_fault(&lab, "FABRIC_UNAVAILABLE");
    let took = clock.unstalled();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(gone["type"], "CONDITION_TYPE_FABRIC_READY");
    assert!(lab.operator().fault("NOT_SERVING").is_some());
    lab.vswitch.as_mut().unwrap().start_database();
    await_truth(&lab);
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.assert_invariants();
}

#[test]
fn lost_session_condition_precedes_status_failure() {
    let timeouts = e2e::Timeouts { grace: 600, ..e2e::Timeouts::default() };
    let mut lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    lab.agent.signal(Signal::SIGSTOP);
    let away = await_fault(&lab, "HOST_NOT_CONNECTED");
    assert_eq!(away["affectsPods"], true);
    let log = lab.service.log();
    for event in ["HostDisconnected", "ConditionFalse"] {
        assert!(log.contains(event), "{event}: {log}");
    }
    lab.agent.signal(Signal::SIGCONT);
    await_truth(&lab);

    lab.pki.issue_expiring_soon(Role::Dpu, "dpu-1");
    await_fault(&lab, "CERTIFICATE_EXPIRING");
    assert_eq!(exit_code(&lab, &["status"]), Some(0), "pods are not affected");
    lab.pki.issue_for(Duration::from_secs(15), Role::Dpu, "dpu-1");
    wait_for("the end of the certificate", LIMIT, || {
        lab.service.log().contains("CERTIFICATE_EXPIRED").then_some(())
    });
    lab.status().nothing();
    lab.pki.issue("dpu", "dpu-1");
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    await_truth(&lab);
}

#[test]
fn metrics_are_on_by_default_on_loopback() {
    let lab = Lab::start(&Settings::default());
    assert!(openmetrics::scrape(&lab.card.dpu).is_some());
    let get = "GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n";
    let reported = openmetrics::ask_at(&lab.card.host, "127.0.0.1:9465", get).unwrap();
    assert!(reported.contains("dpu_offload_agent_session_connected"), "{reported}");
    let file = lab.path().join("dpu-service.toml");
    let check = || {
        let mut command = lab.card.dpu.command(e2e::program("dpu-service"));
        let output = run(command.arg("--check-config").arg("--config").arg(&file));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check().contains("http://127.0.0.1:9464/metrics"));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("metrics.listen = \"off\"\n{text}")).unwrap();
    assert!(check().contains("off"));
}

/// The documented table of a condition: reason, whether pods are affected, both times in seconds, and what to do.
fn documented(text: &str, kind: ConditionType) -> Vec<(String, bool, u64, u64, String)> {
    let section = text.split(&format!("\n### {}\n", kind.name())).nth(1);
    let section = section.unwrap_or_else(|| panic!("docs/CONDITIONS.md lacks {}", kind.name()));
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let seconds = |cell: &str| cell.trim_end_matches(" s").parse().unwrap();
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let reason = cells[0].trim_matches('`').to_owned();
        (reason, cells[1] == "yes", seconds(cells[4]), seconds(cells[5]), cells[6].to_owned())
    })
    .collect()
}

#[test]
fn every_condition_reason_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONDITIONS.md");
    let text = fs::read_to_string(path).unwrap();
    for kind in ConditionType::ALL {
        let of_kind = ConditionReason::ALL.iter().filter(|reason| reason.condition() == kind);
        let expected: Vec<_> = of_kind
            .map(|reason| {
                let (begins, ends) =
                    (reason.begins_after().as_secs(), reason.ends_after().as_secs());
                let advice = reason.advice().to_owned();
                (reason.to_string(), reason.affects_pods(), begins, ends, advice)
            })
            .collect();
        assert_eq!(documented(&text, kind), expected, "{}", kind.name());
    }
}

#[test]
fn each_alert_links_to_the_documentation() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let rules =
        fs::read_to_string(format!("{root}/configs/prometheus/dpu-offload.rules.yml")).unwrap();
    let rules: Value = serde_norway::from_str(&rules).unwrap();
    let page = fs::read_to_string(format!("{root}/docs/CONDITIONS.md")).unwrap();
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchors: Vec<_> = headings
        .map(|line| line.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-"))
        .collect();
    let groups = rules["groups"].as_array().unwrap().iter();
    for rule in groups.flat_map(|group| group["rules"].as_array().unwrap()) {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let anchor = url.split_once("docs/CONDITIONS.md#").unwrap_or_default().1;
        assert!(anchors.iter().any(|known| known == anchor), "{rule}");
        let alert = rule["alert"].as_str().unwrap();
        let is_listed = anchor != "other-alerts" || page.contains(&format!("| `{alert}` |"));
        assert!(is_listed, "{alert} has no row");
    }
}
