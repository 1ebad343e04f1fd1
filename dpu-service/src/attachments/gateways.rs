//! What the gateways of this DPU have to do: for networks, and for mapped ports and neighbours of attachments.

use std::sync::Arc;

use bootstrap::Chain;
use offload_proto::{Failure, Reason};

use super::{
    engine::Engine,
    registry::{
        pod_addresses, pod_addresses_among, pod_addresses_of, redirections, redirections_beside,
        redirections_of,
    },
};
use crate::{
    events::EventKind,
    gateway::{Remapping, Scope, Wanted},
};
use model::Record;

/// Reconciles gateways and permanent neighbours with the networks and attachments.
pub(super) async fn look_after_gateways(engine: &Engine, is_thorough: bool) {
    // A closure: the networks are read once the gateways are locked, so that a concurrent change is not undone.
    let wanted = || wanted_of_gateways(engine, Scope::All);
    for repair in engine.gateways.reconcile(wanted, is_thorough).await {
        engine.events.record(EventKind::Repaired, "gateways", repair);
    }
    let pods = || pod_addresses(&engine.registry());
    let repaired = engine.gateways.reconcile_neighbours(pods, is_thorough).await;
    if repaired > 0 {
        let message = format!("{repaired} permanent neighbours were set again");
        engine.events.record(EventKind::Repaired, "gateways", message);
    }
}

/// Adds a pod's permanent neighbours, before its port is programmed.
pub(super) async fn add_neighbours(engine: &Engine, record: &Record) {
    let pods = pod_addresses_of(&engine.registry(), record);
    engine.gateways.add_neighbours(pods).await;
}

/// Deletes a pod's permanent neighbours, after its port was unprogrammed.
pub(super) async fn delete_neighbours(engine: &Engine, record: &Record) {
    let pods = pod_addresses_of(&engine.registry(), record);
    engine.gateways.delete_neighbours(pods).await;
}

/// Keeps the pods' addresses in the gateways' rules up to date. Never returns.
pub(crate) async fn keep_pods_known(engine: Arc<Engine>) {
    loop {
        let pods = engine.gateways.pods_due().await;
        engine.gateways.amend_pods(|scope| wanted_of_gateways(&engine, scope), &pods).await;
    }
}

/// Redirects the DPU's mapped ports to the attachment, if it has any.
pub(super) async fn map(engine: &Engine, record: &Record) -> Result<(), Failure> {
    if record.port_mappings.is_empty() {
        return Ok(());
    }
    let begun = redirections_of(record);
    map_ports(engine, Remapping { begun, ..Remapping::default() }).await
}

/// Ends the redirections of an attachment that is no longer held. The next pass over the gateways retries a failure.
pub(super) async fn unmap(engine: &Engine, record: &Record) {
    if record.port_mappings.is_empty() {
        return;
    }
    let ended = redirections_of(record);
    let remapping = Remapping { ended, ..Remapping::default() };
    if let Err(failure) = map_ports(engine, remapping).await {
        tracing::warn!(attachment = %record.id, error = %failure, "cannot close an attachment's mapped ports; retrying");
    }
}

async fn map_ports(engine: &Engine, remapping: Remapping) -> Result<(), Failure> {
    let mapped =
        engine.gateways.redirect(|scope| wanted_of_gateways(engine, scope), remapping).await;
    mapped.map_err(|refused| {
        let why = format!("cannot map the requested ports: {}", Chain(&refused));
        Failure::new(Reason::ProgrammingFailed, why)
    })
}

fn wanted_of_gateways(engine: &Engine, scope: Scope<'_>) -> Wanted {
    let registry = engine.registry();
    let networks = registry.networks().iter().map(|entry| Arc::clone(entry.network())).collect();
    let (redirections, pods) = match scope {
        Scope::All => (redirections(&registry), pod_addresses(&registry)),
        Scope::Beside(these) => (redirections_beside(&registry, these), Vec::new()),
        Scope::PodsOnly(these) => (Vec::new(), pod_addresses_among(&registry, these)),
    };
    Wanted { networks, redirections, pods }
}
