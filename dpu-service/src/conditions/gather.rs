//! All that is wrong now, from all that know of something.

use offload_proto::{ConditionReason, Failure, Reason};

use super::fault::Fault;
use crate::{api::Shared, model::HostName};

/// The fault of a DPU without networks.
const NO_NETWORKS: &str = "there is no network, so no pod can attach: add a [[network]] to the configuration file, or run \
                           `dpuctl apply`";

/// All that is wrong now.
pub(crate) async fn faults(shared: &Shared) -> Vec<Fault> {
    let engine = &shared.engine;
    let obstacles = engine.obstacles().await;
    let mut all: Vec<_> = obstacles.into_iter().map(obstacle).collect();
    let refusals = engine.refusals().faults();
    all.extend(certificate_faults(shared));
    all.extend(not_serving(&all));
    all.extend(journal_fault(&all, &refusals));
    all.extend(configuration_faults(shared));
    all.extend(hosts_faults(shared));
    all.extend(engine.operators().uplink_faults().await);
    all.extend(refusals);
    all.extend(engine.operators().faults());
    all.extend(shared.conditions.offload.faults());
    all
}

/// What keeps Attach from being served.
fn obstacle(failure: Failure) -> Fault {
    let reason = match failure.reason {
        Reason::JournalUnavailable => ConditionReason::JournalNotWritable,
        Reason::Draining => ConditionReason::Draining,
        _ => ConditionReason::FabricUnavailable,
    };
    Fault::of_dpu(reason, failure.message)
}

/// A disk that is full for one write has room for the next, smaller one: so a write that has failed counts until an ADD
/// succeeds.
fn journal_fault(faults: &[Fault], refusals: &[Fault]) -> Option<Fault> {
    let is_reported = |fault: &Fault| fault.reason == ConditionReason::JournalNotWritable;
    if faults.iter().any(is_reported) {
        return None;
    }
    let failed = |fault: &&Fault| fault.reason == ConditionReason::JournalUnavailable;
    let message = &refusals.iter().find(failed)?.message;
    Some(Fault::of_dpu(ConditionReason::JournalNotWritable, message.as_str()))
}

/// That no pod can be attached, for what others tell.
fn not_serving(faults: &[Fault]) -> Option<Fault> {
    let is_obstacle = |fault: &&Fault| {
        matches!(
            fault.reason,
            ConditionReason::JournalNotWritable
                | ConditionReason::FabricUnavailable
                | ConditionReason::CertificateExpired
        )
    };
    let obstacles = faults.iter().filter(is_obstacle);
    let reasons: Vec<_> = obstacles.map(|fault| fault.reason.condition().name()).collect();
    let message = || {
        format!(
            "this DPU attaches no pods until {} is true: see that condition",
            reasons.join(", ")
        )
    };
    (!reasons.is_empty()).then(|| Fault::of_dpu(ConditionReason::NotServing, message()))
}

fn certificate_faults(shared: &Shared) -> Vec<Fault> {
    let fault = |reason| move |message| Fault::of_dpu(reason, message);
    let (expired, expiring) = (shared.credentials.expired(), shared.expiring());
    let expiring = expiring.filter(|_| expired.is_none());
    let refused = shared.credentials.refused();
    let faults = [
        expired.map(fault(ConditionReason::CertificateExpired)),
        expiring.map(fault(ConditionReason::CertificateExpiring)),
        refused.map(fault(ConditionReason::CertificateRefused)),
    ];
    faults.into_iter().flatten().collect()
}

fn configuration_faults(shared: &Shared) -> Vec<Fault> {
    let refused = shared.configuration_problems().into_iter();
    let refused =
        refused.map(|problem| Fault::of_dpu(ConditionReason::ConfigurationRefused, problem));
    let is_empty = shared.engine.networks().is_empty();
    let empty = is_empty.then(|| Fault::of_dpu(ConditionReason::NoNetworks, NO_NETWORKS));
    refused.chain(empty).collect()
}

/// The hosts without a session, but for those under maintenance.
fn hosts_faults(shared: &Shared) -> Vec<Fault> {
    let hosts = shared.engine.hosts().absent().into_iter();
    let absent = hosts.filter(|(host, _)| !shared.is_under_maintenance(host));
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
