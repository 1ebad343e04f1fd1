//! Attach: reserve, then record and program. The attachments of one call succeed together or leave nothing behind.
//!
//! Locks: the keys of all attachments from beginning to end, then their VFs, then the registry for short reads and
//! changes.
//!
//! Concurrently: inventories and hellos may change an attachment without its key's lock, but they only mark it. A flow
//! that releases or frees an attachment waits for the key.

use std::sync::Arc;

use bootstrap::Chain;
use futures::future::join_all;
use keyed_locks::Held;
use offload_proto::{Failure, Reason};
use vf_alloc::{FunctionId, VfState};

use super::{
    engine::{Engine, now},
    gateways::{add_neighbours, delete_neighbours, map, unmap},
    phases::{JOURNAL, LOCKS, PROGRAM, RESERVE, TOTAL},
    refusals::{note_outcome, note_refused},
    registry::{Entry, Registry, VfReturn, tighter},
    releasing, stale,
};
use crate::{events::EventKind, host::Asked, kill_points::KillPoint, records::Changes};
use drivers::{
    driver::Fault,
    programmer::{self, ProgramError},
};
use model::{AttachSpec, AttachmentView, FurtherLease, Lease, LeaseSpec, Record, WantedAddress};

impl Engine {
    /// Reserves a VF, a MAC address and addresses, records that, and programs the representor. Idempotent: repeating
    /// the call returns the same attachment.
    ///
    /// # Errors
    /// The refusal or failure; nothing of the attachment is left.
    pub async fn attach(
        self: &Arc<Self>,
        spec: AttachSpec,
        asked: Asked,
    ) -> Result<AttachmentView, Failure> {
        let key = spec.key.clone();
        let view = self.attach_all(vec![spec], asked).await?.pop();
        view.ok_or_else(|| Failure::new(Reason::Internal, format!("{key} got no attachment")))
    }

    /// Attaches several interfaces together. `specs` has at least one element and no key twice. New attachments are
    /// recorded in one transaction.
    ///
    /// # Errors
    /// The first refusal or failure; nothing of any new attachment is left.
    pub async fn attach_all(
        self: &Arc<Self>,
        specs: Vec<AttachSpec>,
        asked: Asked,
    ) -> Result<Vec<AttachmentView>, Failure> {
        let attach = async move |engine: Arc<Self>| {
            let attached =
                engine.phases.attach.time(TOTAL, attach_all(&engine, &specs, asked)).await;
            // After a failure as well: either way the free VFs have changed, and so the possible offers.
            specs.iter().for_each(|spec| engine.sessions.note_vfs_changed(&spec.key.host));
            attached
        };
        self.to_the_end(attach).await
    }
}

/// The attachments of one call, in its order.
struct Admitted {
    all: Vec<Arc<Record>>,
    /// Reserved by this call.
    new: Vec<Arc<Record>>,
    /// Made by an earlier call that this one repeats.
    known: Vec<Arc<Record>>,
}

async fn attach_all(
    engine: &Engine,
    specs: &[AttachSpec],
    asked: Asked,
) -> Result<Vec<AttachmentView>, Failure> {
    let phases = &engine.phases.attach;
    // Held until the answer: a repeated call or a Detach of one of these keys waits for a definite outcome.
    let keys = engine.keys.lock_all(specs.iter().map(|spec| &spec.key));
    let _keys = phases.time(LOCKS, keys).await;
    let reserved = phases.time(RESERVE, reserve_all(engine, specs, asked)).await;
    let (Admitted { all, new, known }, _vfs) = reserved?;
    // Known attachments first: if one cannot be programmed, the new ones exist only in memory and are simply forgotten.
    bring_up_again(engine, &known).await.inspect_err(|_| forget(engine, &new))?;
    let established = establish(engine, &new).await;
    note_outcome(engine, &new, &established);
    established?;
    all.iter().map(|record| engine.view(record)).collect()
}

/// Admits all specs and locks their VFs. The locks are taken before the records are durable: the reconciler repairs
/// every recorded attachment that is not programmed, unless its VF is locked.
async fn reserve_all(
    engine: &Engine,
    specs: &[AttachSpec],
    asked: Asked,
) -> Result<(Admitted, Vec<Held>), Failure> {
    let admitted = admit_all(engine, specs, asked)?;
    let vfs = engine.ports.lock_all(admitted.all.iter().map(|record| &record.vf)).await;
    Ok((admitted, vfs))
}

/// Admits all specs, or forgets those already reserved and returns the failure.
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

/// Adds to `VFS_EXHAUSTED` how many of the VFs in use belong to the same call.
fn with_those_before(failure: Failure, reserved: usize, asked: usize) -> Failure {
    if failure.reason != Reason::VfsExhausted || reserved == 0 {
        return failure;
    }
    let message = format!(
        "{}; {reserved} of those in use are for the same pod, which requests {asked} together",
        failure.message
    );
    Failure { message, ..failure }
}

/// Forgets reservations that were never reported to a host.
fn forget(engine: &Engine, records: &[Arc<Record>]) {
    let mut registry = engine.registry();
    for record in records {
        registry.forget(record.id, None, now());
    }
}

/// Reserves what a new attachment needs, or finds the existing one of a repeated call. Returns whether it is new.
///
/// The session is checked under the same lock of the registry that reserves. A hello opens its session before it
/// searches for attachments that its host does not know. So either the hello sees this reservation, or this call is
/// refused as stale.
fn admit(engine: &Engine, spec: &AttachSpec, asked: Asked) -> Result<(Arc<Record>, bool), Failure> {
    let Asked { session, as_of } = asked;
    let mut registry = engine.registry();
    let host = &spec.key.host;
    // Before the session check: an unknown host has no session, and `STALE_SESSION` would hide the reason.
    registry.hosts().number(host)?;
    let boot_id = engine.sessions.boot_id(host, session).ok_or_else(|| stale(session))?;
    if engine.tombstones.lock().has(&spec.key, &boot_id, as_of) {
        let why = format!("{} was detached after this Attach was sent", spec.key);
        return Err(Failure::new(Reason::DeadlineExceeded, why));
    }
    if let Some(entry) = registry.entries().by_key(&spec.key) {
        check_same(entry, spec, &registry)?;
        let record = Arc::clone(entry.record());
        if let Some(entry) = registry.change(record.id) {
            entry.note_asked(asked);
        }
        return Ok((record, false));
    }
    // Draining refuses new attachments only: a host may repeat a call whose answer was lost.
    if let Some(reason) = registry.draining() {
        return Err(Failure::new(Reason::Draining, format!("the DPU is draining: {reason}")));
    }
    let record = registry.reserve(spec, asked, boot_id, now())?;
    // Checked on the record, not on the spec: the network's limits may be tighter than the requested ones.
    let checked = check_mac(engine, &record).and_then(|()| check_enforced(engine, &record));
    if let Err(failure) = checked {
        registry.forget(record.id, None, now());
        return Err(failure);
    }
    Ok((record, true))
}

/// Refuses the MAC address of one of the fabric's own links: the pod would receive the link's frames, or none.
fn check_mac(engine: &Engine, record: &Record) -> Result<(), Failure> {
    if !engine.programmer().has_mac(record.mac) {
        return Ok(());
    }
    let why = format!(
        "MAC address {} belongs to a link of the DPU's fabric: request another one",
        record.mac
    );
    Err(Failure::new(Reason::MacInUse, why))
}

/// Checks that the card or the host enforces the network's settings on the pod.
fn check_enforced(engine: &Engine, record: &Record) -> Result<(), Failure> {
    engine.programmer().check(&record.port_settings()).map_err(|unsupported| {
        let message = format!("network {}: {unsupported}", record.network.name);
        Failure::new(Reason::Unsupported, message)
    })
}

/// Results of programming the representor and of mapping ports.
struct SetUp {
    programmed: Result<u32, ProgramError>,
    mapped: Result<(), Failure>,
}

impl SetUp {
    fn failure(&self) -> Option<Failure> {
        let programmed = self.programmed.as_ref().err().map(failure_of);
        programmed.or_else(|| self.mapped.clone().err())
    }

    /// Why the representor itself is at fault, if it is: counts towards the VF's quarantine.
    fn against_vf(&self) -> Option<String> {
        let error = self.programmed.as_ref().err().filter(|error| error.fault() == Fault::Port)?;
        Some(failure_of(error).message)
    }
}

/// Records reservations and programs their representors concurrently, then returns. On any failure, takes all of it
/// back: the host has received no answer, so no pod uses it. After a crash in between, the reconciler programs recorded
/// attachments and clears unrecorded ports. The caller holds the VFs' locks.
async fn establish(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(());
    }
    // Probed first: a full or hanging disk stays so for long, and each attach would program and unprogram in vain.
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
    // The answer carries the first failure; the others are only logged.
    for failure in &failures[1..] {
        tracing::warn!(attachment = %records[0].id, error = %failure, "another step of a failed attach failed, too");
    }
    undo(engine, records, &ports, is_written.then_some(failure)).await;
    Err(failure.clone())
}

async fn set_up(engine: &Engine, record: &Arc<Record>) -> SetUp {
    // Before programming: the gateway must know the pod when its port begins to forward.
    add_neighbours(engine, record).await;
    let (programmed, mapped) = tokio::join!(engine.ports.program(record), map(engine, record));
    SetUp { programmed, mapped }
}

async fn write(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    let changes = Changes::default();
    let changes = records.iter().fold(changes, |changes, record| changes.put_attachment(record));
    // Marked as recorded only afterwards: operators and the reconciler see durable records only.
    engine.records.commit(changes).await?;
    for record in records {
        if let Some(entry) = engine.registry().change(record.id) {
            entry.note_recorded();
        }
    }
    KillPoint::AttachRecorded.pass();
    records.iter().for_each(|record| engine.events.record_reserved(record));
    Ok(())
}

/// Takes back attachments of which at least one failed. No pod has used them. `recorded` is the failure to report if
/// their records are in the journal.
async fn undo(
    engine: &Engine,
    records: &[Arc<Record>],
    ports: &[SetUp],
    recorded: Option<&Failure>,
) {
    // Unprogram before forgetting: a forgotten VF or address may go to another attach at once.
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
        // Once the attachment is no longer held: redirections are rebuilt from the held ones.
        unmap(engine, record).await;
    }
}

/// Deletes the records of attachments that are no longer programmed.
async fn abandon(engine: &Engine, records: &[Arc<Record>], ports: &[SetUp], failure: &Failure) {
    // Marked as releasing first: if the delete fails, the reconciler must not program the record again.
    for record in records {
        let mut registry = engine.registry();
        // The host may already have moved a VF that it was offered.
        let is_at_home = !registry.vfs().is_offered(record.vf);
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
        // They stay as releasing; the reconciler retries.
        Err(error) => {
            tracing::error!(attachment = %records[0].id, %error, "cannot delete the records of a failed attach; retrying");
        }
    }
    for record in records {
        let (kind, message) = (EventKind::AttachmentFailed, failure.message.clone());
        engine.events.record_end(kind, record, Some(failure), message);
    }
}

/// Reports a quarantine that this failure has caused. The VF was in use, so it had no quarantine before.
fn note_quarantine(engine: &Engine, vf: FunctionId) {
    let state = engine.registry().vfs().state(vf);
    if let Some(VfState::Quarantined { reason }) = state {
        engine.events.record(EventKind::VfQuarantined, vf, reason);
    }
}

/// Programs what an earlier call left unprogrammed. Pods may use these attachments, so a failure takes nothing back.
/// The caller holds the VFs' locks.
async fn bring_up_again(engine: &Engine, records: &[Arc<Record>]) -> Result<(), Failure> {
    // Once programmed or attached, only the reconciler repairs an attachment.
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
    KillPoint::AttachProgrammed.pass();
    let message = format!("{} forwards for {}", record.vf, record.holder());
    engine.events.record(EventKind::AttachmentProgrammed, record.id, message);
}

fn failure_of(error: &ProgramError) -> Failure {
    let reason = match error.fault() {
        Fault::FabricFull => Reason::FabricFull,
        Fault::FabricAway => Reason::FabricUnavailable,
        Fault::Port | Fault::Elsewhere => Reason::ProgrammingFailed,
    };
    Failure::new(reason, Chain(error).to_string())
}

/// Refuses a repeated Attach whose request differs from the existing attachment.
fn check_same(entry: &Entry, spec: &AttachSpec, registry: &Registry) -> Result<(), Failure> {
    let record = entry.record();
    // Before any comparison: the host retries RELEASING, but not ATTACHMENT_DIFFERS.
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
    let network = spec.interface.named_network().map(str::to_owned).or_else(default);
    if network.is_some_and(|network| network != record.network.name) {
        return differs(format!("network {}", record.network.name));
    }
    if spec.interface.mac.is_some_and(|mac| mac != record.mac) {
        return differs(format!("MAC address {}", record.mac));
    }
    if spec.interface.device.as_ref().is_some_and(|device| *device != record.device) {
        return differs(format!("the VF at {}", record.device));
    }
    // With `VF_NOT_FREE` the host asks again without naming a VF, and then gets this attachment.
    if spec.offered.as_ref().is_some_and(|offer| offer.device != record.device) {
        let message = format!("{} has the VF at {} already", record.key, record.device);
        return Err(Failure::new(Reason::VfNotFree, message));
    }
    if tighter(&record.network.bandwidth, &spec.interface.bandwidth) != record.bandwidth {
        return differs("other rate limits".into());
    }
    if spec.group_interface != record.group_interface {
        return differs(record.group_interface.as_ref().map_or_else(
            || "no group interface".into(),
            |interface| format!("group interface {interface}"),
        ));
    }
    if spec.interface.port_mappings != record.port_mappings {
        return differs("other mapped ports".into());
    }
    if spec.interface.allowed_sources != record.asked_sources {
        return differs("other allowed sources".into());
    }
    if spec.interface.families != record.families {
        return differs("other IP families".into());
    }
    if spec.further_leases.len() != record.further_leases.len() {
        let held = record.further_leases.len();
        return differs(format!("addresses for {held} interfaces of other plugins"));
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
    match not_held(&spec.interface.addresses, &record.leases) {
        Some(address) => differs(format!("addresses other than {address}")),
        None => Ok(()),
    }
}

/// Returns the first wanted address that is not among the leases.
fn not_held<'a>(wanted: &'a [WantedAddress], leases: &[Lease]) -> Option<&'a WantedAddress> {
    let is_held = |address: &&WantedAddress| {
        leases.iter().map(|lease| lease.address).any(|held| {
            let length = address.prefix_length.unwrap_or(held.prefix());
            (held.ip(), held.prefix()) == (address.ip, length)
        })
    };
    wanted.iter().find(|address| !is_held(address))
}
