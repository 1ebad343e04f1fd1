//! Records refused, failed and successful ADDs for conditions and events.

use std::{collections::BTreeSet, sync::Arc};

use offload_proto::{ConditionReason, Failure};

use super::engine::Engine;
use crate::{conditions::Fault, events::EventKind};
use model::{AttachSpec, HostName, Network, Record};

/// Notes an ADD that was refused before anything was recorded.
pub(super) fn note_refused(engine: &Engine, spec: &AttachSpec, failure: &Failure) {
    let Some(reason) = reason_of(failure) else { return };
    let network = {
        let registry = engine.registry();
        let network = registry.networks().find(spec.interface.named_network());
        network.ok().map(|entry| Arc::clone(entry.network()))
    };
    if let Some(network) = network {
        let fault = fault(reason, &network, &spec.key.host, failure);
        engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
        engine.refusals.note_refused(fault, &spec.key.host);
    }
}

/// Notes that new attachments were established or have failed.
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

/// Returns early if nothing was refused, the usual case: a successful ADD then formats no strings.
fn note_served(engine: &Engine, record: &Record) {
    if engine.refusals.is_empty() {
        return;
    }
    let host = &record.key.host;
    let objects = [
        format!("pool/{}", record.network.pool),
        format!("network/{}", record.network.name),
        format!("host/{host}"),
        "dpu".to_owned(),
    ];
    engine.refusals.note_served(host, &objects);
}

/// Notes an ADD that failed on its host, before or after the DPU's part.
pub(super) fn note_failed_on_host(engine: &Engine, host: &HostName, failure: &Failure) {
    let reason = ConditionReason::of_refusal(failure.reason).filter(|it| it.is_of_host());
    let Some(reason) = reason else { return };
    let fault = Fault::of_host(reason, host, failure.message.as_str());
    engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
    engine.refusals.note_refused(fault, host);
}

/// Records of one call fail together: each pool, network, DPU or host is noted once.
fn note_failed(engine: &Engine, records: &[Arc<Record>], failure: &Failure) {
    let Some(reason) = reason_of(failure) else { return };
    let mut noted = BTreeSet::new();
    for record in records {
        let host = &record.key.host;
        let fault = fault(reason, &record.network, host, failure);
        if noted.insert(fault.object.clone()) {
            engine.events.record_failure(EventKind::AttachRefused, &fault.object, failure);
            engine.refusals.note_refused(fault, host);
        }
    }
}

/// The condition's reason for a failure on the DPU. `None`: the failure usually passes, or the host's agent reports it.
fn reason_of(failure: &Failure) -> Option<ConditionReason> {
    ConditionReason::of_refusal(failure.reason).filter(|reason| !reason.usually_passes())
}

/// The fault of a refused ADD. Its object is a pool, a network, the DPU or the host.
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
