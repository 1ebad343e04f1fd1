//! Attach: reserve, then record and program. Several attachments of one pod go the same way together, as one: all
//! that a call has made stays, or nothing of it.
//!
//! The keys are locked all the while, so that calls for one key come one after the other. In between,
//! without these locks, only inventories and hellos may change an attachment, and those only mark it:
//! whoever releases or frees it waits for the key.

use std::sync::Arc;

use bootstrap::Chain;
use futures::future::join_all;
use keyed_locks::Held;
use offload_proto::{Failure, Reason, capability};
use vf_alloc::{FunctionId, VfState};

use super::{
    engine::{Engine, now},
    gateways::{add_neighbours, delete_neighbours, map, unmap},
    phases::{JOURNAL, LOCKS, PROGRAM, RESERVE, TOTAL},
    refusals::{note_outcome, note_refused},
    registry::{Entry, Registry, VfReturn, tighter},
    releasing, stale,
};
use crate::{
    driver::Fault,
    events::EventKind,
    host::{Asked, SessionId},
    milestones::Milestone,
    model::{AttachSpec, AttachmentView, FurtherLease, Lease, LeaseSpec, Record, WantedAddress},
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
        let mut views = self.attach_all(vec![spec], asked).await?;
        // There is one for each spec.
        Ok(views.remove(0))
    }

    /// Likewise for all of these, of which there is one at least, and no two of one key. Those that are new are
    /// recorded in one transaction.
    ///
    /// # Errors
    /// What was refused or failed of one; then nothing is left of any that is new.
    pub async fn attach_all(
        self: &Arc<Self>,
        specs: Vec<AttachSpec>,
        asked: Asked,
    ) -> Result<Vec<AttachmentView>, Failure> {
        let attach = async move |engine: Arc<Self>| {
            let attached =
                engine.phases.attach.time(TOTAL, attach_all(&engine, &specs, asked)).await;
            specs.iter().for_each(|spec| engine.sessions.note_vfs_changed(&spec.key.host));
            attached
        };
        self.to_the_end(attach).await
    }
}

/// Those of a call, in its order.
struct Admitted {
    all: Vec<Arc<Record>>,
    /// Those that it has reserved.
    new: Vec<Arc<Record>>,
    /// Those of an earlier call that it repeats.
    known: Vec<Arc<Record>>,
}

async fn attach_all(
    engine: &Engine,
    specs: &[AttachSpec],
    asked: Asked,
) -> Result<Vec<AttachmentView>, Failure> {
    let phases = &engine.phases.attach;
    let keys = engine.keys.lock_all(specs.iter().map(|spec| &spec.key));
    let _keys = phases.time(LOCKS, keys).await;
    let reserved = phases.time(RESERVE, reserve_all(engine, specs, asked)).await;
    let (Admitted { all, new, known }, _vfs) = reserved?;
    bring_up_again(engine, &known).await.inspect_err(|_| forget(engine, &new))?;
    let established = establish(engine, &new).await;
    note_outcome(engine, &new, &established);
    established?;
    all.iter().map(|record| engine.view(record)).collect()
}

/// Admits all, and locks their VFs: from before the records are durable, so that the reconciler does not take
/// them for neglected.
async fn reserve_all(
    engine: &Engine,
    specs: &[AttachSpec],
    asked: Asked,
) -> Result<(Admitted, Vec<Held>), Failure> {
    let admitted = admit_all(engine, specs, asked)?;
    let vfs = engine.ports.lock_all(admitted.all.iter().map(|record| &record.vf)).await;
    Ok((admitted, vfs))
}

/// Reserves all that attachments need, or finds those that a repeated call means: of all, or nothing.
fn admit_all(engine: &Engine, specs: &[AttachSpec], asked: Asked) -> Result<Admitted, Failure> {
    let mut admitted = Admitted { all: Vec::new(), new: Vec::new(), known: Vec::new() };
    for spec in specs {
        let (record, is_new) = admit(engine, spec, asked).map_err(|failure| {
            forget(engine, &admitted.new);
            let failure = with_those_before(failure, admitted.new.len(), specs.len());
            note_refused(engine, spec, &failure);
            failure
        })?;
        let kind = if is_new { &mut admitted.new } else { &mut admitted.known };
        kind.push(Arc::clone(&record));
        admitted.all.push(record);
    }
    Ok(admitted)
}

/// Of VFs that are not enough: how many of those in use are of the same call.
fn with_those_before(failure: Failure, reserved: usize, asked: usize) -> Failure {
    if failure.reason != Reason::VfsExhausted || reserved == 0 {
        return failure;
    }
    let message = format!(
        "{}; {reserved} of those in use are for the same pod, which asks for {asked} at once",
        failure.message
    );
    Failure { message, ..failure }
}

/// Forgets reservations that nobody has heard of.
fn forget(engine: &Engine, records: &[Arc<Record>]) {
    let mut registry = engine.registry();
    for record in records {
        registry.forget(record.id, None, now());
    }
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
    if engine.keys.overtaken().has(&spec.key, &boot_id, as_of) {
        let why = format!("{} was given back since it was asked for", spec.key);
        return Err(Failure::new(Reason::DeadlineExceeded, why));
    }
    if let Some(entry) = registry.entries().by_key(&spec.key) {
        check_same(entry, spec, &registry)?;
        let record = Arc::clone(entry.record());
        check_host(engine, &record, session)?;
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
    check_host(engine, record, session)
}

/// Whether the host's agent does all that is left to it.
fn check_host(engine: &Engine, record: &Record, session: SessionId) -> Result<(), Failure> {
    check_understood(engine, record, session)?;
    check_kept_by_host(engine, record, session)
}

/// Whether the host's agent knows of all that the network says: it would pass the rest over in silence.
fn check_understood(engine: &Engine, record: &Record, session: SessionId) -> Result<(), Failure> {
    let host = &record.key.host;
    let unknown = record
        .network
        .asked_of_agents()
        .find(|(_, capability)| !engine.sessions.can(host, session, capability));
    let Some((what, _)) = unknown else { return Ok(()) };
    let why = format!(
        "{what} can't be had: the agent of host {host} is of a version that does not know of it; upgrade it"
    );
    Err(unsupported_by(record, &why))
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

/// What came of the kernel's part of an attachment.
struct SetUp {
    programmed: Result<u32, ProgramError>,
    mapped: Result<(), Failure>,
}

impl SetUp {
    fn failure(&self) -> Option<Failure> {
        let programmed = self.programmed.as_ref().err().map(failure_of);
        programmed.or_else(|| self.mapped.clone().err())
    }

    /// Whether it is the representor's own fault, and why.
    fn against_vf(&self) -> Option<String> {
        let error = self.programmed.as_ref().err().filter(|error| error.fault() == Fault::Port)?;
        Some(failure_of(error).message)
    }
}

/// Records reservations and programs the representors, at the same time: the disk and the kernel do
/// not wait for each other, and the host hears of the attachments once all is done. Unless all
/// succeeds, what can be is taken back: nobody has used it yet. Should the service die in between, the
/// reconciler programs what is recorded and clears what is not. The caller holds the VFs' locks.
async fn establish(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(());
    }
    // A disk that is full or hangs stays so for long: the kernel is not to be changed to and fro.
    if let Err(failure) = engine.records.probe().await {
        forget(engine, records);
        return Err(failure);
    }
    let ports = join_all(records.iter().map(|record| set_up(engine, record)));
    let phases = &engine.phases.attach;
    let (written, ports) =
        tokio::join!(phases.time(JOURNAL, write(engine, records)), phases.time(PROGRAM, ports));
    let is_written = written.is_ok();
    let failures = written.err().into_iter().chain(ports.iter().filter_map(SetUp::failure));
    let failures: Vec<_> = failures.collect();
    let Some(failure) = failures.first() else {
        for (record, port) in records.iter().zip(ports) {
            port.programmed.into_iter().for_each(|index| note_programmed(engine, record, index));
        }
        return Ok(());
    };
    // Of several failures the host is told one.
    for failure in &failures[1..] {
        tracing::warn!(id = %records[0].id, %failure, "failed, too");
    }
    take_back(engine, records, &ports, is_written.then_some(failure)).await;
    Err(failure.clone())
}

async fn set_up(engine: &Engine, record: &Arc<Record>) -> SetUp {
    add_neighbours(engine, record).await;
    let (programmed, mapped) = tokio::join!(engine.ports.program(record), map(engine, record));
    SetUp { programmed, mapped }
}

/// Writes the records to the journal.
async fn write(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    let changes = Changes::default();
    let changes = records.iter().fold(changes, |changes, record| changes.put_attachment(record));
    engine.records.commit(changes).await?;
    for record in records {
        if let Some(entry) = engine.registry().change(record.id) {
            entry.note_recorded();
        }
    }
    Milestone::AttachRecorded.pass();
    records.iter().for_each(|record| engine.events.record_reserved(record));
    Ok(())
}

/// Takes attachments back of which one at least failed; nobody has used them yet. They are `recorded`, and then
/// that failure is told of them, or are not.
async fn take_back(
    engine: &Engine,
    records: &[Arc<Record>],
    ports: &[SetUp],
    recorded: Option<&Failure>,
) {
    // Unprogrammed first: once they are forgotten, another attach may get the VFs and the addresses.
    for (record, port) in records.iter().zip(ports) {
        match &port.programmed {
            Ok(_) => engine.unprogram(record.vf).await,
            Err(error) => programmer::leftover_of(error)
                .into_iter()
                .for_each(|leftover| engine.note_leftover(&leftover)),
        }
        delete_neighbours(engine, record).await;
    }
    match recorded {
        Some(failure) => abandon(engine, records, ports, failure).await,
        None => forget(engine, records),
    }
    for record in records {
        unmap(engine, record).await;
    }
}

/// Deletes the records of attachments of which nothing is programmed any more.
async fn abandon(engine: &Engine, records: &[Arc<Record>], ports: &[SetUp], failure: &Failure) {
    // Marked first: a record that can't be deleted must not be programmed again.
    for record in records {
        let mut registry = engine.registry();
        // One that was promised its host may have begun to move.
        let is_at_home = !registry.vfs().is_promised(record.vf);
        let vf = if is_at_home { VfReturn::Clean } else { VfReturn::Awaited };
        registry.release(record.id, vf);
    }
    let changes = Changes::default();
    let changes =
        records.iter().fold(changes, |changes, record| changes.delete_attachment(record.id));
    match engine.records.commit(changes).await {
        Ok(()) => {
            for (record, port) in records.iter().zip(ports) {
                engine.registry().forget(record.id, port.against_vf().as_deref(), now());
                note_quarantine(engine, record.vf);
            }
        }
        // They stay as releasing; the reconciler goes on trying.
        Err(error) => tracing::error!(id = %records[0].id, %error, "a failed attachment stays"),
    }
    for record in records {
        let (kind, message) = (EventKind::AttachmentFailed, failure.message.clone());
        engine.events.record_end(kind, record, Some(failure), message);
    }
}

/// Records that the failure was one too many for the VF, which had no quarantine before: it was in use.
fn note_quarantine(engine: &Engine, vf: FunctionId) {
    let state = engine.registry().vfs().state(vf);
    if let Some(VfState::Quarantined { reason }) = state {
        engine.events.record(EventKind::VfQuarantined, vf, reason);
    }
}

/// Programs what is not yet programmed for an earlier call. Pods may use the attachments, so they
/// stay whatever happens. The caller holds the VFs' locks.
async fn bring_up_again(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    // What was programmed once, or runs already, is the reconciler's to look after.
    let is_up = |entry: &Entry| entry.programmed().is_some() || entry.is_attached();
    for record in records {
        if engine.registry().entries().get(record.id).is_some_and(is_up) {
            continue;
        }
        add_neighbours(engine, record).await;
        let repaired = engine.ports.program_rest(record).await;
        note_programmed(engine, record, repaired.map_err(|error| failure_of(&error))?.index);
    }
    Ok(())
}

fn note_programmed(engine: &Engine, record: &Record, index: u32) {
    if let Some(entry) = engine.registry().change(record.id) {
        entry.note_programmed(index);
    }
    Milestone::AttachProgrammed.pass();
    let message = format!("{} forwards for {}", record.vf, record.holder());
    engine.events.record(EventKind::AttachmentProgrammed, record.id, message);
}

fn unsupported_by(record: &Record, why: &str) -> Failure {
    Failure::new(Reason::Unsupported, format!("network {}: {why}", record.network.name))
}

fn failure_of(error: &ProgramError) -> Failure {
    let reason = match error.fault() {
        Fault::FabricFull => Reason::FabricFull,
        Fault::FabricAway => Reason::FabricUnavailable,
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
    // The host asks again without it, and is given this one.
    if spec.promised.as_ref().is_some_and(|promise| promise.device != record.device) {
        let message = format!("{} has the VF at {} already", record.key, record.device);
        return Err(Failure::new(Reason::VfNotFree, message));
    }
    if tighter(&record.network.bandwidth, &spec.bandwidth) != record.bandwidth {
        return differs("other rate limits".into());
    }
    if spec.lead != record.lead {
        return differs(record.lead.as_ref().map_or_else(
            || "no other interface to lead it".into(),
            |lead| format!("interface {lead} to lead it"),
        ));
    }
    if spec.port_mappings != record.port_mappings {
        return differs("other mapped ports".into());
    }
    if spec.asked_sources != record.asked_sources {
        return differs("other allowed sources".into());
    }
    if spec.families != record.families {
        return differs("other IP families".into());
    }
    if spec.further_leases.len() != record.further_leases.len() {
        let held = record.further_leases.len();
        return differs(format!("addresses for {held} interfaces that others make"));
    }
    for LeaseSpec { interface_name, network, addresses } in &spec.further_leases {
        let is_its = |held: &&FurtherLease| held.interface_name == *interface_name;
        let held = record.further_leases.iter().find(is_its);
        let Some(held) = held.filter(|held| held.network.name == *network) else {
            return differs(format!("no addresses of network {network} for {interface_name}"));
        };
        if let Some(address) = not_held(addresses, &held.leases) {
            return differs(format!("addresses other than {address} for {interface_name}"));
        }
    }
    match not_held(&spec.addresses, &record.leases) {
        Some(address) => differs(format!("addresses other than {address}")),
        None => Ok(()),
    }
}

/// The first of the wanted addresses that is not among the leases.
fn not_held<'a>(wanted: &'a [WantedAddress], leases: &[Lease]) -> Option<&'a WantedAddress> {
    let is_held = |address: &&WantedAddress| {
        leases.iter().map(|lease| lease.address).any(|held| {
            let length = address.prefix_length.unwrap_or(held.prefix());
            (held.ip(), held.prefix()) == (address.ip, length)
        })
    };
    wanted.iter().find(|address| !is_held(address))
}
