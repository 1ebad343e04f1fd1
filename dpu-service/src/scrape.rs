//! Collects the metrics of a scrape.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use mtls::LiveCredentials;
use offload_proto::{ConditionReason, v1::ConditionStatus};

use crate::{
    attachments::{Engine, NetworkView, PoolView},
    certificates::Certificates,
    condition_sources::conditions,
    conditions::Condition,
    events::Events,
    sessions::HostView,
    shared::Shared,
};
use drivers::{
    counters::{Drops, PortCounters},
    driver::Capability,
    eswitch::Card,
    programmer::Programmer,
};
use metrics::{Calls, Label, Page, label};
use model::{AttachmentView, Record};

/// Maximum number of conditions on a page: a thousand networks or hosts with one fault must not create more series.
const MOST_CONDITIONS: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    pub(crate) certificates: Arc<Certificates>,
    /// How long before its end the certificate counts as expiring.
    pub(crate) certificate_warning: Duration,
    pub(crate) calls: Arc<Calls>,
    /// Whether to include the traffic of single attachments.
    pub(crate) of_attachments: bool,
    /// Empty until the journal can be read and the certificates are valid.
    pub(crate) shared: Arc<OnceLock<Arc<Shared>>>,
}

impl Scrape {
    pub(crate) async fn page(self) -> Page {
        let (valid, shared) = (self.certificates.now(), self.shared.get());
        let mut page = page_of(valid, self.certificate_warning, &self.calls, shared).await;
        if let Some(shared) = shared.filter(|_| self.of_attachments) {
            add_traffic(&mut page, &shared.engine).await;
        }
        page
    }
}

/// The page without the traffic of single attachments. `valid` and `shared` are `None` until they are available.
pub(crate) async fn page_of(
    valid: Option<&LiveCredentials>,
    certificate_warning: Duration,
    calls: &Arc<Calls>,
    shared: Option<&Arc<Shared>>,
) -> Page {
    let mut page = Page::of("dpu-service", env!("CARGO_PKG_VERSION"));
    if let Some(valid) = valid {
        page.certificates(&valid.current(), certificate_warning);
    }
    page.calls("service", "Calls that were answered, streams that were begun", calls);
    add_readiness(&mut page, shared);
    add_conditions(&mut page, shared).await;
    let Some(shared) = shared else { return page };
    add_journal(&mut page, &shared.engine);
    add_attachments(&mut page, &shared.engine);
    add_phases(&mut page, &shared.engine);
    add_hosts(&mut page, &shared.engine.hosts().list());
    add_capabilities(&mut page, shared.engine.programmer());
    add_vfs(&mut page, &shared.engine.operators().pools());
    add_addresses(&mut page, &shared.engine.networks().list());
    add_conflicts(&mut page, &shared.engine);
    add_events(&mut page, shared.engine.events());
    page
}

fn add_events(page: &mut Page, events: &Events) {
    let counts = events.counts().into_iter();
    let series = counts.map(|(kind, number)| ([("kind", kind.as_str().to_owned())], number));
    page.counters("service_events", "Events since the start, by kind", series);
    let help = "Events that are not in their file: it could not be written";
    page.counter("service_events_dropped", help, events.dropped().number);
}

fn add_readiness(page: &mut Page, shared: Option<&Arc<Shared>>) {
    let is_ready = shared.is_some_and(|shared| shared.status().is_empty());
    let is_writable =
        shared.is_some_and(|shared| shared.engine.operators().journal_can_be_written());
    let help = "Whether new attachments can be made; with an expired certificate, connected hosts go on at 0";
    page.gauge("service_ready", help, is_ready.into());
    let help = "Whether the latest write to the journal succeeded, and none waits for the disk";
    page.gauge("service_journal_writable", help, is_writable.into());
}

/// Three series for each condition; the one of its status is 1. Until the journal can be read, there is a single
/// condition.
async fn add_conditions(page: &mut Page, shared: Option<&Arc<Shared>>) {
    let conditions = match shared {
        Some(shared) => conditions(shared).await,
        None => vec![Condition::not_serving()],
    };
    let by_object = conditions.iter().map(|it| ((it.kind.name(), it.object.as_str()), it));
    let mut shown = BTreeMap::<_, &Condition>::new();
    for (key, condition) in by_object {
        let entry = shown.entry(key).or_insert(condition);
        if condition.affects_pods {
            *entry = condition;
        }
    }
    let mut shown: Vec<_> = shown.into_values().collect();
    // Conditions that alerts use come first, so that harmless faults of many networks cannot push them over the limit.
    shown.sort_by_key(|condition| !may_affect_pods(condition));
    let series = shown.into_iter().take(MOST_CONDITIONS).flat_map(series_of);
    let help = "The status of each condition: 1 for the one that it has";
    page.gauges("service_condition", help, series);
}

fn series_of(condition: &Condition) -> [([Label; 4], u64); 3] {
    let object = if condition.object.is_empty() { "all" } else { &condition.object };
    let affects_pods = if may_affect_pods(condition) { "true" } else { "false" };
    [
        (ConditionStatus::True, "true"),
        (ConditionStatus::False, "false"),
        (ConditionStatus::Unknown, "unknown"),
    ]
    .map(|(status, name)| {
        let labels = [
            label("type", condition.kind.name()),
            label("object", object),
            label("status", name),
            label("affects_pods", affects_pods),
        ];
        (labels, u64::from(condition.status == status))
    })
}

/// Whether the condition affects pods or, if it is true, could. So an alert's series exists before the alert fires.
fn may_affect_pods(condition: &Condition) -> bool {
    let may =
        |reason: &ConditionReason| reason.condition() == condition.kind && reason.affects_pods();
    match condition.status {
        ConditionStatus::True => ConditionReason::ALL.iter().any(may),
        _ => condition.affects_pods,
    }
}

fn add_journal(page: &mut Page, engine: &Arc<Engine>) {
    let journal::Statistics { commits, transactions } = engine.operators().journal_statistics();
    page.counter("service_journal_commits", "Changes made durable", commits);
    let help = "Transactions that these changes took";
    page.counter("service_journal_transactions", help, transactions);
}

fn add_attachments(page: &mut Page, engine: &Arc<Engine>) {
    let numbers = engine.operators().attachments_by_state();
    let series = numbers.map(|(state, number)| ([label("state", state.name())], number as u64));
    page.gauges("service_attachments", "Attachments, by state", series);
}

fn add_phases(page: &mut Page, engine: &Engine) {
    let phases = &engine.phases;
    let help = "Duration of the phases of attach calls";
    page.phases("service_attach", help, &phases.attach);
    let help = "Duration of the phases of detaches";
    page.phases("service_detach", help, &phases.detach);
}

async fn add_traffic(page: &mut Page, engine: &Arc<Engine>) {
    let counted = match engine.operators().counters().await {
        Ok(counted) => counted,
        Err(failure) => {
            tracing::warn!(error = %failure, "cannot read the attachments' counters; the metrics lack them");
            return;
        }
    };
    let all: Vec<_> =
        counted.iter().map(|(view, counters)| (attachment_labels(view), counters)).collect();
    let mut add = |name: &str, help: &str, number: fn(&PortCounters) -> u64| {
        let series = all.iter().map(|(who, counters)| (who.clone(), number(counters)));
        page.counters(&format!("service_attachment_{name}"), help, series);
    };
    add("sent_bytes", "Bytes that the pod has sent", |port| port.sent.bytes);
    add("sent_packets", "Packets that the pod has sent", |port| port.sent.packets);
    add("received_bytes", "Bytes that the pod has received", |port| port.received.bytes);
    add("received_packets", "Packets that the pod has received", |port| port.received.packets);
    let dropped = all.iter().flat_map(|(who, counters)| {
        let Drops { guard, egress_limit, allow } = counters.drops;
        let causes = [
            ("guard", guard),
            ("egress_limit", egress_limit),
            ("allow", allow),
            ("ingress_limit", counters.ingress_limit_drops),
        ];
        causes.map(|(cause, number)| (with_cause(who, cause), number))
    });
    let help = "Packets from and to the pod that were dropped, by what dropped them";
    page.counters("service_attachment_dropped_packets", help, dropped);
}

/// Labels of an attachment. A host port has no pod: its pod labels are empty.
fn attachment_labels(view: &AttachmentView) -> [Label; 5] {
    let Record { id, key, network, pod, .. } = &*view.record;
    [
        label("attachment", &id.to_string()),
        label("host", &key.host.0),
        label("network", &network.name),
        label("namespace", &pod.namespace),
        label("pod", &pod.name),
    ]
}

fn with_cause(who: &[Label; 5], cause: &str) -> [Label; 6] {
    let [attachment, host, network, namespace, pod] = who.clone();
    [attachment, host, network, namespace, pod, label("cause", cause)]
}

fn add_hosts(page: &mut Page, hosts: &[HostView]) {
    let series = hosts.iter().map(|host| ([label("host", &host.name.0)], host.connected.into()));
    page.gauges("service_host_connected", "Whether the host has a session", series);
}

fn add_capabilities(page: &mut Page, programmer: &Programmer) {
    let of_card = |card: Card| (card.device, card.capabilities);
    let of_dpu = (String::new(), programmer.capabilities());
    let all = programmer.cards().into_iter().map(of_card).chain([of_dpu]);
    let series = all.flat_map(|(card, capabilities)| {
        let labels = move |can: Capability| {
            [label("card", &card), label("capability", can.name), label("done", done_by(&can))]
        };
        capabilities.into_iter().map(move |can| (labels(can), 1))
    });
    let help = "What the DPU and each card can do, and where that is done";
    page.gauges("service_capability", help, series);
}

const fn done_by(capability: &Capability) -> &'static str {
    match (capability.available, capability.offloaded) {
        (false, _) => "no",
        (true, false) => "in_software",
        (true, true) => "in_hardware",
    }
}

fn add_vfs(page: &mut Page, pools: &[PoolView]) {
    let of_pool = |PoolView { spec, usage }: &PoolView| {
        let states = [
            ("free", usage.free),
            ("in_use", usage.in_use),
            ("quarantined", usage.quarantined),
            ("absent", usage.absent),
        ];
        let pool = label("pool", &spec.name);
        states.map(|(state, number)| ([pool.clone(), label("state", state)], number as u64))
    };
    page.gauges("service_vfs", "VFs of each pool, by state", pools.iter().flat_map(of_pool));
}

fn add_addresses(page: &mut Page, networks: &[NetworkView]) {
    let subnets = networks.iter().flat_map(|network| {
        let name = &network.network.name;
        network.subnets.iter().map(move |subnet| {
            ([label("network", name), label("subnet", &subnet.cidr.to_string())], subnet)
        })
    });
    let subnets: Vec<_> = subnets.collect();
    let used = subnets.iter().flat_map(|([network, cidr], subnet)| {
        [("held", subnet.held), ("cooling", subnet.cooling)]
            .map(|(state, number)| ([network.clone(), cidr.clone(), label("state", state)], number))
    });
    page.gauges("service_addresses", "Addresses of each subnet that are not free, by state", used);
    page.gauges(
        "service_address_capacity",
        "Addresses of each subnet that can be leased",
        subnets.iter().map(|(labels, subnet)| (labels.clone(), subnet.capacity)),
    );
}

fn add_conflicts(page: &mut Page, engine: &Arc<Engine>) {
    let conflicts = engine.operators().conflicts_by_network();
    let series = conflicts.iter().map(|(network, number)| ([label("network", network)], *number));
    let help = "Addresses of attachments that machines beyond the uplinks use, too";
    page.gauges("service_address_conflicts", help, series);
}
