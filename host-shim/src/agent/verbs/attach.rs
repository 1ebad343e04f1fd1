//! ADD: ask the DPU, take its VF in, answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::NetnsId;
use offload_proto::{
    Failure, Reason,
    v1::{self, host_message},
};

use super::detach::Renewal;
use crate::agent::{
    Agent,
    caller::Caller,
    dpu::calls::{detach_request, disowning},
    dpu::session::{Established, Standing},
    milestones::Milestone,
    vfs::intake::{IntakeFailure, TakenIn},
    vfs::records::{Phase, PodNetns, Record},
};
use crate::{
    mover::{Cargo, Durations, Plan, open_netns},
    protocol::{AddRequest, Key, Reply},
};

impl Agent {
    /// Serves an ADD, and answers it. Repeating it gives the same attachment.
    ///
    /// It is done when its answer was written to a caller that is there. Until then its record says
    /// that nobody was answered, and whatever ends it undoes it: a failure, the caller's end or
    /// deadline, the end of the agent. Only what was answered before stays as it is.
    ///
    /// # Errors
    /// Why the pod has no interface. Then nothing of it is left: neither here nor on the DPU,
    /// except that a DPU which can't be reached any more is told later. If the caller has gone and
    /// another waits with the same ADD, the rest is left to that.
    pub(in crate::agent) async fn attach(
        self: &Arc<Self>,
        request: AddRequest,
        caller: &Arc<Caller>,
    ) -> Result<(), Failure> {
        let key = request.key.clone();
        let turn = self.repeats.enter(&key);
        let _key = self.keys.lock(&key).await;
        drop(turn);
        let attached = self.attach_alone(request, caller).await;
        if attached.is_err() {
            self.take_back_unanswered(&key).await;
        }
        attached
    }

    /// Gives back what an ADD has made that nobody was answered, unless a repeat of it waits, and goes
    /// on with it. The caller holds the key's lock.
    pub(in crate::agent) async fn take_back_unanswered(self: &Arc<Self>, key: &Key) {
        let Some(record) = self.records.by_key(key) else { return };
        if record.phase == Phase::Attaching && !self.repeats.contains(key) {
            tracing::info!(attachment = record.id(), %key, "its ADD was not answered: given back");
            self.release(record, Duration::ZERO, Renewal::Later).await;
        }
    }

    async fn attach_alone(
        self: &Arc<Self>,
        request: AddRequest,
        caller: &Arc<Caller>,
    ) -> Result<(), Failure> {
        let (started, key) = (Instant::now(), request.key.clone());
        caller.is_waiting()?;
        let netns = self.pod_netns(&request.netns)?;
        self.make_way(&request, netns.id).await?;
        caller.is_waiting()?;

        // From now on until it is recorded that the pod keeps it, a hello lists it as under way. Not
        // before there is a session to ask: the DPU would wait for an ADD that it is never asked for.
        let session = self.session.current(self.config.timeouts.reconnect()).await?;
        let pending = self.pending.enter(&request.key);
        let asked = Instant::now();
        let attachment = self.ask_for(&request, session, caller).await?;
        let rpc = asked.elapsed();
        Milestone::AttachAnswered.pass();

        let taken_in = self.take_in(request, netns, attachment.clone(), caller).await;
        let TakenIn { record, recording, durations } = match taken_in {
            Ok(taken_in) => taken_in,
            Err(IntakeFailure::Unrecorded { failure, found_vf }) => {
                let is_repeated = caller.is_waiting().is_err() && self.repeats.contains(&key);
                self.give_back_unused(&attachment, found_vf, is_repeated).await;
                return Err(failure);
            }
            Err(IntakeFailure::Unmoved { failure }) => return Err(failure),
        };
        Milestone::AttachDone.pass();
        self.confirm(&record, caller).await?;
        drop(pending);
        log(&record, rpc, recording, &durations, started.elapsed());
        Ok(())
    }

    /// Asks the DPU for an attachment, and no longer than somebody waits for it.
    async fn ask_for(
        self: &Arc<Self>,
        request: &AddRequest,
        session: Arc<Established>,
        caller: &Caller,
    ) -> Result<v1::Attachment, Failure> {
        let deadline = caller.deadline().min(Instant::now() + self.config.timeouts.attach());
        let failure = tokio::select! {
            biased;
            answer = self.call_attach(request, session, deadline) => return answer,
            failure = caller.hangup() => failure,
        };
        match self.repeats.contains(&request.key) {
            true => self.leave_to_repeat(disowning(&request.key)),
            false => self.disown(&request.key).await,
        }
        Err(failure)
    }

    /// A repeat of the ADD goes on with what the DPU has. Should it not, it is given back later: that
    /// waits for the key's lock behind the repeat, and is dropped if there is a record by then.
    fn leave_to_repeat(&self, detach: v1::DetachRequest) {
        self.undelivered.note(detach);
        self.poke.notify_one();
    }

    /// Records that the pod keeps its VF, and answers.
    ///
    /// That is recorded first: the other way round, the agent's death in between would undo what was
    /// answered. Its death between the two leaves an attachment that nobody was answered, and then
    /// the runtime's DEL takes it back.
    async fn confirm(&self, record: &Arc<Record>, caller: &Caller) -> Result<(), Failure> {
        caller.is_waiting()?;
        let was_answered = record.phase == Phase::Live;
        if !was_answered {
            let live = Arc::new(record.in_phase(Phase::Live));
            self.records.write(&live).done().await?;
            self.records.keep(&live);
            Milestone::AttachKept.pass();
        }
        self.tell_attached(record);
        let attachment = Box::new(record.attachment.clone());
        let answered = match caller.answer(&Reply::Attached { attachment }).await {
            Ok(()) if !was_answered => caller.has_heard().await,
            answered => answered,
        };
        match &answered {
            Ok(()) => Milestone::AttachTold.pass(),
            Err(_) if was_answered => {}
            Err(_) => {
                self.records.keep(record);
                // Whoever gives it back writes that, and waits for it.
                drop(self.records.write(record));
            }
        }
        answered
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
    pub(in crate::agent) fn still_releasing(&self, left: &Record) -> Failure {
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
    async fn give_back_unused(
        &self,
        attachment: &v1::Attachment,
        found_vf: bool,
        is_repeated: bool,
    ) {
        if self.records.by_id(&attachment.id).is_some() {
            return;
        }
        // Its record may have been on its way to the disk.
        self.records.remove(&attachment.id);
        let request = detach_request(attachment.key.clone(), attachment.id.clone(), found_vf);
        if is_repeated {
            return self.leave_to_repeat(request);
        }
        if let Err(failure) = self.call_detach(request.clone()).await {
            self.detach_later(request, &failure);
        }
        self.inventory_wanted();
    }

    /// The VF of a record and how it is to be on either side.
    pub(in crate::agent) fn cargo(&self, record: &Record) -> Result<Cargo, Failure> {
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
    pub(in crate::agent) fn tell_attached(&self, record: &Record) {
        let attached = v1::Attached { attachment_id: record.id().to_owned() };
        if !self.session.send(host_message::Message::Attached(attached)) {
            self.untold().insert(record.id().to_owned());
        }
    }

    /// Tells the DPU what it could not be told before its present session.
    pub(in crate::agent) fn tell_untold(&self) {
        let untold = std::mem::take(&mut *self.untold());
        for record in untold.iter().filter_map(|id| self.records.by_id(id)) {
            self.tell_attached(&record);
        }
    }
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
