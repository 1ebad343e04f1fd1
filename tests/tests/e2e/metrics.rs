//! Metrics: each is documented, and each changes with its subject.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use e2e::{
    Call, Lab, METRICS, Netns, Settings,
    openmetrics::{self, Exposition, Family},
    scenarios::floods::others_are_served,
    wait_for,
};
use mtls::Role;
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// Describes the running program only.
const BUILD: &str = "dpu_offload_build";

/// Describes abilities of card and kernel, which do not change.
const CAPABILITIES: &str = "dpu_offload_service_capability";

/// Changes with a full disk, which the tests of events cause.
const DROPPED: &str = "dpu_offload_service_events_dropped";

const NETWORK: &str = "name: late\nsubnets:\n  - cidr: 10.9.0.0/28\n";

fn settings() -> Settings {
    Settings {
        has_metrics: true,
        has_attachment_metrics: true,
        cool_down: 1,
        ..Settings::default()
    }
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    Service,
    Agent,
}
use Program::{Agent, Service};

/// A lab with everything that was scraped from it.
struct Watched {
    lab: Lab,
    seen: RefCell<Vec<(Program, Exposition)>>,
}

impl Watched {
    fn page(&self, program: Program) -> Option<Exposition> {
        let page = openmetrics::scrape(match program {
            Service => &self.lab.card.dpu,
            Agent => &self.lab.card.host,
        });
        self.seen.borrow_mut().extend(page.clone().map(|page| (program, page)));
        page
    }

    fn value(&self, program: Program, metric: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let suffix = if metric.ends_with("_total") { "_total" } else { "" };
        let family = format!("dpu_offload_{}", metric.trim_end_matches("_total"));
        openmetrics::value(&self.page(program)?, &family, suffix, labels)
    }

    /// Waits until the metric has this value.
    fn expect(&self, program: Program, metric: &str, labels: &[(&str, &str)], value: f64) {
        wait_for(&format!("{metric} {labels:?} of {value}"), LIMIT, || {
            (self.value(program, metric, labels) == Some(value)).then_some(())
        });
    }

    /// Waits until the condition is false for this object.
    fn is_false(&self, kind: &str, object: &str) {
        let labels = [("type", kind), ("object", object), ("status", "false")];
        self.expect(Service, "service_condition", &labels, 1.0);
    }

    /// Waits until the condition is true.
    fn is_true(&self, kind: &str) {
        let labels = [("type", kind), ("object", "all"), ("status", "true")];
        self.expect(Service, "service_condition", &labels, 1.0);
    }

    fn calls(&self, program: Program, what: &str, outcome: &str, number: f64) {
        let (metric, label) = match program {
            Service => ("service_calls_total", "method"),
            Agent => ("agent_calls_total", "verb"),
        };
        self.expect(program, metric, &[(label, what), ("outcome", outcome)], number);
    }

    /// Families by documented name, with all samples seen so far.
    fn families(&self) -> BTreeMap<String, Family> {
        let mut families = BTreeMap::<_, Family>::new();
        let seen = self.seen.borrow();
        for (name, family) in seen.iter().flat_map(|(_, page)| page) {
            let all = families.entry(documented_name(name, family)).or_insert(family.clone());
            all.samples.extend(family.samples.clone());
        }
        families
    }

    /// Families that never changed.
    fn unmoved(&self) -> BTreeSet<(Program, String)> {
        let mut all: BTreeMap<_, Vec<Family>> = BTreeMap::new();
        for (program, page) in &*self.seen.borrow() {
            for (name, family) in page {
                all.entry((*program, name.clone())).or_default().push(family.clone());
            }
        }
        all.retain(|_, families| families.iter().all(|it| *it == families[0]));
        all.into_keys().collect()
    }
}

fn documented_name(name: &str, family: &Family) -> String {
    let suffix = match family.kind.as_str() {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    };
    format!("{name}{suffix}")
}

/// Labels whose values are listed in docs/METRICS.md.
const LISTED: [&str; 5] = ["cause", "certificate", "phase", "state", "verb"];

/// A metric's row in docs/METRICS.md.
#[derive(Debug)]
struct Row {
    labels: BTreeSet<String>,
    text: String,
}

fn documented() -> BTreeMap<String, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/METRICS.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `dpu_offload_"));
    rows.map(|row| {
        let (name, rest) = row.split_once('`').unwrap();
        let (labels, text) = rest.trim_start_matches(" | ").split_once('|').unwrap();
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (format!("dpu_offload_{name}"), Row { labels, text: text.to_owned() })
    })
    .collect()
}

/// Fails if a value of a listed label is missing in its list. Durations of calls belong to the metric in the row
/// before.
fn assert_values_are_listed(families: &BTreeMap<String, Family>) {
    let rows = documented();
    for (name, family) in
        families.iter().filter(|(name, _)| !name.ends_with("_call_duration_seconds"))
    {
        let labels = family.samples.keys().flat_map(|sample| &sample.labels);
        for (label, value) in labels.filter(|(label, _)| LISTED.contains(&label.as_str())) {
            let is_listed = rows[name].text.contains(&format!("`{value}`"));
            assert!(is_listed, "{label}=\"{value}\" is not in the row of {name}");
        }
    }
}

/// Metrics that any document names.
fn named() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let texts = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<_> = texts.filter_map(|path| fs::read_to_string(path).ok()).collect();
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let rests = texts.iter().flat_map(|text| text.split("dpu_offload_").skip(1));
    rests
        .map(|rest| format!("dpu_offload_{}", rest.split(|c| !is_part(c)).next().unwrap()))
        .collect()
}

fn labels(family: &Family) -> BTreeSet<String> {
    let all = family.samples.keys().flat_map(|sample| sample.labels.keys().cloned());
    all.filter(|label| label != "le").collect()
}

fn pods_come_and_go(it: &Watched, pod: &Netns) {
    let of_pool = |state| [("pool", "default"), ("state", state)];
    it.expect(Service, "service_ready", &[], 1.0);
    it.expect(Service, "service_journal_writable", &[], 1.0);
    it.expect(Service, "service_host_connected", &[("host", "node-1")], 1.0);
    it.expect(Service, "service_vfs", &of_pool("free"), 4.0);
    it.expect(Agent, "agent_session_connected", &[], 1.0);
    it.expect(Agent, "agent_vfs", &[("state", "free")], 4.0);
    let commits = it.value(Service, "service_journal_commits_total", &[]).unwrap();

    let _ = it.lab.add("blue", pod, "eth0").result();
    it.expect(Service, "service_attachments", &[("state", "attached")], 1.0);
    it.expect(Service, "service_vfs", &of_pool("in_use"), 1.0);
    let lease = [("network", "blue"), ("subnet", "10.1.0.0/16"), ("state", "held")];
    it.expect(Service, "service_addresses", &lease, 1.0);
    it.calls(Service, "WorkloadNetwork/Attach", "OK", 1.0);
    it.calls(Agent, "ADD", "OK", 1.0);
    it.expect(Agent, "agent_records", &[("phase", "live")], 1.0);
    it.expect(Agent, "agent_vfs", &[("state", "in_use")], 1.0);
    it.expect(Agent, "agent_vfs", &[("state", "free")], 3.0);
    assert!(it.value(Service, "service_journal_commits_total", &[]).unwrap() > commits);
    expect_each_phase(it, Agent, "agent_attach");
    expect_each_phase(it, Service, "service_attach");

    it.lab.add("none-such", &Netns::new("other"), "eth0").fails(101, &[]);
    it.calls(Service, "WorkloadNetwork/Attach", "NETWORK_UNKNOWN", 1.0);
    it.calls(Agent, "ADD", "NETWORK_UNKNOWN", 1.0);
    let page = it.page(Agent).unwrap();
    let add = [("verb", "ADD")];
    let took = |suffix| {
        openmetrics::value(&page, "dpu_offload_agent_call_duration_seconds", suffix, &add).unwrap()
    };
    assert_eq!(took("_count"), 2.0);
    assert!(took("_sum") > 0.0 && took("_sum") < LIMIT.as_secs_f64());
}

/// Waits until each phase has a duration.
fn expect_each_phase(it: &Watched, program: Program, scope: &str) {
    let name = format!("dpu_offload_{scope}_phase_duration_seconds");
    wait_for(&format!("all phases of {scope}"), LIMIT, || {
        let family = it.page(program)?.remove(&name)?;
        let mut ends =
            family.samples.iter().filter(|(sample, _)| !sample.name.ends_with("_bucket"));
        ends.all(|(_, value)| *value > 0.0).then_some(())
    });
}

fn certificates_wear_out_and_are_renewed(it: &Watched) {
    let is_due = |program| {
        let own = [("certificate", "own")];
        let metric = "certificate_warning_timestamp_seconds";
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        it.value(program, metric, &own).unwrap() < now
    };
    let ends = |program, whose| {
        let metric = "certificate_not_after_timestamp_seconds";
        it.value(program, metric, &[("certificate", whose)]).unwrap()
    };
    let before = [Service, Agent].map(|program| ends(program, "own"));
    assert!(!is_due(Service) && !is_due(Agent));
    it.lab.pki.issue_expiring_soon(Role::Dpu, "dpu-1");
    it.lab.pki.issue_expiring_soon(Role::Host, "node-1");
    wait_for("both to be due", LIMIT, || (is_due(Service) && is_due(Agent)).then_some(()));
    it.is_false("CertificatesValid", "dpu");
    it.lab.pki.issue("dpu", "dpu-1");
    it.lab.pki.issue("host", "node-1");
    wait_for("neither to be due", LIMIT, || (!is_due(Service) && !is_due(Agent)).then_some(()));
    it.is_true("CertificatesValid");
    let after = [Service, Agent].map(|program| ends(program, "own"));
    assert!(before.iter().zip(&after).all(|(before, after)| before <= after));
    assert!(ends(Service, "ca") > after[0]);
}

fn the_card_is_pulled_and_plugged_in(it: &mut Watched) {
    it.lab.card.program.stop();
    it.lab.agent.signal(Signal::SIGHUP);
    it.expect(Agent, "agent_broken_attachments", &[], 1.0);
    it.is_false("PodsConnected", "host/node-1");
    it.lab.reset_card();
    it.lab.wait_until_good();
    it.expect(Agent, "agent_broken_attachments", &[], 0.0);
    it.is_true("PodsConnected");
    assert!(it.value(Agent, "agent_repairs_total", &[]).unwrap() >= 1.0);
    it.expect(Service, "service_attachments", &[("state", "attached")], 1.0);
}

fn the_dpu_is_away_and_then_without_its_journal(it: &mut Watched, pod: &Netns) {
    it.lab.service.stop();
    it.expect(Agent, "agent_session_connected", &[], 0.0);
    it.lab.del("blue", pod, "eth0").nothing();
    it.expect(Agent, "agent_pending_detaches", &[], 1.0);
    it.expect(Agent, "agent_records", &[("phase", "releasing")], 1.0);

    let journal = it.lab.path().join("service/journal.redb");
    let good = fs::read(&journal).unwrap();
    fs::write(&journal, "no journal").unwrap();
    it.lab.start_service();
    it.expect(Service, "service_ready", &[], 0.0);
    it.expect(Service, "service_journal_writable", &[], 0.0);
    it.is_false("Ready", "dpu");
    restore(&journal, &good);
    it.lab.wait_until_good();
    it.expect(Service, "service_ready", &[], 1.0);
    it.expect(Agent, "agent_pending_detaches", &[], 0.0);
    it.expect(Agent, "agent_session_connected", &[], 1.0);
    it.expect(Service, "service_attachments", &[], 0.0);
}

fn restore(journal: &Path, good: &[u8]) {
    let restored: PathBuf = journal.with_extension("restored");
    fs::write(&restored, good).unwrap();
    fs::rename(restored, journal).unwrap();
}

fn the_agent_is_away(it: &mut Watched) {
    it.lab.agent.stop();
    it.expect(Service, "service_host_connected", &[("host", "node-1")], 0.0);
    it.lab.start_agent();
    it.lab.wait_until_good();
}

fn an_attachment_is_given_back(it: &Watched) {
    let pod = Netns::new("brief");
    let _ = it.lab.add("blue", &pod, "eth0").result();
    it.lab.del("blue", &pod, "eth0").nothing();
    expect_each_phase(it, Agent, "agent_detach");
    expect_each_phase(it, Service, "service_detach");
}

#[test]
fn every_metric_is_documented_and_changes() {
    let mut it = Watched { lab: Lab::start(&settings()), seen: RefCell::default() };
    let pod = Netns::new("pod");
    pods_come_and_go(&it, &pod);
    let network = it.lab.path().join("late.yaml");
    fs::write(&network, NETWORK).unwrap();
    let _ = it.lab.operator().output(&["apply", "-f", network.to_str().unwrap()]);
    it.expect(Service, "service_address_capacity", &[("network", "late")], 14.0);
    certificates_wear_out_and_are_renewed(&it);
    the_card_is_pulled_and_plugged_in(&mut it);
    the_dpu_is_away_and_then_without_its_journal(&mut it, &pod);
    the_agent_is_away(&mut it);
    an_attachment_is_given_back(&it);
    it.lab.assert_clean_slate();

    let steady = [(Service, BUILD), (Service, CAPABILITIES), (Service, DROPPED), (Agent, BUILD)];
    let steady = steady.map(|(program, name)| (program, name.to_owned()));
    assert_eq!(it.unmoved(), BTreeSet::from(steady));
    let found = it.families();
    let labels_of = found.iter().map(|(name, family)| (name.clone(), labels(family)));
    let rows = documented().into_iter().map(|(name, row)| (name, row.labels));
    assert_eq!(labels_of.collect::<BTreeMap<_, _>>(), rows.collect());
    assert_values_are_listed(&found);
    assert_eq!(named(), documented().into_keys().collect(), "alerts are of metrics that exist");
}

/// Clients that wait for the metrics do not slow pods.
#[test]
fn crowded_metrics_do_not_block_pods() {
    let lab = Lab::start(&settings());
    let connect = |netns: &Netns| {
        let one = || {
            let mut stream = TcpStream::connect(METRICS).unwrap();
            // The earliest connections may be closed already.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ");
            stream
        };
        netns.run(|| (0..200).map(|_| one()).collect::<Vec<_>>())
    };
    let crowds = [connect(&lab.card.host), connect(&lab.card.dpu)];
    assert!(openmetrics::scrape(&lab.card.host).is_some());
    assert!(openmetrics::scrape(&lab.card.dpu).is_some());
    assert!(others_are_served(&lab) > 0);
    drop(crowds);
    let post = "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n";
    for netns in [&lab.card.host, &lab.card.dpu] {
        assert!(openmetrics::ask(netns, post).unwrap().starts_with("HTTP/1.1 405 "));
    }
    lab.assert_clean_slate();
}

/// Metrics that cannot be served do not delay pods, and are served once they can be.
#[test]
fn taken_metrics_address_is_reported_and_retried() {
    let mut lab = Lab::start(&Settings::default());
    lab.service.stop();
    lab.agent.stop();
    let taken = [&lab.card.dpu, &lab.card.host]
        .map(|netns| netns.run(|| TcpListener::bind(METRICS).unwrap()));
    lab.configure_service(&settings());
    let file = lab.path().join("host-shim.toml");
    fs::write(file, settings().agent_file(lab.path(), &lab.pki)).unwrap();
    lab.start_service();
    lab.start_agent();
    lab.wait_until_good();
    assert!(others_are_served(&lab) > 0);
    for log in [lab.service.log(), lab.agent.log()] {
        for named in ["cannot serve metrics on this address", "127.0.0.1:9464", "`metrics.listen`"]
        {
            assert!(log.contains(named), "{named}: {log}");
        }
    }
    drop(taken);
    for netns in [&lab.card.dpu, &lab.card.host] {
        wait_for("metrics at the address that was taken", LIMIT, || openmetrics::scrape(netns));
    }
    lab.assert_clean_slate();
}

#[test]
fn calls_of_every_verb_are_counted() {
    let it = Watched { lab: Lab::start(&settings()), seen: RefCell::default() };
    let pod = Netns::new("pod");
    let result = it.lab.add("blue", &pod, "eth0").result();
    let mut configuration = it.lab.configuration("blue");
    configuration["prevResult"] = result;
    let check = Call::new("CHECK", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    it.lab.execute(&check).nothing();
    configuration["cni.dev/valid-attachments"] = serde_json::json!([]);
    it.lab.execute(&Call::new("GC", &configuration)).nothing();
    it.lab.del("blue", &pod, "eth0").nothing();
    for verb in ["ADD", "CHECK", "GC", "DEL"] {
        it.calls(Agent, verb, "OK", 1.0);
    }
    let page = it.page(Agent).unwrap();
    let family = "dpu_offload_agent_calls";
    let all = |labels: &[_]| openmetrics::value(&page, family, "_total", labels).unwrap();
    assert!(all(&[("verb", "STATUS"), ("outcome", "OK")]) >= 1.0);
    assert_eq!(all(&[("verb", "other")]), 0.0);
}
