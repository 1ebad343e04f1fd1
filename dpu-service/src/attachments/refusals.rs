//! What is noted of ADDs that were refused or have failed, and of those that succeed.

use std::{collections::BTreeSet, sync::Arc};

use offload_proto::{ConditionReason, Failure};

use super::engine::Engine;
use crate::{
    conditions::Fault,
    events::EventKind,
    model::{AttachSpec, HostName, Network, Record},
};

/// An ADD was refused before anything was recorded.
pub(super) fn note_refused(engine: &Engine, spec: &AttachSpec, failure: &Failure) {
    let Some(reason) = reason_of(failure) else { return };
    let network = {
        let registry = engine.registry();
        let network = registry.networks().find(spec.network.as_deref());
        network.ok().map(|entry| Arc::clone(entry.network()))
    };
    if let Some(network) = network {
        let fault = fault(reason, &network, &spec.key.host, failure);
        engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
        engine.refusals().note_refused(fault, &spec.key.host);
    }
}

/// New attachments were established, or have failed.
pub(super) fn note_outcome(
    engine: &Engine,
    records: &[Arc<Record>],
    outcome: &Result<(), Failure>,
) {
    match outcome {
        Ok(()) => records.iter().for_each(|record| note_served(engine, record)),
        Err(failure) => note_failed(engine, records, failure),
    }
}

/// As a rule nothing was refused: then an ADD makes no texts.
fn note_served(engine: &Engine, record: &Record) {
    if engine.refusals().is_empty() {
        return;
    }
    let host = &record.key.host;
    let objects = [
        format!("pool/{}", record.network.pool),
        format!("network/{}", record.network.name),
        format!("host/{host}"),
        "dpu".to_owned(),
    ];
    engine.refusals().note_served(host, &objects);
}

/// An ADD failed on its host after the DPU had served it, or before the DPU was asked.
pub(super) fn note_failed_on_host(engine: &Engine, host: &HostName, failure: &Failure) {
    let reason = ConditionReason::of_refusal(failure.reason).filter(|it| it.is_of_host());
    let Some(reason) = reason else { return };
    let fault = Fault::of_host(reason, host, failure.message.as_str());
    engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
    engine.refusals().note_refused(fault, host);
}

/// Several records of one call fail together: each object is noted once.
fn note_failed(engine: &Engine, records: &[Arc<Record>], failure: &Failure) {
    let Some(reason) = reason_of(failure) else { return };
    let mut noted = BTreeSet::new();
    for record in records {
        let host = &record.key.host;
        let fault = fault(reason, &record.network, host, failure);
        if noted.insert(fault.object.clone()) {
            engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
            engine.refusals().note_refused(fault, host);
        }
    }
}

/// Why the condition turns by a failure on the DPU. `None`: it does not, or the host's agent reports the failure.
fn reason_of(failure: &Failure) -> Option<ConditionReason> {
    ConditionReason::of_refusal(failure.reason).filter(|reason| !reason.usually_passes())
}

/// What has refused the ADD: a pool, a network, or else the host's DPU as a whole.
fn fault(reason: ConditionReason, network: &Network, host: &HostName, failure: &Failure) -> Fault {
    let message = failure.message.clone();
    match reason {
        ConditionReason::VfsExhausted
        | ConditionReason::ProgrammingFailed
        | ConditionReason::FabricFull => Fault::of_pool(reason, &network.pool, message),
        ConditionReason::AddressesExhausted => Fault::of_network(reason, &network.name, message),
        ConditionReason::FabricUnavailable => Fault::of_dpu(reason, message),
        _ => Fault::of_host(reason, host, message),
    }
}
