//! What the gateways of this DPU are wanted for: networks, and the ports that attachments have mapped.

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
    model::Record,
};

/// Makes this DPU the gateway of those networks that want it, and no longer of others.
pub(super) async fn look_after_gateways(engine: &Engine, is_thorough: bool) {
    let wanted = || wanted_of_gateways(engine, Scope::All);
    for mended in engine.gateways().reconcile(wanted, is_thorough).await {
        engine.events.record(EventKind::Repaired, "gateways", mended);
    }
    let pods = || pod_addresses(&engine.registry());
    let repaired = engine.gateways().reconcile_neighbours(pods, is_thorough).await;
    if repaired > 0 {
        let message = format!("{repaired} permanent neighbours were set again");
        engine.events.record(EventKind::Repaired, "gateways", message);
    }
}

/// Has the gateway know a pod whose port is about to be programmed.
pub(super) async fn add_neighbours(engine: &Engine, record: &Record) {
    let pods = pod_addresses_of(&engine.registry(), record);
    engine.gateways().add_neighbours(pods).await;
}

/// Has the gateway forget a pod whose port was unprogrammed.
pub(super) async fn delete_neighbours(engine: &Engine, record: &Record) {
    let pods = pod_addresses_of(&engine.registry(), record);
    engine.gateways().delete_neighbours(pods).await;
}

/// Has the gateways' rules know the pods that there are, as they come and go. Ends never.
pub(crate) async fn keep_pods_known(engine: Arc<Engine>) {
    loop {
        let pods = engine.gateways().pods_due().await;
        engine.gateways().amend_pods(|scope| wanted_of_gateways(&engine, scope), &pods).await;
    }
}

/// Has the DPU's ports lead to its pod, if it has any.
pub(super) async fn map(engine: &Engine, record: &Record) -> Result<(), Failure> {
    if record.port_mappings.is_empty() {
        return Ok(());
    }
    let begun = redirections_of(record);
    map_ports(engine, Remapping { begun, ..Remapping::default() }).await
}

/// Once it is no longer held. What fails here the next pass over the gateways mends.
pub(super) async fn unmap(engine: &Engine, record: &Record) {
    if record.port_mappings.is_empty() {
        return;
    }
    let ended = redirections_of(record);
    let remapping = Remapping { ended, ..Remapping::default() };
    if let Err(failure) = map_ports(engine, remapping).await {
        tracing::warn!(id = %record.id, %failure, "its mapped ports are closed later");
    }
}

/// Has mapped ports lead where attachments want them, and nowhere else.
async fn map_ports(engine: &Engine, remapping: Remapping) -> Result<(), Failure> {
    let mapped =
        engine.gateways().redirect(|scope| wanted_of_gateways(engine, scope), remapping).await;
    mapped.map_err(|refused| {
        let why = format!("the mapped ports can't be mapped: {}", Chain(&refused));
        Failure::new(Reason::ProgrammingFailed, why)
    })
}

fn wanted_of_gateways(engine: &Engine, scope: Scope<'_>) -> Wanted {
    let registry = engine.registry();
    let networks = registry.networks().iter().map(|entry| Arc::clone(entry.network())).collect();
    let (redirections, pods) = match scope {
        Scope::All => (redirections(&registry), pod_addresses(&registry)),
        Scope::Beside(these) => (redirections_beside(&registry, these), Vec::new()),
        Scope::BesidePods(these) => (Vec::new(), pod_addresses_among(&registry, these)),
    };
    Wanted { networks, redirections, pods }
}
