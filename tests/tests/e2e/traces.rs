//! Traces: what a collector receives about a pod's attach, from the runtime's span to both programs' work.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    sync::Arc,
    time::Duration,
};

use e2e::{Answer, Call, Lab, Netns, Settings, Stopwatch, wait_for};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

const LIMIT: Duration = Duration::from_secs(60);
/// Address of the collector in each program's namespace.
const ADDRESS: &str = "127.0.0.1:4317";
const SECTION: &str = "[tracing]\notlp_endpoint = \"http://127.0.0.1:4317\"\n";
/// Log message of a failed export, once for each outage.
const AWAY: &str = "spans can't be exported";

/// Timeout of the programs for a collector's answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

fn settings(service: &str, agent: &str) -> Settings {
    Settings { service: service.into(), agent: agent.into(), ..Settings::default() }
}

fn call(lab: &Lab, verb: &str, pod: &Netns, traceparent: &str) -> Answer {
    call_for(lab, verb, "blue", pod, traceparent)
}

fn call_for(lab: &Lab, verb: &str, network: &str, pod: &Netns, traceparent: &str) -> Answer {
    let call = Call::new(verb, &lab.configuration(network));
    let call = call.of(pod.name(), Some(&pod.path()), "eth0");
    lab.execute(&call.with("TRACEPARENT", traceparent))
}

/// A span with its program.
#[derive(Clone, Debug)]
struct ProgramSpan {
    program: String,
    span: Span,
}

impl ProgramSpan {
    fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    fn attribute(&self, key: &str) -> Option<String> {
        text_of(&self.span.attributes, key)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// A collector in the namespaces of both programs, until drop.
struct Collector {
    reported: Arc<Mutex<Vec<ProgramSpan>>>,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Collected(Arc<Mutex<Vec<ProgramSpan>>>);

#[tonic::async_trait]
impl TraceService for Collected {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource_spans in request.into_inner().resource_spans {
            let resource = resource_spans.resource.unwrap_or_default();
            let program = text_of(&resource.attributes, "service.name").unwrap();
            let spans = resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let reported = spans.map(|span| ProgramSpan { program: program.clone(), span });
            self.0.lock().extend(reported);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Listens where the programs in this namespace expect a collector.
fn listener(netns: &Netns) -> TcpListener {
    netns.run(|| TcpListener::bind(ADDRESS).unwrap())
}

/// Serves in the namespaces of both programs, until the runtime is dropped.
fn serve(lab: &Lab, service: &(impl TraceService + Clone)) -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for netns in [&lab.card.host, &lab.card.dpu] {
        let listener = listener(netns);
        listener.set_nonblocking(true).unwrap();
        let service = TraceServiceServer::new(service.clone());
        runtime.spawn(async move {
            let connections = tokio::net::TcpListener::from_std(listener).unwrap();
            let connections = TcpListenerStream::new(connections);
            Server::builder().add_service(service).serve_with_incoming(connections).await
        });
    }
    runtime
}

/// A collector that refuses all spans, and counts the exports of each program.
#[derive(Clone, Default)]
struct RefusingCollector(Arc<Mutex<BTreeMap<String, usize>>>);

impl RefusingCollector {
    /// Number of refused exports of the program with the fewest.
    fn refused(&self) -> usize {
        let refused = self.0.lock();
        let of = |program| refused.get(program).copied().unwrap_or_default();
        of("host-shim").min(of("dpu-service"))
    }
}

#[tonic::async_trait]
impl TraceService for RefusingCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resource = request.into_inner().resource_spans[0].resource.clone().unwrap();
        let program = text_of(&resource.attributes, "service.name").unwrap();
        *self.0.lock().entry(program).or_default() += 1;
        Err(Status::internal("no room"))
    }
}

impl Collector {
    fn listen(lab: &Lab) -> Self {
        let reported = Arc::<Mutex<Vec<_>>>::default();
        let runtime = serve(lab, &Collected(Arc::clone(&reported)));
        Self { reported, _runtime: runtime }
    }

    fn reported(&self) -> Vec<ProgramSpan> {
        self.reported.lock().clone()
    }

    /// Waits for the only span with this name.
    fn expect(&self, program: &str, name: &str) -> ProgramSpan {
        self.expect_all(program, name, 1).remove(0)
    }

    /// Waits for this number of spans with this name.
    fn expect_all(&self, program: &str, name: &str, count: usize) -> Vec<ProgramSpan> {
        let found = || {
            let reported = self.reported().into_iter();
            let found: Vec<_> = reported
                .filter(|reported| reported.program == program && reported.span.name == name)
                .collect();
            assert!(found.len() <= count, "{found:?}");
            (found.len() == count).then_some(found)
        };
        wait_for(&format!("{name} of {program}"), LIMIT, found)
    }

    /// Names of all spans below one, of both programs. A parent is exported after its children.
    fn names_below(&self, top: &ProgramSpan) -> BTreeSet<String> {
        let reported = self.reported();
        let (mut within, mut names) = (BTreeSet::from([top.id()]), BTreeSet::new());
        loop {
            let is_new = |reported: &&ProgramSpan| {
                within.contains(&reported.parent()) && !within.contains(&reported.id())
            };
            let new: Vec<_> = reported.iter().filter(is_new).collect();
            if new.is_empty() {
                return names;
            }
            names.extend(new.iter().map(|reported| reported.span.name.clone()));
            within.extend(new.into_iter().map(ProgramSpan::id));
        }
    }
}

/// Asserts that the agent's span continues the caller's trace, the service's spans continue the agent's, and no other
/// trace exists. Returns the agent's span and the names below the service's.
fn assert_one_trace(
    collector: &Collector,
    verb: &str,
    call: &str,
    calls: usize,
) -> (ProgramSpan, BTreeSet<String>) {
    let served = collector.expect_all("dpu-service", &format!("WorkloadNetwork/{call}"), calls);
    let asked = collector.expect_all("host-shim", call, calls);
    let entry = collector.expect("host-shim", verb);
    assert_eq!((entry.parent().as_str(), entry.span.kind()), (CALLER, SpanKind::Server));
    assert!(asked.iter().all(|reported| reported.span.kind() == SpanKind::Client), "{asked:?}");
    assert!(served.iter().all(|reported| reported.span.kind() == SpanKind::Server), "{served:?}");
    let parents: BTreeSet<_> = served.iter().map(ProgramSpan::parent).collect();
    assert_eq!(parents, asked.iter().map(ProgramSpan::id).collect());
    let reported = collector.reported();
    let ids: BTreeSet<_> = reported.iter().map(ProgramSpan::id).collect();
    for one in &reported {
        assert_eq!(one.trace(), TRACE, "{one:?}");
        assert!(one.parent() == CALLER || ids.contains(&one.parent()), "{one:?}");
    }
    let below = served.iter().flat_map(|reported| collector.names_below(reported)).collect();
    (entry, below)
}

#[track_caller]
fn assert_names(found: &BTreeSet<String>, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|name| !found.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {found:?}");
}

#[test]
fn attachment_is_one_trace() {
    let lab = Lab::start(&settings(SECTION, SECTION));
    let pod = Netns::new("pod");
    {
        let collector = Collector::listen(&lab);
        drop(call(&lab, "ADD", &pod, &traceparent("01")).result());
        let (entry, of_service) = assert_one_trace(&collector, "ADD", "Attach", 1);
        let of_agents = [
            "speculative_move",
            "speculative_record",
            "record",
            "configure",
            "carrier",
            "confirm",
            "netlink",
        ];
        assert_names(&collector.names_below(&entry), &of_agents);
        let of_services = ["locks", "reserve", "journal", "program", "representor-up", "netlink"];
        assert_names(&of_service, &of_services);
        assert_eq!(entry.attribute("attachment").unwrap(), format!("{}/eth0", pod.name()));
    }
    lab.assert_invariants();
    let collector = Collector::listen(&lab);
    call(&lab, "DEL", &pod, &traceparent("01")).nothing();
    let behind = collector.expect("host-shim", "afterwards");
    let (entry, of_service) = assert_one_trace(&collector, "DEL", "Detach", 2);
    assert_names(&collector.names_below(&entry), &["move_back", "rpc", "Detach", "netlink"]);
    assert_eq!(behind.parent(), entry.id());
    assert!(entry.span.end_time_unix_nano < behind.span.end_time_unix_nano, "who asks waits");
    assert_names(&collector.names_below(&behind), &["verify", "Detach"]);
    assert_names(&of_service, &["locks", "journal", "unprogram", "representor-up", "netlink"]);
    lab.assert_clean_slate();
}

#[test]
fn agent_starts_missing_traces() {
    let lab = Lab::start(&settings(SECTION, SECTION));
    let collector = Collector::listen(&lab);
    let pod = Netns::new("pod");
    lab.status().nothing();
    // The parent is invalid: its version is missing.
    let answer = call_for(&lab, "ADD", "nowhere", &pod, &format!("{TRACE}-{CALLER}-01"));
    answer.fails(101, &["nowhere", "NETWORK_UNKNOWN"]);
    let served = collector.expect("dpu-service", "WorkloadNetwork/Attach");
    let entry = collector.expect("host-shim", "ADD");
    assert_eq!(entry.parent(), "");
    assert_ne!(entry.trace(), TRACE);
    assert_eq!(served.trace(), entry.trace());
    for one in [&entry, &served] {
        let status = one.span.status.clone().unwrap();
        assert_eq!(status.code(), StatusCode::Error, "{one:?}");
        assert!(status.message.starts_with("NETWORK_UNKNOWN"), "{}", status.message);
    }
    let traces: BTreeSet<_> = collector.reported().iter().map(ProgramSpan::trace).collect();
    assert_eq!(traces.len(), 1, "what nobody has attached is in no trace");
}

#[test]
fn unrecorded_runtime_trace_stays_unrecorded() {
    let lab = Lab::start(&settings(SECTION, SECTION));
    let collector = Collector::listen(&lab);
    let (quiet, loud) = (Netns::new("pod"), Netns::new("pod"));
    drop(call(&lab, "ADD", &quiet, &traceparent("00")).result());
    drop(call(&lab, "ADD", &loud, &traceparent("01")).result());
    let (entry, _) = assert_one_trace(&collector, "ADD", "Attach", 1);
    assert_eq!(entry.attribute("attachment").unwrap(), format!("{}/eth0", loud.name()));
}

#[test]
fn agent_without_export_passes_trace_on() {
    let lab = Lab::start(&settings(SECTION, ""));
    let collector = Collector::listen(&lab);
    let pod = Netns::new("pod");
    drop(call(&lab, "ADD", &pod, &traceparent("01")).result());
    let served = collector.expect("dpu-service", "WorkloadNetwork/Attach");
    assert_eq!((served.trace().as_str(), served.parent().as_str()), (TRACE, CALLER));
    assert!(collector.reported().iter().all(|reported| reported.program == "dpu-service"));
}

#[test]
fn missing_collector_costs_no_add() {
    let mut lab = Lab::start(&settings(SECTION, SECTION));
    let pod = Netns::new("pod");
    let reported = |lab: &Lab, words| {
        [lab.agent.log(), lab.service.log()].map(|log| log.matches(words).count())
    };
    let attach_and_detach = |lab: &Lab| {
        drop(call(lab, "ADD", &pod, &traceparent("01")).result());
        call(lab, "DEL", &pod, &traceparent("01")).nothing();
    };
    attach_and_detach(&lab);
    wait_for("word of it", LIMIT, || (reported(&lab, AWAY) == [1, 1]).then_some(()));
    let refusing = RefusingCollector::default();
    let serving = serve(&lab, &refusing);
    wait_for("three more failed exports of each program", LIMIT, || {
        attach_and_detach(&lab);
        (refusing.refused() > 3).then_some(())
    });
    drop(serving);
    assert_eq!(reported(&lab, AWAY), [1, 1], "one line for all failures");
    let collector = Collector::listen(&lab);
    let is_back = || {
        attach_and_detach(&lab);
        (reported(&lab, "spans are exported again") == [1, 1]).then_some(())
    };
    wait_for("the collector", LIMIT, is_back);
    assert_eq!(reported(&lab, AWAY), [1, 1], "once is enough");
    assert!(!collector.reported().is_empty());
    drop(collector);
    // A collector that accepts connections and reads nothing.
    let silent = [&lab.card.host, &lab.card.dpu].map(|netns| listener(netns));
    attach_and_detach(&lab);
    let connections = silent.map(|listener| listener.accept().unwrap());
    let began = Stopwatch::start();
    attach_and_detach(&lab);
    assert!(began.unstalled() < EXPORT_TIMEOUT, "an ADD or DEL waited for the collector");
    let began = Stopwatch::start();
    assert!(lab.agent.stop().success() && lab.service.stop().success());
    assert!(began.unstalled() < LIMIT / 2, "{:?}", began.unstalled());
    drop(connections);
}
