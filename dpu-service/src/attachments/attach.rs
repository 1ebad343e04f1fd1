//! Attach: reserve, then record and program.

use std::sync::Arc;

use bootstrap::Chain;
use offload_proto::{Failure, Reason, capability};

use super::{
    allocation::tighter,
    engine::{Engine, now},
    registry::{Entry, Registry},
};
use crate::{
    driver::Fault,
    events::EventKind,
    host::{HostTime, SessionId},
    milestones::Milestone,
    model::{AttachSpec, AttachmentView, Record, WantedAddress},
    programmer::{self, ProgramError, Programmer},
    records::Changes,
};

/// When a host has asked for an attachment.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// In this session.
    pub session: SessionId,
    /// At this time of its clock.
    pub as_of: HostTime,
}

impl Engine {
    pub(super) async fn attach(
        &self,
        spec: AttachSpec,
        asked: Asked,
    ) -> Result<AttachmentView, Failure> {
        let _key = self.keys.lock(&spec.key).await;
        let (record, is_new) = self.admit(&spec, asked)?;
        // From before the record is durable, so that the reconciler does not take it for neglected.
        let _vf = self.vfs.lock(&record.vf).await;
        if is_new {
            self.establish(&record).await?;
        } else {
            self.bring_up_again(&record).await?;
        }
        self.view(&record)
    }

    /// Reserves all that an attachment needs, or finds the one that a repeated call means. Tells
    /// whether it is a new one.
    fn admit(&self, spec: &AttachSpec, asked: Asked) -> Result<(Arc<Record>, bool), Failure> {
        let Asked { session, as_of } = asked;
        let mut registry = self.registry();
        let host = &spec.key.host;
        registry.host_id(host)?;
        let boot_id = self.sessions.boot_id(host, session).ok_or_else(|| super::stale(session))?;
        if self.overtaken().has(&spec.key, &boot_id, as_of) {
            let why = format!("{} was given back since it was asked for", spec.key);
            return Err(Failure::new(Reason::DeadlineExceeded, why));
        }
        if let Some(entry) = registry.by_key(&spec.key) {
            check_same(entry, spec, &registry)?;
            self.check_kept_by_host(&entry.record, session)?;
            let record = Arc::clone(&entry.record);
            if let Some(entry) = registry.get_mut(record.id) {
                entry.session = Some(session);
                entry.unclaimed = false;
            }
            return Ok((record, false));
        }
        if let Some(reason) = &registry.draining {
            return Err(Failure::new(Reason::Draining, format!("the DPU is draining: {reason}")));
        }
        let record = registry.reserve(spec, session, boot_id, now())?;
        if let Err(failure) = self.check_kept(&record, session) {
            registry.forget(record.id, None, now());
            return Err(failure);
        }
        Ok((record, true))
    }

    /// Whether the pod will be kept to what its network says: by the card, or else by the host.
    fn check_kept(&self, record: &Record, session: SessionId) -> Result<(), Failure> {
        let checked = self.programmer.check(&record.port_settings());
        checked.map_err(|unsupported| unsupported_by(record, &unsupported.to_string()))?;
        self.check_kept_by_host(record, session)
    }

    /// Whether the host does what is left to it. An agent that does not know of it would say nothing.
    fn check_kept_by_host(&self, record: &Record, session: SessionId) -> Result<(), Failure> {
        let host = &record.key.host;
        let is_kept = self.programmer.has_representors()
            || !record.port_settings().needs_keeping()
            || self.sessions.can(host, session, capability::KEEPS_PORT);
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
    /// succeed, what can be is taken back. Should the service die in between, the reconciler programs
    /// what is recorded and clears what is not. The caller holds the VF's lock.
    async fn establish(&self, record: &Arc<Record>) -> Result<(), Failure> {
        // A disk that is full stays so for long: the kernel is not to be changed to and fro.
        if let Some(failure) = self.records.problem().await {
            self.registry().forget(record.id, None, now());
            return Err(failure);
        }
        let programming = self.program(record.port_settings(), Programmer::program);
        match tokio::join!(self.record(record), programming) {
            (Ok(()), Ok(index)) => {
                self.note_programmed(record, index);
                Ok(())
            }
            (Ok(()), Err(error)) => Err(self.abandon(record, &error).await),
            (Err(failure), _) => {
                self.unprogram(record.vf).await;
                self.registry().forget(record.id, None, now());
                Err(failure)
            }
        }
    }

    /// Writes the record to the journal.
    async fn record(&self, record: &Record) -> Result<(), Failure> {
        self.records.commit(Changes::default().put_attachment(record)).await?;
        if let Some(entry) = self.registry().get_mut(record.id) {
            entry.durable = true;
        }
        Milestone::AttachRecorded.pass();
        let message = format!("{} reserved for {}", record.vf, record.key);
        self.events.record(EventKind::AttachmentReserved, record.id, message);
        Ok(())
    }

    /// Programs what is not yet programmed for an earlier call. Pods may use the attachment, so it
    /// stays whatever happens. The caller holds the VF's lock.
    async fn bring_up_again(&self, record: &Record) -> Result<(), Failure> {
        let is_up = |entry: &Entry| entry.programmed.is_some() || entry.attached;
        if self.registry().get(record.id).is_some_and(is_up) {
            return Ok(());
        }
        let repaired = self.program(record.port_settings(), Programmer::repair).await;
        let repaired = repaired.map_err(|error| failure_of(&error))?;
        self.note_programmed(record, repaired.index);
        Ok(())
    }

    fn note_programmed(&self, record: &Record, index: u32) {
        if let Some(entry) = self.registry().get_mut(record.id) {
            entry.programmed = Some(index);
        }
        Milestone::AttachProgrammed.pass();
        let message = format!("{} forwards for {}", record.vf, record.key);
        self.events.record(EventKind::AttachmentProgrammed, record.id, message);
    }

    /// Takes an attachment back that could not be programmed; nobody has used it yet.
    async fn abandon(&self, record: &Arc<Record>, error: &ProgramError) -> Failure {
        let failure = failure_of(error);
        if let Some(leftover) = programmer::leftover_of(error) {
            self.note_leftover(&leftover);
        }
        self.registry().set_releasing(record.id, true);
        match self.records.commit(Changes::default().delete_attachment(record.id)).await {
            Ok(()) => {
                let against_vf = (error.fault() == Fault::Port).then_some(&*failure.message);
                self.registry().forget(record.id, against_vf, now());
            }
            // It stays as releasing; the reconciler goes on trying.
            Err(error) => tracing::error!(id = %record.id, %error, "a failed attachment stays"),
        }
        self.events.record(EventKind::AttachmentFailed, record.id, failure.message.clone());
        failure
    }

    pub(super) fn view(&self, record: &Record) -> Result<AttachmentView, Failure> {
        let registry = self.registry();
        let entry = registry.get(record.id);
        entry.map(Entry::view).ok_or_else(|| super::unknown(&record.id))
    }
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
    let record = &entry.record;
    if !entry.is_held() {
        return Err(super::releasing(record));
    }
    let differs = |what: String| {
        Err(Failure::new(
            Reason::AttachmentDiffers,
            format!("{} is attachment {} already, with {what}", record.key, record.id),
        ))
    };
    let default = || registry.networks.find(None).map(|entry| entry.network.name.clone()).ok();
    let network = spec.network.clone().or_else(default);
    if network.is_some_and(|network| network != record.network.name) {
        return differs(format!("network {}", record.network.name));
    }
    if spec.mac.is_some_and(|mac| mac != record.mac) {
        return differs(format!("MAC address {}", record.mac));
    }
    if spec.pci_address.as_ref().is_some_and(|pci| *pci != record.pci_address) {
        return differs(format!("the VF at {}", record.pci_address));
    }
    if tighter(&record.network.bandwidth, &spec.bandwidth) != record.bandwidth {
        return differs("other rate limits".into());
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
