//! What the gateways of this DPU are wanted for: networks, and the ports that attachments have mapped.

use std::sync::Arc;

use bootstrap::Chain;
use offload_proto::{Failure, Reason};

use super::{
    engine::Engine,
    registry::{redirections, redirections_of},
};
use crate::{
    events::EventKind,
    gateway::{Wanted, forget_earlier, forget_former},
    model::Record,
};

/// Makes this DPU the gateway of those networks that want it, and no longer of others.
pub(super) async fn look_after_gateways(engine: &Engine, is_thorough: bool) {
    let wanted = || wanted_of_gateways(engine);
    for mended in engine.gateways().reconcile(wanted, is_thorough).await {
        engine.events.record(EventKind::Repaired, "gateways", mended);
    }
}

/// Has the DPU's ports lead to its pod, if it has any.
pub(super) async fn map(engine: &Engine, record: &Record) -> Result<(), Failure> {
    if record.port_mappings.is_empty() {
        return Ok(());
    }
    map_ports(engine).await?;
    forget_earlier(redirections_of(record));
    Ok(())
}

/// Once it is no longer held. What fails here the next pass over the gateways mends.
pub(super) async fn unmap(engine: &Engine, record: &Record) {
    if record.port_mappings.is_empty() {
        return;
    }
    if let Err(failure) = map_ports(engine).await {
        tracing::warn!(id = %record.id, %failure, "its mapped ports are closed later");
    }
    // Not before that: the next packet would begin another such connection.
    forget_former(redirections_of(record)).await;
}

/// Has mapped ports lead where attachments want them, and nowhere else.
async fn map_ports(engine: &Engine) -> Result<(), Failure> {
    let mapped = engine.gateways().redirect(|| wanted_of_gateways(engine)).await;
    mapped.map_err(|refused| {
        let why = format!("the mapped ports can't be mapped: {}", Chain(&refused));
        Failure::new(Reason::ProgrammingFailed, why)
    })
}

fn wanted_of_gateways(engine: &Engine) -> Wanted {
    let registry = engine.registry();
    let networks = registry.networks().iter().map(|entry| Arc::clone(entry.network())).collect();
    Wanted { networks, redirections: redirections(registry.entries()) }
}
