//! Collects all current faults, and watches conditions to report their changes.
//!
//! Owns: three tasks. They check the conditions, retry a journal that failed, and check the cards' offload.
//!
//! Locks: none of its own. The page of [`conditions`](crate::conditions) states the locks of a look.

use std::{sync::Arc, time::Duration};

use offload_proto::{ConditionReason, Failure, Reason, v1::ConditionStatus};

use crate::{
    attachments::{AttachmentFilter, AttachmentTraffic, Engine},
    conditions::{Condition, Fault, HandledTraffic},
    events::{DroppedEvents, EventKind},
    shared::Shared,
    tasks::ticks,
};
use model::HostName;

/// How often conditions are checked without a request.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the rules of all ports are listed, which takes the kernel some time.
const CARDS_PERIOD: Duration = Duration::from_secs(60);
const NO_NETWORKS: &str = "there is no network, so no pod can attach: add a [[network]] to the configuration file, or run \
                           `dpuctl apply`";
/// What an invalid certificate prevents.
const NO_NEW_SESSIONS: &str =
    "new sessions are refused until CertificatesValid is true; connected hosts keep their sessions";

/// Checks the conditions once a second, so that each change is reported when it happens. Never returns.
pub(crate) async fn watch(shared: Arc<Shared>) {
    tokio::spawn(watch_cards(Arc::clone(&shared)));
    tokio::spawn(watch_journal(Arc::clone(&shared)));
    let mut ticks = ticks(PERIOD);
    loop {
        ticks.tick().await;
        conditions(&shared).await;
    }
}

/// Retries a journal whose latest write failed, once a second. A check of the conditions only reads the result and
/// never waits for the disk. Never returns.
async fn watch_journal(shared: Arc<Shared>) {
    let mut ticks = ticks(PERIOD);
    loop {
        ticks.tick().await;
        // The journal logs the failure itself.
        let _ = shared.engine.probe_journal().await;
    }
}

/// Checks the cards once a minute, if the driver knows any. Never returns.
async fn watch_cards(shared: Arc<Shared>) {
    let mut ticks = ticks(CARDS_PERIOD);
    loop {
        ticks.tick().await;
        if !shared.engine.programmer().cards().is_empty() {
            let handled = handled_traffic(&shared.engine).await;
            shared.conditions.cards.note(handled);
        }
    }
}

async fn handled_traffic(engine: &Arc<Engine>) -> Result<Vec<HandledTraffic>, String> {
    let traffic = engine.operators().traffic(&AttachmentFilter::default()).await;
    if let Some(why) = traffic.unknown {
        return Err(why);
    }
    let handled = |attachment: AttachmentTraffic| {
        let card = engine.programmer().card_of(attachment.view.record.vf)?;
        let offloaded = attachment.traffic?.offloaded;
        Some(HandledTraffic { card, rules: offloaded.rules, in_hardware: offloaded.in_hardware })
    };
    Ok(traffic.attachments.into_iter().filter_map(handled).collect())
}

/// Checks and returns the conditions. Changes are recorded as events.
pub(crate) async fn conditions(shared: &Shared) -> Vec<Condition> {
    let has_no_cards = shared.engine.programmer().cards().is_empty();
    // Changes during a stop are consequences of the stop, which has its own event.
    let report = |condition: &Condition| {
        if !shared.stopping.is_cancelled() {
            record_turn(shared, condition);
        }
    };
    shared.conditions.look(has_no_cards, faults(shared), report).await
}

fn record_turn(shared: &Shared, condition: &Condition) {
    let Condition { kind, status, reason, object, message, .. } = condition;
    let event = match status {
        ConditionStatus::True => EventKind::ConditionTrue,
        ConditionStatus::Unknown | ConditionStatus::Unspecified => EventKind::ConditionUnknown,
        ConditionStatus::False => EventKind::ConditionFalse,
    };
    let turned = format!("{} is {}", kind.name(), status.name());
    let turned = match message.as_str() {
        "" => turned,
        message => format!("{turned}: {message}"),
    };
    let events = shared.engine.events();
    // "True" events get no reason code: events of one object with the same code would be folded across condition types.
    match status {
        ConditionStatus::True => events.record(event, object, turned),
        _ => events.record_reason(event, reason, object, turned),
    }
}

pub(crate) async fn faults(shared: &Shared) -> Vec<Fault> {
    let engine = &shared.engine;
    let mut all: Vec<_> = engine.obstacles().into_iter().map(obstacle).collect();
    let refusals = engine.refusals.faults();
    all.extend(certificate_faults(shared));
    all.extend(journal_fault(&all, &refusals));
    all.extend(events_fault(engine.events().dropped()));
    all.extend(refusals);
    // Sums up the faults so far; those added below do not prevent attaches.
    all.extend(not_serving(&all));
    all.extend(configuration_faults(shared));
    all.extend(hosts_faults(shared));
    all.extend(shared.conditions.uplinks.faults(uplink_faults(Arc::clone(engine))).await);
    all.extend(engine.operators().faults());
    all.extend(shared.conditions.cards.faults());
    all
}

async fn uplink_faults(engine: Arc<Engine>) -> Vec<Fault> {
    engine.operators().uplink_faults().await
}

fn obstacle(failure: Failure) -> Fault {
    let reason = match failure.reason {
        Reason::JournalUnavailable => ConditionReason::JournalNotWritable,
        Reason::Draining => ConditionReason::Draining,
        _ => ConditionReason::FabricUnavailable,
    };
    Fault::of_dpu(reason, failure.message)
}

/// A failed write of the journal counts until an ADD succeeds: on a full disk the next, smaller write may succeed.
fn journal_fault(faults: &[Fault], refusals: &[Fault]) -> Option<Fault> {
    let is_reported = |fault: &Fault| fault.reason == ConditionReason::JournalNotWritable;
    if faults.iter().any(is_reported) {
        return None;
    }
    let failed = |fault: &&Fault| fault.reason == ConditionReason::JournalUnavailable;
    let message = &refusals.iter().find(failed)?.message;
    Some(Fault::of_dpu(ConditionReason::JournalNotWritable, message.as_str()))
}

/// A fault if events are not in their file: the missing event may be the one that explains the service's end.
fn events_fault(dropped: DroppedEvents) -> Option<Fault> {
    let DroppedEvents { number, since, failure } = dropped;
    let message = format!(
        "the file of events can't be written: {}; events dropped: {number}, since {}; they are lost when the service ends",
        failure?, since?
    );
    Some(Fault::of_dpu(ConditionReason::EventsNotWritten, message))
}

/// A fault that sums up other faults which prevent attaches, or those of hosts without a session.
fn not_serving(faults: &[Fault]) -> Option<Fault> {
    let has = |reason| faults.iter().any(|fault| fault.reason == reason);
    let obstacles = [ConditionReason::JournalNotWritable, ConditionReason::FabricUnavailable];
    let obstacles = obstacles.into_iter().filter(|reason| has(*reason));
    let attaches_none = |reason: ConditionReason| {
        format!("this DPU attaches no pods until {} is true", reason.condition().name())
    };
    let mut all: Vec<_> = obstacles.map(attaches_none).collect();
    if has(ConditionReason::CertificateExpired) || has(ConditionReason::CertificateNotYetValid) {
        all.push(NO_NEW_SESSIONS.into());
    }
    let message = || format!("{}: see that condition", all.join("; "));
    (!all.is_empty()).then(|| Fault::of_dpu(ConditionReason::NotServing, message()))
}

fn certificate_faults(shared: &Shared) -> Vec<Fault> {
    let fault = |reason| move |message| Fault::of_dpu(reason, message);
    let (expired, expiring) = (shared.credentials.expired(), shared.expiring());
    let expiring = expiring.filter(|_| expired.is_none());
    let refused = shared.credentials.refused();
    let faults = [
        expired.map(fault(ConditionReason::CertificateExpired)),
        shared.credentials.not_yet_valid().map(fault(ConditionReason::CertificateNotYetValid)),
        expiring.map(fault(ConditionReason::CertificateExpiring)),
        refused.map(fault(ConditionReason::CertificateRefused)),
    ];
    faults.into_iter().flatten().collect()
}

fn configuration_faults(shared: &Shared) -> Vec<Fault> {
    let refused = shared.configuration.lock().problems.clone().into_iter();
    let refused =
        refused.map(|problem| Fault::of_dpu(ConditionReason::ConfigurationRefused, problem));
    let is_empty = shared.engine.networks().is_empty();
    let empty = is_empty.then(|| Fault::of_dpu(ConditionReason::NoNetworks, NO_NETWORKS));
    refused.chain(empty).collect()
}

/// Hosts without a session, except those under maintenance.
fn hosts_faults(shared: &Shared) -> Vec<Fault> {
    let maintenance = shared.configuration.lock().maintenance.clone();
    let hosts = shared.engine.hosts().absent().into_iter();
    let absent = hosts.filter(|(host, _)| !maintenance.contains(host));
    let fault = |(host, why): (HostName, String)| {
        let why = match why.as_str() {
            "" => "its agent does not run, or can't reach the DPU",
            why => why,
        };
        let message = format!("host {host} is not connected: {why}");
        Fault::of_host(ConditionReason::HostNotConnected, &host, message)
    };
    absent.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(reasons: &[ConditionReason]) -> String {
        let faults: Vec<_> = reasons.iter().map(|reason| Fault::of_dpu(*reason, "why")).collect();
        not_serving(&faults).map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn invalid_certificate_ends_no_session() {
        for reason in [ConditionReason::CertificateExpired, ConditionReason::CertificateNotYetValid]
        {
            assert_eq!(shown(&[reason]), format!("{NO_NEW_SESSIONS}: see that condition"));
        }
        let away = shown(&[ConditionReason::FabricUnavailable]);
        assert_eq!(away, "this DPU attaches no pods until FabricReady is true: see that condition");
        assert_eq!(shown(&[ConditionReason::CertificateExpiring]), "");
    }
}
