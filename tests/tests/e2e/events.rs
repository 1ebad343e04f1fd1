//! Events: kept across crashes, full disks and lost connections.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use e2e::{Lab, Netns, Settings, openmetrics, wait_for};
use serde_json::Value;

use crate::disks::SmallDisk;

const LIMIT: Duration = Duration::from_secs(30);
/// Interval between looks for an event.
const LOOK: Duration = Duration::from_millis(100);

/// The output of `dpuctl events --follow -o json`, until drop.
struct Followed {
    process: Child,
    lines: mpsc::Receiver<Value>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Followed {
    fn start(lab: &Lab) -> Self {
        let mut command = lab.operator().command();
        let command = command.args(["events", "--follow", "-o", "json"]).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let mut events = lines.map_while(Result::ok);
            events.try_for_each(|line| sender.send(serde_json::from_str(&line).unwrap()))
        });
        Self { process, lines: events }
    }

    /// The events up to the first of kind `last` about `subject`.
    fn until(&self, last: &str, subject: &str) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        let is_last = |event: &Value| event["kind"] == last && event["subject"] == subject;
        while !events.last().is_some_and(is_last) {
            let next = || self.lines.recv_timeout(LOOK).ok();
            events.push(wait_for(&format!("{last} of {subject}"), LIMIT, next));
        }
        events
    }
}

fn kinds_about(events: &[Value], subject: &str) -> Vec<String> {
    let about = events.iter().filter(|event| event["subject"] == subject);
    about.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

fn listed(lab: &Lab, options: &[&str]) -> Vec<Value> {
    let arguments: Vec<_> = ["events"].iter().chain(options).copied().collect();
    lab.operator().json(&arguments)["events"].as_array().unwrap().clone()
}

/// Number of events of a kind.
pub(crate) fn number_of_events(lab: &Lab, kind: &str) -> u64 {
    let count = |event: &Value| event["count"].as_u64().unwrap();
    listed(lab, &["--type", kind]).iter().map(count).sum()
}

fn kinds(events: &[Value]) -> HashSet<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

fn only_attachment(lab: &Lab) -> String {
    lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned()
}

fn file(lab: &Lab) -> PathBuf {
    lab.path().join("service/events.jsonl")
}

#[test]
fn followed_events_show_an_attachments_life() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let followed = Followed::start(&lab);
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = only_attachment(&lab);
    let comes = followed.until("AttachmentAttached", &id);
    let expected = ["AttachmentReserved", "AttachmentProgrammed", "AttachmentAttached"];
    assert_eq!(kinds_about(&comes, &id), expected);
    lab.del("blue", &pod, "eth0").nothing();
    let goes = followed.until("AttachmentReleased", &id);
    assert_eq!(kinds_about(&goes, &id), ["AttachmentReleasing", "AttachmentReleased"]);
}

#[test]
fn lost_journal_is_a_warning() {
    let mut lab = Lab::start(&Settings::default());
    assert_eq!(number_of_events(&lab, "JournalLost"), 0, "the first start begins a new journal");
    lab.lose_journal();
    lab.wait_until_good();
    let lost = listed(&lab, &["--type", "JournalLost"]);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0]["message"].as_str().unwrap().contains("journal.redb"), "{lost:?}");
    assert_eq!(lost[0]["severity"], "EVENT_SEVERITY_WARNING");
}

#[test]
fn ended_namespace_is_named_as_cause() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = only_attachment(&lab);
    drop(pod);
    let releasing = || {
        let all = listed(&lab, &["--type", "AttachmentReleasing"]);
        all.into_iter().find(|event| event["subject"] == *id)
    };
    let releasing = wait_for("the release", LIMIT, releasing);
    assert_eq!(releasing["message"], "its network namespace ended without a DEL");
    assert_eq!(releasing["author"], "host/node-1");
    lab.assert_clean_slate();
}

#[test]
fn followed_events_outlast_a_killed_service() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let followed = Followed::start(&lab);
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = only_attachment(&lab);
    let mut printed = followed.until("AttachmentAttached", &id);
    wait_for("the events in their file", LIMIT, || {
        fs::read_to_string(file(&lab)).ok()?.contains("AttachmentAttached").then_some(())
    });
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    lab.del("blue", &pod, "eth0").nothing();
    printed.extend(followed.until("AttachmentReleased", &id));

    let revision = |event: &Value| (event["boot"].to_string(), event["revision"].to_string());
    let distinct: HashSet<_> = printed.iter().map(revision).collect();
    assert_eq!(distinct.len(), printed.len(), "an event was printed twice");
    let missing: Vec<_> = listed(&lab, &[])
        .into_iter()
        .filter(|event| !distinct.contains(&revision(event)))
        .collect();
    let printed_last = printed.last().unwrap()["revision"].as_u64().unwrap();
    let is_later = |event: &Value| event["revision"].as_u64().unwrap() > printed_last;
    assert!(missing.iter().all(is_later), "{missing:?}");
    let kinds = kinds(&printed);
    assert!(kinds.contains("ServiceStopUnclean") && kinds.contains("HostConnected"), "{kinds:?}");
    let attached = printed.iter().filter(|event| event["kind"] == "AttachmentAttached");
    assert_eq!(attached.count(), 1, "a pod that runs on is no event");
    let boots: HashSet<_> = printed.iter().map(|event| event["boot"].to_string()).collect();
    assert_eq!(boots.len(), 2);
}

#[test]
fn clean_stop_is_an_event_and_events_stay() {
    let mut lab = Lab::start(&Settings::default());
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    let events = listed(&lab, &[]);
    let kinds = kinds(&events);
    assert!(kinds.contains("ServiceStopped"), "{kinds:?}");
    for unclean in ["ServiceStopUnclean", "HostDisconnected"] {
        assert!(!kinds.contains(unclean), "{unclean}: {kinds:?}");
    }
}

#[test]
fn repairs_of_the_agent_are_events() {
    let lab = Lab::start(&Settings::default());
    lab.card.host.ip(&["link", "set", "p0v2", "mtu", "1400"]);
    let of_agent = |event: &Value| event["author"] == "host/node-1";
    let repair = wait_for("the repair", LIMIT, || {
        listed(&lab, &["--type", "Repaired"]).into_iter().find(of_agent)
    });
    assert!(repair["message"].as_str().unwrap().contains("its MTU is 1400"), "{repair}");
}

#[test]
fn events_are_chosen_by_age_object_and_type() {
    let lab = Lab::start(&Settings::default());
    assert_eq!(
        kinds(&listed(&lab, &["--object", "node-1", "--since", "1h"])),
        ["HostConnected"].into()
    );
    assert_eq!(kinds(&listed(&lab, &["--type", "ServiceStarted"])), ["ServiceStarted"].into());
    assert!(
        listed(&lab, &["--type", "warning"])
            .iter()
            .all(|it| it["severity"] == "EVENT_SEVERITY_WARNING")
    );
    assert!(lab.operator().is_refused(&["events", "--type", "Nonsense"]).contains("Nonsense"));
    let table = lab.operator().output(&["events"]);
    assert!(table.starts_with("AGE ") && table.contains("HostConnected"), "{table}");
}

#[test]
fn full_disk_drops_events_and_no_detach() {
    let settings = Settings { has_metrics: true, cool_down: 0, ..Settings::default() };
    let mut lab = Lab::start(&settings);
    let pod = Netns::new("pod");
    lab.service.stop();
    let disk = SmallDisk::under(lab.path().join("service"));
    lab.start_service();
    lab.wait_until_good();
    let _ = lab.add("blue", &pod, "eth0").result();
    let id = only_attachment(&lab);
    wait_for("the events in their file", LIMIT, || {
        fs::read_to_string(file(&lab)).ok()?.contains(&id).then_some(())
    });
    disk.fill();
    lab.del("blue", &pod, "eth0").nothing();
    let configuration = lab.path().join("dpu-service.toml");
    let good = fs::read_to_string(&configuration).unwrap();
    let mut refused = 0;
    wait_for("dropped events", LIMIT, || {
        // The last page of the file may hold some more lines, so each refusal is a long one.
        refused += 1;
        let unknown = format!("{good}\n{}{refused} = 1\n", "x".repeat(2000));
        fs::write(&configuration, unknown).unwrap();
        let page = openmetrics::scrape(&lab.card.dpu)?;
        let name = "dpu_offload_service_events_dropped";
        openmetrics::value(&page, name, "_total", &[]).filter(|dropped| *dropped > 0.0)
    });
    let names_dropped = || {
        let answer = lab.operator().dpuctl(&["events"]);
        let note = String::from_utf8(answer.stderr).unwrap();
        (note.contains("Events dropped: ") && note.contains("EVENTS_NOT_WRITTEN")).then_some(())
    };
    wait_for("the dropped events in `dpuctl events`", LIMIT, names_dropped);
    wait_for("the condition", LIMIT, || lab.operator().fault("EVENTS_NOT_WRITTEN"));
    fs::write(&configuration, good).unwrap();
    let kinds_of_pod = kinds_about(&listed(&lab, &[]), &id);
    assert!(kinds_of_pod.contains(&"AttachmentReleasing".to_owned()), "{kinds_of_pod:?}");
    disk.empty();
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    assert!(!kinds(&listed(&lab, &[])).contains("EventsDamaged"));
    lab.assert_clean_slate();
    lab.service.stop();
}

#[test]
fn damaged_events_file_prevents_no_start() {
    let mut lab = Lab::start(&Settings::default());
    lab.service.stop();
    let good = fs::read_to_string(file(&lab)).unwrap();
    fs::write(file(&lab), good.replace("HostConnected", "Host\0onnected")).unwrap();
    lab.start_service();
    lab.wait_until_good();
    let events = listed(&lab, &[]);
    let counts = events.iter().fold(BTreeMap::<_, usize>::new(), |mut counts, event| {
        *counts.entry(event["kind"].as_str().unwrap()).or_default() += 1;
        counts
    });
    assert_eq!((counts["EventsDamaged"], counts["ServiceStopped"]), (1, 1), "{counts:?}");
    assert!(lab.path().join("service/events.jsonl.damaged").exists());
}

#[test]
fn changes_are_audited_across_a_crash() {
    let mut lab = Lab::start(&Settings::default());
    let path = lab.path().join("late.yaml");
    fs::write(&path, "name: late\nsubnets:\n- cidr: 10.9.0.0/28\n").unwrap();
    let file = path.to_str().unwrap();
    let _ = lab.operator().output(&["apply", "-f", file, "--reason", "ticket 7"]);
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    let audit = lab.operator().json(&["audit", "--object", "late"]);
    let [entry] = &audit["entries"].as_array().unwrap()[..] else { panic!("{audit}") };
    assert!(entry["author"].as_str().unwrap().starts_with("operator/"), "{entry}");
    assert_eq!((&entry["action"], &entry["reason"]), (&"ApplyNetwork".into(), &"ticket 7".into()));
    assert_eq!(entry["before"], "");
    assert!(entry["after"].as_str().unwrap().contains("10.9.0.0/28"), "{entry}");
    let applied = listed(&lab, &["--object", "late", "--type", "NetworkApplied"]);
    assert!(applied.iter().all(|event| event["author"] == entry["author"]), "{applied:?}");
}

#[test]
fn reload_is_audited_with_its_digests() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("dpu-service.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{good}\n# changed\n")).unwrap();
    let entry = wait_for("the reload in the audit", LIMIT, || {
        let audit = lab.operator().json(&["audit"]);
        let is_reload = |entry: &&Value| entry["before"] != "";
        audit["entries"].as_array()?.iter().find(is_reload).cloned()
    });
    assert_eq!(
        (&entry["author"], &entry["action"]),
        (&"configuration file".into(), &"LoadConfiguration".into())
    );
    assert_ne!(entry["before"], entry["after"]);
}

#[test]
fn ended_attachment_names_its_ender() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let result = lab.add("blue", &pod, "eth0").result();
    let address = result["ips"][0]["address"].as_str().unwrap();
    let id = only_attachment(&lab);
    let _ = lab.operator().output(&["release", &id, "--reason", "maintenance", "--yes"]);
    wait_for("the end of the attachment", LIMIT, || {
        lab.operator().get("attachments").is_empty().then_some(())
    });
    let check = |lab: &Lab| {
        let text = lab.operator().output(&["describe", "attachment", &id]);
        for reported in ["State:         Ended", "operator/", "maintenance", address, &id] {
            assert!(text.contains(reported), "{reported}: {text}");
        }
    };
    check(&lab);
    lab.service.stop();
    lab.start_service();
    lab.wait_until_good();
    check(&lab);
    let unknown = lab.operator().is_refused(&["describe", "attachment", "ffffffff"]);
    assert!(unknown.contains("ATTACHMENT_UNKNOWN"), "{unknown}");
}

#[test]
fn reloads_are_events_with_their_author() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("dpu-service.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{good}\nnonsense = 1\n")).unwrap();
    let of_kind =
        |kind: &str| wait_for(kind, LIMIT, || listed(&lab, &["--type", kind]).into_iter().next());
    let refused = of_kind("ConfigurationRefused");
    assert_eq!(refused["severity"], "EVENT_SEVERITY_WARNING");
    assert!(refused["message"].as_str().unwrap().contains("nonsense"), "{refused}");
    fs::write(&path, format!("{good}\n# changed\n")).unwrap();
    let kind = "ConfigurationReloaded";
    let reloaded = wait_for("the reload", LIMIT, || {
        Some(listed(&lab, &["--type", kind])).filter(|events| events.len() == 1)
    });
    assert!(reloaded.iter().all(|event| event["author"] == "configuration file"), "{reloaded:?}");
}
