//! ADD: ask the DPU, take its VF in, answer.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Netns, NetnsId};
use offload_proto::{
    Failure, Reason,
    v1::{self, host_message},
};

use super::{
    Agent,
    detach::Renewal,
    dpu::detach_request,
    intake::{Setback, TakenIn},
    milestones::Milestone,
    records::{Phase, PodNetns, Record},
    session::Standing,
};
use crate::{
    mover::{Cargo, Durations, Failed, Plan, open_netns},
    protocol::AddRequest,
};

impl Agent {
    /// Serves an ADD. Repeating it gives the same attachment.
    ///
    /// # Errors
    /// Why the pod has no interface. Then nothing of it is left: neither here nor on the DPU,
    /// except that a DPU which can't be reached any more is told later.
    pub(super) async fn attach(
        self: &Arc<Self>,
        request: AddRequest,
        deadline: Instant,
    ) -> Result<v1::Attachment, Failure> {
        let started = Instant::now();
        let _key = self.keys.lock(&request.key).await;
        let netns = self.pod_netns(&request.netns)?;
        self.make_way(&request, netns.id).await?;

        // Until it is recorded, a hello lists it as under way.
        let pending = self.pending.enter(&request.key);
        let asked = Instant::now();
        let attachment = self.call_attach(&request, deadline).await?;
        let rpc = asked.elapsed();
        Milestone::AttachAnswered.pass();

        let taken_in = self.take_in(request, netns, attachment.clone()).await;
        drop(pending);
        let TakenIn { record, recording, durations } = match taken_in {
            Ok(taken_in) => taken_in,
            Err(Setback::Unrecorded { failure, found_vf }) => {
                self.give_back_unused(&attachment, found_vf).await;
                return Err(failure);
            }
            Err(Setback::Unmoved { failure, record }) => {
                self.release(record, Duration::ZERO, Renewal::Later).await;
                return Err(failure);
            }
        };
        Milestone::AttachDone.pass();
        self.tell_attached(&record);
        log(&record, rpc, recording, &durations, started.elapsed());
        Ok(attachment)
    }

    /// The namespace at a path. It is not kept open while the DPU is asked: that would keep it alive,
    /// and with it the pod's other VFs away from the host.
    fn pod_netns(&self, path: &str) -> Result<PodNetns, Failure> {
        let id = open_netns(path)?.id();
        if id == self.host.id() {
            let message = format!("{path} is the host's own network namespace");
            return Err(Failure::new(Reason::NetnsInvalid, message));
        }
        Ok(PodNetns { path: path.to_owned(), id })
    }

    /// Settles what an earlier attach of the same key has left.
    async fn make_way(
        self: &Arc<Self>,
        request: &AddRequest,
        netns: NetnsId,
    ) -> Result<(), Failure> {
        let key = &request.key;
        let Some(earlier) = self.records.by_key(key) else { return Ok(()) };
        if earlier.phase == Phase::Releasing {
            self.release(earlier, self.config.timeouts.vf_return(), Renewal::Now).await;
            return match self.records.by_key(key) {
                None => Ok(()),
                Some(left) => Err(self.still_releasing(&left)),
            };
        }
        let differing = if earlier.netns.id != netns {
            "in another network namespace"
        } else if earlier.device_info_file != request.device_info_file {
            "with another device-info file"
        } else {
            return Ok(());
        };
        let message = format!("{key} is attached {differing} already");
        Err(Failure::new(Reason::AttachmentDiffers, message))
    }

    /// That an earlier attachment is not given back yet, and why.
    pub(super) fn still_releasing(&self, left: &Record) -> Failure {
        let why = match self.session.standing() {
            Standing::Down { failure, .. } => {
                format!("the DPU has not been told yet, since there is no session: {failure}")
            }
            Standing::Up(_) if left.is_returned => "the DPU has not confirmed it yet".into(),
            Standing::Up(_) => format!("VF {} is not back yet", left.pci_address()),
        };
        let message =
            format!("an earlier attachment of {} is still being given back: {why}", left.key());
        Failure::new(Reason::Releasing, message)
    }

    /// Gives back an attachment whose VF was not touched, and which has no record. A VF that was
    /// not found either is the DPU's again when the inventory shows it.
    async fn give_back_unused(&self, attachment: &v1::Attachment, found_vf: bool) {
        if self.records.by_id(&attachment.id).is_some() {
            return;
        }
        // Its record may have been on its way to the disk.
        self.records.remove(&attachment.id);
        let request = detach_request(attachment.key.clone(), attachment.id.clone(), found_vf);
        if let Err(failure) = self.call_detach(request.clone()).await {
            self.detach_later(request, &failure);
        }
        self.inventory_wanted();
    }

    /// The VF of a record and how it is to be on either side.
    pub(super) fn cargo(&self, record: &Record) -> Result<Cargo, Failure> {
        let plan = Plan::new(&record.attachment, self.config.timeouts.carrier())
            .map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        Ok(Cargo {
            source: Arc::clone(&self.source),
            pci_address: record.pci_address().to_owned(),
            original: record.original.clone(),
            plan,
            announcer: self.announcer.clone(),
        })
    }

    /// Tells the DPU that the pod has its VF.
    pub(super) fn tell_attached(&self, record: &Record) {
        let attached = v1::Attached { attachment_id: record.id().to_owned() };
        if !self.session.send(host_message::Message::Attached(attached)) {
            self.untold().insert(record.id().to_owned());
        }
    }

    /// Tells the DPU what it could not be told before its present session.
    pub(super) fn tell_untold(&self) {
        let untold = std::mem::take(&mut *self.untold());
        for record in untold.iter().filter_map(|id| self.records.by_id(id)) {
            self.tell_attached(&record);
        }
    }
}

/// The namespace that a record means, if it is still there.
pub(super) fn living_netns(netns: &PodNetns) -> Option<Netns> {
    let found = Netns::open(Path::new(&netns.path)).ok()?;
    (found.id() == netns.id).then_some(found)
}

/// What a failed move is told as: what, on what, why.
pub(super) fn failure_of_move(record: &Record, failed: &Failed) -> Failure {
    let reason =
        failed.source.as_ref().map_or(Reason::MoveFailed, super::super::mover::MoveError::reason);
    for left in &failed.left {
        let (step, error) = (left.step, &left.source);
        tracing::warn!(attachment = record.id(), step, %error, "an undo failed");
    }
    let message = format!(
        "moving VF {} for {} failed: {}",
        record.pci_address(),
        record.key(),
        bootstrap::Chain(failed)
    );
    Failure::new(reason, message)
}

fn log(
    record: &Record,
    rpc: Duration,
    recording: Duration,
    durations: &Durations,
    total: Duration,
) {
    let microseconds = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    tracing::info!(
        attachment = record.id(),
        key = %record.key(),
        vf = record.pci_address(),
        rpc_us = microseconds(rpc),
        record_us = microseconds(recording),
        move_us = microseconds(durations.relocate),
        configure_us = microseconds(durations.configure),
        carrier_us = microseconds(durations.carrier),
        total_us = microseconds(total),
        carrier = !durations.without_carrier,
        "attached"
    );
}
