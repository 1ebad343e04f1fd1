//! Attach: reserve, then record and program.
//!
//! The key is locked all the while, so that calls for one key come one after the other. In between,
//! without that lock, only inventories and hellos may change the attachment, and those only mark it:
//! whoever releases or frees it waits for the key.

use std::sync::Arc;

use bootstrap::Chain;
use offload_proto::{Failure, Reason, capability};

use super::{
    engine::{Engine, now},
    gateways::{map, unmap},
    registry::{Entry, Registry, tighter},
    releasing, stale,
};
use crate::{
    driver::Fault,
    events::EventKind,
    host::{Asked, SessionId},
    milestones::Milestone,
    model::{AttachSpec, AttachmentView, Record, WantedAddress},
    programmer::{self, ProgramError},
    records::Changes,
};

impl Engine {
    /// Reserves a VF, a MAC address and addresses, records that, and programs the representor.
    /// Repeating the call gives the same attachment.
    ///
    /// # Errors
    /// What was refused or failed; then nothing of it is left.
    pub async fn attach(
        self: &Arc<Self>,
        spec: AttachSpec,
        asked: Asked,
    ) -> Result<AttachmentView, Failure> {
        self.to_the_end(async move |engine: Arc<Self>| attach(&engine, &spec, asked).await).await
    }
}

async fn attach(
    engine: &Engine,
    spec: &AttachSpec,
    asked: Asked,
) -> Result<AttachmentView, Failure> {
    let _key = engine.keys.lock(&spec.key).await;
    let (record, is_new) = admit(engine, spec, asked)?;
    // From before the record is durable, so that the reconciler does not take it for neglected.
    let _vf = engine.ports.lock(record.vf).await;
    if is_new {
        establish(engine, &record).await?;
    } else {
        bring_up_again(engine, &record).await?;
    }
    engine.view(&record)
}

/// Reserves all that an attachment needs, or finds the one that a repeated call means. Tells
/// whether it is a new one.
///
/// The session is looked at in the hold of the registry that reserves: a hello opens its session
/// before it looks for attachments that its host does not know, so either it sees what is reserved
/// here, or this call is refused.
fn admit(engine: &Engine, spec: &AttachSpec, asked: Asked) -> Result<(Arc<Record>, bool), Failure> {
    let Asked { session, as_of } = asked;
    let mut registry = engine.registry();
    let host = &spec.key.host;
    // Said before anything of a session: an unknown host has none.
    registry.hosts().number(host)?;
    let boot_id = engine.sessions.boot_id(host, session).ok_or_else(|| stale(session))?;
    if engine.overtaken().has(&spec.key, &boot_id, as_of) {
        let why = format!("{} was given back since it was asked for", spec.key);
        return Err(Failure::new(Reason::DeadlineExceeded, why));
    }
    if let Some(entry) = registry.entries().by_key(&spec.key) {
        check_same(entry, spec, &registry)?;
        let record = Arc::clone(entry.record());
        check_kept_by_host(engine, &record, session)?;
        if let Some(entry) = registry.change(record.id) {
            entry.note_asked(asked);
        }
        return Ok((record, false));
    }
    // Only new ones: a host may repeat a call whose answer it has lost.
    if let Some(reason) = registry.draining() {
        return Err(Failure::new(Reason::Draining, format!("the DPU is draining: {reason}")));
    }
    let record = registry.reserve(spec, asked, boot_id, now())?;
    // Only the record says which limits are in force: those asked for may be tighter.
    let checked = check_mac(engine, &record).and_then(|()| check_kept(engine, &record, session));
    if let Err(failure) = checked {
        registry.forget(record.id, None, now());
        return Err(failure);
    }
    Ok((record, true))
}

/// Refuses what the fabric's own links have: the pod would get what is meant for them, or nothing at all.
fn check_mac(engine: &Engine, record: &Record) -> Result<(), Failure> {
    if !engine.programmer().has_mac(record.mac) {
        return Ok(());
    }
    let why =
        format!("MAC address {} is of a link of the DPU's fabric: ask for another", record.mac);
    Err(Failure::new(Reason::MacInUse, why))
}

/// Whether the pod will be kept to what its network says: by the card, or else by the host.
fn check_kept(engine: &Engine, record: &Record, session: SessionId) -> Result<(), Failure> {
    let checked = engine.programmer().check(&record.port_settings());
    checked.map_err(|unsupported| unsupported_by(record, &unsupported.to_string()))?;
    check_kept_by_host(engine, record, session)
}

/// Whether the host does what is left to it. An agent that does not know of it would say nothing.
fn check_kept_by_host(engine: &Engine, record: &Record, session: SessionId) -> Result<(), Failure> {
    let host = &record.key.host;
    let is_kept = engine.programmer().has_representors()
        || !record.port_settings().needs_keeping()
        || engine.sessions.can(host, session, capability::KEEPS_PORT);
    if is_kept {
        return Ok(());
    }
    let why = format!(
        "nobody would keep the pod to its VLAN, its MAC address and its rates: the DPU has no \
         port of the VF, and the agent of host {host} is of a version that can't have the PF do \
         it; upgrade it"
    );
    Err(unsupported_by(record, &why))
}

/// Records a reservation and programs the representor, at the same time: the disk and the kernel do
/// not wait for each other, and the host hears of the attachment once both are done. Unless both
/// succeed, what can be is taken back: nobody has used it yet. Should the service die in between, the
/// reconciler programs what is recorded and clears what is not. The caller holds the VF's lock.
async fn establish(engine: &Engine, record: &Arc<Record>) -> Result<(), Failure> {
    // A disk that is full stays so for long: the kernel is not to be changed to and fro.
    if let Some(failure) = engine.records.problem().await {
        engine.registry().forget(record.id, None, now());
        return Err(failure);
    }
    let (written, programmed, mapped) =
        tokio::join!(write(engine, record), engine.ports.program(record), map(engine, record));
    let failure = match (written, programmed, mapped) {
        (Ok(()), Ok(index), Ok(())) => {
            note_programmed(engine, record, index);
            return Ok(());
        }
        (Ok(()), Ok(_), Err(failure)) => {
            engine.unprogram(record.vf).await;
            abandon(engine, record, failure, false).await
        }
        (Ok(()), Err(error), mapped) => {
            log_besides(record, mapped.err());
            abandon_unprogrammed(engine, record, &error).await
        }
        (Err(failure), programmed, mapped) => {
            log_besides(record, programmed.err().map(|error| failure_of(&error)));
            log_besides(record, mapped.err());
            // Unprogrammed first: once it is forgotten, another attach may get the VF.
            engine.unprogram(record.vf).await;
            engine.registry().forget(record.id, None, now());
            failure
        }
    };
    unmap(engine, record).await;
    Err(failure)
}

/// Of several failures the host is told one.
fn log_besides(record: &Record, failure: Option<Failure>) {
    if let Some(failure) = failure {
        tracing::warn!(id = %record.id, %failure, "failed, too");
    }
}

/// Writes the record to the journal.
async fn write(engine: &Engine, record: &Record) -> Result<(), Failure> {
    engine.records.commit(Changes::default().put_attachment(record)).await?;
    if let Some(entry) = engine.registry().change(record.id) {
        entry.note_recorded();
    }
    Milestone::AttachRecorded.pass();
    let message = format!("{} reserved for {}", record.vf, record.key);
    engine.events.record(EventKind::AttachmentReserved, record.id, message);
    Ok(())
}

/// Programs what is not yet programmed for an earlier call. Pods may use the attachment, so it
/// stays whatever happens. The caller holds the VF's lock.
async fn bring_up_again(engine: &Engine, record: &Record) -> Result<(), Failure> {
    // What was programmed once, or runs already, is the reconciler's to look after.
    let is_up = |entry: &Entry| entry.programmed().is_some() || entry.is_attached();
    if engine.registry().entries().get(record.id).is_some_and(is_up) {
        return Ok(());
    }
    let repaired = engine.ports.program_rest(record).await;
    note_programmed(engine, record, repaired.map_err(|error| failure_of(&error))?.index);
    Ok(())
}

fn note_programmed(engine: &Engine, record: &Record, index: u32) {
    if let Some(entry) = engine.registry().change(record.id) {
        entry.note_programmed(index);
    }
    Milestone::AttachProgrammed.pass();
    let message = format!("{} forwards for {}", record.vf, record.key);
    engine.events.record(EventKind::AttachmentProgrammed, record.id, message);
}

/// Takes an attachment back that could not be programmed; nobody has used it yet.
async fn abandon_unprogrammed(
    engine: &Engine,
    record: &Arc<Record>,
    error: &ProgramError,
) -> Failure {
    if let Some(leftover) = programmer::leftover_of(error) {
        engine.note_leftover(&leftover);
    }
    abandon(engine, record, failure_of(error), error.fault() == Fault::Port).await
}

/// Likewise, of which nothing is programmed any more.
async fn abandon(
    engine: &Engine,
    record: &Arc<Record>,
    failure: Failure,
    is_ports_fault: bool,
) -> Failure {
    // Marked first: a record that can't be deleted must not be programmed again.
    engine.registry().release(record.id, true);
    match engine.records.commit(Changes::default().delete_attachment(record.id)).await {
        Ok(()) => {
            let against_vf = is_ports_fault.then_some(&*failure.message);
            engine.registry().forget(record.id, against_vf, now());
        }
        // It stays as releasing; the reconciler goes on trying.
        Err(error) => tracing::error!(id = %record.id, %error, "a failed attachment stays"),
    }
    engine.events.record(EventKind::AttachmentFailed, record.id, failure.message.clone());
    failure
}

fn unsupported_by(record: &Record, why: &str) -> Failure {
    Failure::new(Reason::Unsupported, format!("network {}: {why}", record.network.name))
}

fn failure_of(error: &ProgramError) -> Failure {
    let reason = match error.fault() {
        Fault::FabricFull => Reason::FabricFull,
        Fault::Port | Fault::Elsewhere => Reason::ProgrammingFailed,
    };
    Failure::new(reason, Chain(error).to_string())
}

/// Whether `spec` asks for what `entry` is.
fn check_same(entry: &Entry, spec: &AttachSpec, registry: &Registry) -> Result<(), Failure> {
    let record = entry.record();
    if !entry.is_held() {
        return Err(releasing(record));
    }
    let differs = |what: String| {
        Err(Failure::new(
            Reason::AttachmentDiffers,
            format!("{} is attachment {} already, with {what}", record.key, record.id),
        ))
    };
    let default = || registry.networks().find(None).map(|entry| entry.network().name.clone()).ok();
    let network = spec.network.clone().or_else(default);
    if network.is_some_and(|network| network != record.network.name) {
        return differs(format!("network {}", record.network.name));
    }
    if spec.mac.is_some_and(|mac| mac != record.mac) {
        return differs(format!("MAC address {}", record.mac));
    }
    if spec.device.as_ref().is_some_and(|device| *device != record.device) {
        return differs(format!("the VF at {}", record.device));
    }
    if tighter(&record.network.bandwidth, &spec.bandwidth) != record.bandwidth {
        return differs("other rate limits".into());
    }
    if spec.port_mappings != record.port_mappings {
        return differs("other mapped ports".into());
    }
    if spec.asked_sources != record.asked_sources {
        return differs("other allowed sources".into());
    }
    let is_held = |address: &WantedAddress| {
        record.leases.iter().map(|lease| lease.address).any(|held| {
            let length = address.prefix_length.unwrap_or(held.prefix());
            (held.ip(), held.prefix()) == (address.ip, length)
        })
    };
    match spec.addresses.iter().find(|address| !is_held(address)) {
        Some(address) => differs(format!("addresses other than {address}")),
        None => Ok(()),
    }
}
