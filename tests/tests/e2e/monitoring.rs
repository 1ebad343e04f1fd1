//! The alerts of configs/prometheus and the dashboard of configs/grafana: valid for Prometheus' own programs, and based
//! on existing metrics.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use e2e::{Call, Lab, METRICS, Netns, Settings, openmetrics, run, wait_for};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Address of the DPU's metrics on the host: the DPU's end of the management link.
const METRICS_OF_DPU: &str = "192.168.100.2:9464";

const PROMETHEUS: &str = "127.0.0.1:9090";

const RULES: &str = "prometheus/dpu-offload.rules.yml";
const TESTS: &str = "prometheus/dpu-offload.test.yml";
const DASHBOARD: &str = "grafana/dpu-offload.json";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(name).canonicalize().unwrap()
}

fn yaml(name: &str) -> Value {
    serde_norway::from_str(&fs::read_to_string(path(name)).unwrap()).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(path(DASHBOARD)).unwrap()).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// A program of Prometheus.
fn debians(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/prometheus");
    let output = run(&mut Command::new(script));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Path::new(String::from_utf8(output.stdout).unwrap().trim()).join(name)
}

fn alerts(rules: &Value) -> impl Iterator<Item = &Value> {
    list(rules, "groups").flat_map(|group| list(group, "rules"))
}

/// The panels' names, queries and legends.
fn questions(dashboard: &Value) -> impl Iterator<Item = (&str, String, &str)> {
    list(dashboard, "panels").flat_map(|panel| {
        list(panel, "targets").map(|target| {
            let question = text(target, "expr");
            let question = question.replace("$__rate_interval", "1m").replace("$instance", ".*");
            (text(panel, "title"), question, text(target, "legendFormat"))
        })
    })
}

#[test]
fn alerts_are_valid_and_fire() {
    for (command, name) in [("check", RULES), ("test", TESTS)] {
        let output =
            run(Command::new(debians("promtool")).args([command, "rules"]).arg(path(name)));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let (rules, tests) = (yaml(RULES), yaml(TESTS));
    let tested = list(&tests, "tests").flat_map(|test| list(test, "alert_rule_test"));
    let fires = |test: &&Value| list(test, "exp_alerts").next().is_some();
    let fired: BTreeSet<_> = tested.filter(fires).map(|test| text(test, "alertname")).collect();
    assert_eq!(fired, alerts(&rules).map(|rule| text(rule, "alert")).collect());
}

#[test]
fn panels_have_places_and_chosen_source() {
    let dashboard = dashboard();
    let variables = list(&dashboard["templating"], "list").map(|it| text(it, "name"));
    assert_eq!(variables.collect::<Vec<_>>(), ["datasource", "instance"]);
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard, "panels") {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        let mut cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(cells.all(|cell| taken.insert(cell)), "it lies upon another: {panel}");
        let asking = list(panel, "targets").chain((panel["type"] != "row").then_some(panel));
        for asking in asking {
            assert_eq!(asking["datasource"]["uid"], "${datasource}", "{asking}");
        }
    }
}

/// A Prometheus that scrapes a lab's programs with the shipped rules.
struct Prometheus<'a> {
    lab: &'a Lab,
    child: Child,
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Prometheus<'a> {
    fn start(lab: &'a Lab) -> Self {
        let configuration = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}\n\
             rule_files: [{:?}]\n\
             scrape_configs: [{{job_name: a, static_configs: [{{targets: [{METRICS:?}, {METRICS_OF_DPU:?}]}}]}}]\n",
            path(RULES)
        );
        let file = lab.path().join("prometheus.yml");
        fs::write(&file, configuration).unwrap();
        let mut command = lab.card.host.command(debians("prometheus"));
        command.arg("--config.file").arg(file);
        command.arg("--storage.tsdb.path").arg(lab.path().join("prometheus"));
        command.arg("--web.listen-address").arg(PROMETHEUS);
        let log = fs::File::create(lab.path().join("prometheus.log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { lab, child }
    }

    /// An answer of its API. `None`: it does not answer yet.
    fn get(&self, what: &str) -> Option<Value> {
        let request = format!("GET /api/v1/{what} HTTP/1.0\r\nHost: a\r\n\r\n");
        let answer = openmetrics::ask_at(&self.lab.card.host, PROMETHEUS, &request).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let mut reported: Value = serde_json::from_str(body).ok()?;
        assert_eq!(reported["status"], "success", "{what}: {reported}");
        Some(reported["data"].take())
    }

    /// Labels of all series in the answer to a query.
    fn answers(&self, question: &str) -> Vec<Value> {
        let reported = self.get(&format!("query?query={}", encoded(question))).unwrap_or_default();
        list(&reported, "result").map(|series| series["metric"].clone()).collect()
    }

    /// Waits for an answer with series.
    fn some_answers(&self, question: &str) -> Vec<Value> {
        wait_for(&format!("an answer to {question}"), LIMIT, || {
            Some(self.answers(question)).filter(|answers| !answers.is_empty())
        })
    }

    fn wait_until_all_rules_are_good(&self) {
        wait_for("all rules to be evaluated", LIMIT, || {
            let reported = self.get("rules")?;
            let mut rules = alerts(&reported).peekable();
            rules.peek()?;
            let mut is_good = |rule: &Value| {
                assert_ne!(rule["health"], "err", "{rule}");
                rule["health"] == "ok"
            };
            rules.all(&mut is_good).then_some(())
        });
    }
}

/// URL encoding.
fn encoded(question: &str) -> String {
    question.bytes().fold(String::new(), |mut all, byte| {
        match byte.is_ascii_alphanumeric() {
            true => all.push(byte.into()),
            false => write!(all, "%{byte:02X}").unwrap(),
        }
        all
    })
}

/// The product's metrics in an expression, with their label conditions.
fn selectors(expression: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let selector = |(at, _): (usize, &str)| {
        let rest = &expression[at..];
        let (name, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        let end = after.starts_with('{').then(|| after.find('}').unwrap() + 1);
        format!("{name}{}", &after[..end.unwrap_or_default()])
    };
    expression.match_indices("dpu_offload_").map(selector).collect()
}

/// Labels that a text shows, such as `{{ $labels.host }}` or `{{host}}`.
fn shown(text: &str) -> BTreeSet<&str> {
    let inner = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let labels = inner.map(|inner| inner.trim().trim_start_matches("$labels."));
    // Anything that is not a label still begins with a dollar, such as the value.
    labels.filter(|label| !label.starts_with('$')).collect()
}

fn has_all(series: &Value, labels: &BTreeSet<&str>) -> bool {
    labels.iter().all(|label| !series[label].is_null())
}

/// All metrics in rules and panels exist, with all labels that they show.
fn assert_all_is_there(prometheus: &Prometheus<'_>) {
    let (rules, dashboard) = (yaml(RULES), dashboard());
    for rule in alerts(&rules) {
        let labels = shown(text(&rule["annotations"], "summary"));
        let selectors = selectors(text(rule, "expr"));
        let found: Vec<_> = selectors.iter().map(|one| prometheus.some_answers(one)).collect();
        assert!(has_all(&found[0][0], &labels), "{rule}: {labels:?} of {found:?}");
    }
    for (panel, question, legend) in questions(&dashboard) {
        for selector in selectors(&question) {
            prometheus.some_answers(&selector);
        }
        let answers = prometheus.some_answers(&question);
        let is_named = answers.iter().all(|series| has_all(series, &shown(legend)));
        assert!(is_named, "{panel}: {legend} of {answers:?}");
    }
}

/// The series in the alerts' tests have only labels that the programs' series have.
fn assert_tests_are_of_such_series(prometheus: &Prometheus<'_>) {
    let tests = yaml(TESTS);
    let series = list(&tests, "tests").flat_map(|test| list(test, "input_series"));
    let series: BTreeSet<_> = series.map(|series| text(series, "series")).collect();
    for one in series {
        let (name, labels) = one.split_once('{').unwrap();
        let labels = labels.split(',').map(|label| label.split('=').next().unwrap());
        let real = &prometheus.some_answers(name)[0];
        assert!(has_all(real, &labels.collect()), "{one} is tested, and there is {real}");
    }
}

/// A lab whose DPU can be scraped from its host.
fn lab() -> Lab {
    let settings =
        Settings { has_metrics: true, has_attachment_metrics: true, ..Settings::default() };
    let mut lab = Lab::start(&settings);
    lab.service.stop();
    let file = lab.path().join("dpu-service.toml");
    let text = fs::read_to_string(&file).unwrap().replace(METRICS, METRICS_OF_DPU);
    fs::write(file, text).unwrap();
    lab.start_service();
    lab.wait_until_good();
    lab
}

#[test]
fn alert_and_dashboard_metrics_exist() {
    let lab = lab();
    let pod = Netns::new("pod");
    let call = Call::new("ADD", &lab.configuration("blue"));
    let call = call.of(pod.name(), Some(&pod.path()), "eth0");
    let names = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart;K8S_POD_UID=1-2";
    let _ = lab.execute(&call.with("CNI_ARGS", names)).result();
    lab.add("none-such", &Netns::new("other"), "eth0").fails(101, &[]);
    let prometheus = Prometheus::start(&lab);
    prometheus.some_answers("count(up == 1) == 2");
    prometheus.wait_until_all_rules_are_good();
    assert_all_is_there(&prometheus);
    assert_tests_are_of_such_series(&prometheus);
    assert_eq!(prometheus.answers("ALERTS"), [Value::Null; 0]);
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
    lab.service.signal(Signal::SIGTERM);
    prometheus.some_answers(r#"ALERTS{alertname="DpuAway"}"#);
}
