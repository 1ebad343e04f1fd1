//! ADD: ask the DPU, record, move.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Netns, NetnsId, Rtnl, VfSettings};
use offload_proto::{
    Failure, Reason,
    v1::{self, host_message},
};
use tokio::task::spawn_blocking;

use super::{
    Agent, defect, device_info,
    dpu::detach_request,
    records::{Phase, PodNetns, Record},
};
use crate::{
    mover::{Cargo, Durations, Failed, Original, Plan, Scene, open_netns},
    protocol::{AddRequest, Timings},
    vf_source::{self, VfIdentity, VfSource},
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
    ) -> Result<(v1::Attachment, Timings), Failure> {
        let started = Instant::now();
        let _key = self.keys.lock(&request.key).await;
        let netns = self.pod_netns(&request.netns)?;
        self.make_way(&request, netns.id).await?;

        // Until it is recorded, a hello lists it as under way.
        let pending = self.pending.enter(&request.key);
        let asked = Instant::now();
        let attachment = self.call_attach(&request, deadline).await?;
        let rpc = asked.elapsed();

        let recorded = Instant::now();
        let vfs_stay = self.vfs_stay.read().await;
        let record = match self.record(&request, netns, attachment.clone()).await {
            Ok(record) => record,
            Err(unrecorded) => {
                self.give_back_unused(&attachment, unrecorded.found_vf).await;
                return Err(unrecorded.failure);
            }
        };
        drop(vfs_stay);
        let record_time = recorded.elapsed();
        drop(pending);

        let durations = match self.move_in(&record).await {
            Ok(durations) => durations,
            Err(failure) => {
                self.release(record, Duration::ZERO).await;
                return Err(failure);
            }
        };
        self.tell_attached(&record);
        let timings = timings(rpc, record_time, &durations, started.elapsed());
        log(&record, &timings, &durations);
        Ok((attachment, timings))
    }

    /// The namespace at a path. It is not kept open: that would keep it alive.
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
            self.release(earlier, self.config.timeouts.vf_return()).await;
            return match self.records.by_key(key) {
                None => Ok(()),
                Some(_) => Err(Failure::new(
                    Reason::Releasing,
                    format!("an earlier attachment of {key} is still being given back"),
                )),
            };
        }
        if earlier.netns.id == netns {
            return Ok(());
        }
        let message = format!("{key} is attached in another network namespace already");
        Err(Failure::new(Reason::AttachmentDiffers, message))
    }

    /// Records what is about to be changed, before anything is.
    async fn record(
        self: &Arc<Self>,
        request: &AddRequest,
        netns: PodNetns,
        attachment: v1::Attachment,
    ) -> Result<Arc<Record>, Unrecorded> {
        let found = |failure| Unrecorded { failure, found_vf: true };
        let original = match self.records.by_id(&attachment.id) {
            Some(same) => same.original.clone(),
            None => {
                let vf = self.vf_of(&attachment).await;
                let vf = vf.map_err(|failure| Unrecorded { failure, found_vf: false })?;
                vf.unused().map_err(found)?
            }
        };
        let record = Arc::new(Record {
            attachment,
            configuration: request.configuration.clone(),
            netns,
            original,
            boot_id: self.boot_id.clone(),
            phase: Phase::Live,
            device_info_file: request.device_info_file.clone(),
        });
        self.cargo(&record).map_err(found)?;
        self.records.put(&record).await.map_err(found)?;
        Ok(record)
    }

    /// What the VF of a new attachment is like now.
    async fn vf_of(self: &Arc<Self>, attachment: &v1::Attachment) -> Result<FoundVf, Failure> {
        let vf = attachment.vf.clone().unwrap_or_default();
        self.settle_earlier_holder(&vf.pci_address).await?;
        let (source, host) = (Arc::clone(&self.source), Arc::clone(&self.host));
        let look = move || {
            let identity = VfIdentity {
                controller: vf.controller,
                pf: vf.pf,
                vf: vf.vf,
                pci_address: vf.pci_address,
            };
            let own = source.own_state(&identity);
            let name = own.as_ref().map(|own| own.name.as_str());
            let mut rtnl = Rtnl::open_in(&host)?;
            let found = vf_source::find(&*source, &mut rtnl, &identity.pci_address, name)?;
            let (mut original, used) = match found {
                Some(link) => {
                    let used = vf_source::use_by_host(&link, &rtnl.all_addresses()?);
                    (Original::from(&link), used)
                }
                None if source.is_handed_over(&identity.pci_address) => {
                    (Original { is_handed_over: true, ..Original::default() }, None)
                }
                None => return Ok((None, identity.pci_address)),
            };
            original.port = port_settings(&*source, &mut rtnl, &identity.pci_address)?;
            let pci_address = identity.pci_address.clone();
            let found = FoundVf { original, used, pci_address };
            Ok::<_, netlink::Error>((Some(found), identity.pci_address))
        };
        let looked = spawn_blocking(look).await.map_err(|error| defect(&error))?;
        let (found, pci_address) =
            looked.map_err(|error| Failure::new(Reason::MoveFailed, error.to_string()))?;
        found.ok_or_else(|| {
            let message =
                format!("VF {pci_address}, which the DPU chose, is not in the host's namespace");
            Failure::new(Reason::VfMissing, message)
        })
    }

    /// A VF that another record holds is never touched. A record that is being given back, and of
    /// which only the DPU's last word is missing, is finished first.
    async fn settle_earlier_holder(self: &Arc<Self>, pci_address: &str) -> Result<(), Failure> {
        let holder = || self.records.by_pci_address(pci_address);
        if let Some(earlier) = holder()
            && earlier.phase == Phase::Releasing
        {
            let _key = self.keys.lock(&earlier.key()).await;
            if let Some(earlier) = self.records.by_id(earlier.id()) {
                self.release(earlier, Duration::ZERO).await;
            }
        }
        let Some(other) = holder() else { return Ok(()) };
        let message = format!(
            "VF {pci_address}, which the DPU chose, is held by {} of {}",
            other.id(),
            other.key()
        );
        Err(Failure::new(Reason::VfNotFree, message))
    }

    /// Gives back an attachment whose VF was not touched, and which has no record. A VF that was
    /// not found either is the DPU's again when the inventory shows it.
    async fn give_back_unused(&self, attachment: &v1::Attachment, found_vf: bool) {
        if self.records.by_id(&attachment.id).is_some() {
            return;
        }
        let request = detach_request(attachment.key.clone(), attachment.id.clone(), found_vf);
        if let Err(failure) = self.call_detach(request.clone()).await {
            tracing::warn!(attachment = attachment.id, "not given back yet: {failure}");
            self.orphans.note(request);
        }
        self.inventory_wanted();
    }

    /// Moves the VF of a record into its pod.
    ///
    /// # Errors
    /// Why it could not be moved; the move is undone.
    pub(super) async fn move_in(
        self: &Arc<Self>,
        record: &Arc<Record>,
    ) -> Result<Durations, Failure> {
        let agent = Arc::clone(self);
        let moved = Arc::clone(record);
        let work = move || agent.move_in_now(&moved);
        self.when_its_turn(work).await
    }

    fn move_in_now(&self, record: &Record) -> Result<Durations, Failure> {
        let pod = open_netns(&record.netns.path)?;
        if pod.id() != record.netns.id {
            let message =
                format!("{} is another network namespace than at the attach", record.netns.path);
            return Err(Failure::new(Reason::NetnsInvalid, message));
        }
        let scene = Scene::open(self.cargo(record)?, Arc::clone(&self.host), Some(pod))
            .map_err(|error| Failure::new(error.reason(), error.to_string()))?;
        let durations = scene.move_in().map_err(|failed| failure_of_move(record, &failed))?;
        device_info::write(record).map_err(|error| {
            let path = record.device_info_file.as_deref().unwrap_or_default();
            let message = format!("the device-info file {path} can't be written: {error}");
            Failure::new(Reason::MoveFailed, message)
        })?;
        Ok(durations)
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

/// An attachment of the DPU's that could not be recorded. Its VF has not been touched.
struct Unrecorded {
    failure: Failure,
    /// The VF is in the host's namespace, and nobody else's.
    found_vf: bool,
}

/// What the PF makes of a VF, where that is not the DPU's business.
fn port_settings(
    source: &dyn VfSource,
    rtnl: &mut Rtnl,
    pci_address: &str,
) -> Result<Option<VfSettings>, netlink::Error> {
    let Some(port) = source.pf_port(pci_address) else { return Ok(None) };
    let Some(pf) = port.link(&rtnl.links()?) else { return Ok(None) };
    Ok(rtnl.vf_settings(pf.index)?.remove(&port.vf))
}

/// A VF that no record holds.
struct FoundVf {
    original: Original,
    /// What the host itself uses it for.
    used: Option<String>,
    pci_address: String,
}

impl FoundVf {
    /// What it is like, unless the host has taken it since it was offered.
    fn unused(self) -> Result<Original, Failure> {
        let Some(used) = self.used else { return Ok(self.original) };
        let message = format!("VF {} is used by the host itself: {used}", self.pci_address);
        Err(Failure::new(Reason::VfNotFree, message))
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

fn timings(rpc: Duration, record: Duration, durations: &Durations, total: Duration) -> Timings {
    let microseconds = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Timings {
        rpc_us: microseconds(rpc),
        record_us: microseconds(record),
        move_us: microseconds(durations.relocate),
        configure_us: microseconds(durations.configure),
        carrier_us: microseconds(durations.carrier),
        total_us: microseconds(total),
    }
}

fn log(record: &Record, timings: &Timings, durations: &Durations) {
    tracing::info!(
        attachment = record.id(),
        key = %record.key(),
        vf = record.pci_address(),
        rpc_us = timings.rpc_us,
        record_us = timings.record_us,
        move_us = timings.move_us,
        configure_us = timings.configure_us,
        carrier_us = timings.carrier_us,
        total_us = timings.total_us,
        carrier = !durations.without_carrier,
        "attached"
    );
}
