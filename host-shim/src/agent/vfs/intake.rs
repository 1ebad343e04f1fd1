//! The host's half of an ADD: the VF that the DPU chose is recorded and moved into its pod, in one go
//! on a thread that may wait for the disk and the kernel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Link, Rtnl, VfSettings};
use offload_proto::{Failure, Reason, v1};
use sriov::Handover;

use super::{
    device_info,
    move_failure::failure_of_move,
    records::{Phase, PodNetns, Record},
};
use crate::agent::{Agent, caller::Caller, milestones::Milestone, verbs::detach::Renewal};
use crate::{
    mover::{
        Arrival, Cargo, Durations, MoveError, Namespace, Namespaces, Original, Scene, open_netns,
    },
    protocol::AddRequest,
    vf_source::{self, VfIdentity, VfSource},
};

/// A VF that is in its pod.
pub(in crate::agent) struct TakenIn {
    pub record: Arc<Record>,
    /// How long it took until the record was written.
    pub recording: Duration,
    pub durations: Durations,
}

/// A VF that is in its pod, perhaps without a carrier yet.
struct Entered {
    record: Arc<Record>,
    recording: Duration,
    arrival: Arrival,
}

/// Why a VF did not get into its pod, and what is left.
pub(in crate::agent) enum IntakeFailure {
    /// The VF has not been touched, and nothing relies on a record.
    Unrecorded {
        failure: Failure,
        /// The VF is in the host's namespace, and nobody else's.
        found_vf: bool,
    },
    /// The record is there. The move is undone, unless it failed when the VF was in the pod.
    Unmoved { failure: Failure },
}

/// The VF is not there, or somebody else's.
fn not_found(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found_vf: false }
}

/// The VF is there, and stays there.
fn not_taken(failure: Failure) -> IntakeFailure {
    IntakeFailure::Unrecorded { failure, found_vf: true }
}

fn not_moved(error: impl Into<MoveError>) -> Failure {
    let error = error.into();
    Failure::new(error.reason(), error.to_string())
}

impl Agent {
    /// Records an attachment, moves its VF into the pod and waits for the carrier.
    pub(in crate::agent) async fn take_in(
        self: &Arc<Self>,
        request: AddRequest,
        netns: PodNetns,
        attachment: v1::Attachment,
        caller: &Arc<Caller>,
    ) -> Result<TakenIn, IntakeFailure> {
        let entered = self.enter(request, netns, attachment, caller).await?;
        let Entered { record, recording, arrival } = entered;
        match arrival.settle(self.await_port(&record.attachment)).await {
            Ok(durations) => Ok(TakenIn { record, recording, durations }),
            Err(failed) => {
                Err(IntakeFailure::Unmoved { failure: failure_of_move(&record, &failed) })
            }
        }
    }

    /// Records an attachment and moves its VF into the pod. Meanwhile the number of VFs stays. Nobody
    /// else's key is waited for by then.
    async fn enter(
        self: &Arc<Self>,
        request: AddRequest,
        netns: PodNetns,
        attachment: v1::Attachment,
        caller: &Arc<Caller>,
    ) -> Result<Entered, IntakeFailure> {
        let is_new = self.records.by_id(&attachment.id).is_none();
        let pci_address = attachment.vf.as_ref().map_or("", |vf| &vf.pci_address);
        if is_new {
            self.settle_earlier_holder(pci_address).await;
        }
        let _vfs_stay = self.vfs_stay.read().await;
        if is_new && let Some(holder) = self.records.by_pci_address(pci_address) {
            return Err(not_found(held_by_another(&holder)));
        }
        // Until it is recorded, it might be made anew.
        let _not_renewed = self.free_vfs.lock(&pci_address.to_owned()).await;
        let (agent, caller) = (Arc::clone(self), Arc::clone(caller));
        let work = move || {
            // Somebody else's move may have taken long.
            match caller.is_waiting() {
                Ok(()) => agent.enter_now(request, netns, attachment),
                Err(failure) if is_new => Err(agent.untouched(&attachment, failure)),
                Err(failure) => Err(not_found(failure)),
            }
        };
        self.when_its_turn(work).await.map_err(not_found)?
    }

    /// Finishes a record of the VF that is being given back, and of which only the DPU's last word is
    /// missing. This is the one place where who holds a key waits for another's: see the module
    /// [`agent`](super) for why that ends.
    async fn settle_earlier_holder(self: &Arc<Self>, pci_address: &str) {
        let Some(earlier) = self.records.by_pci_address(pci_address) else { return };
        if earlier.phase != Phase::Releasing {
            return;
        }
        let _key = self.keys.lock(&earlier.key()).await;
        if let Some(earlier) = self.records.by_id(earlier.id()) {
            self.release(earlier, Duration::ZERO, Renewal::Now).await;
        }
    }

    /// Nobody waits for the VF any more, and it is still where it was: the DPU may give it out at once.
    fn untouched(&self, attachment: &v1::Attachment, failure: Failure) -> IntakeFailure {
        let vf = VfIdentity::from(attachment.vf.clone().unwrap_or_default());
        let look = || self.original_of(&vf, &mut Rtnl::open_in(&self.host).ok()?).ok();
        IntakeFailure::Unrecorded { failure, found_vf: look().is_some() }
    }

    /// The record is written before the VF is touched. What is only looked at does not wait for it.
    fn enter_now(
        &self,
        request: AddRequest,
        netns: PodNetns,
        attachment: v1::Attachment,
    ) -> Result<Entered, IntakeFailure> {
        let began = Instant::now();
        let host = Namespace::open(Arc::clone(&self.host));
        let mut host = host.map_err(|error| not_found(not_moved(error)))?;
        let record = self.draft(request, netns, attachment, &mut host.rtnl)?;
        let record = Arc::new(record);
        let written = self.records.write(&record);
        let cargo = self.cargo(&record).map_err(not_taken)?;
        let pod = open_pod(&record.netns).map_err(not_taken)?;
        written.wait().map_err(not_taken)?;
        Milestone::AttachRecorded.pass();
        self.records.keep(&record);
        self.proofs.forget(record.pci_address());
        let recording = began.elapsed();
        match move_in_now(&record, cargo, Namespaces { host, pod: Some(pod) }) {
            Ok(arrival) => Ok(Entered { record, recording, arrival }),
            Err(failure) => {
                Err(IntakeFailure::Unmoved { failure: self.with_owner(failure, &record) })
            }
        }
    }

    /// A name that is taken in the pod may be another attachment's: two containers can share a namespace.
    fn with_owner(&self, failure: Failure, record: &Record) -> Failure {
        let name = record.key().interface_name;
        let is_owner = |other: &&Arc<Record>| {
            let is_there = other.netns.id == record.netns.id && other.id() != record.id();
            is_there && other.key().interface_name == name
        };
        match self.records.all().iter().find(is_owner) {
            Some(owner) if failure.reason == Reason::InterfaceExists => {
                let message =
                    format!("{}, of attachment {} of {}", failure.message, owner.id(), owner.key());
                Failure::new(failure.reason, message)
            }
            _ => failure,
        }
    }

    /// What is to be recorded of an attachment, before anything is changed.
    fn draft(
        &self,
        request: AddRequest,
        netns: PodNetns,
        attachment: v1::Attachment,
        rtnl: &mut Rtnl,
    ) -> Result<Record, IntakeFailure> {
        let (phase, original) = match self.records.by_id(&attachment.id) {
            Some(same) => (same.phase, same.original.clone()),
            None => {
                let vf = VfIdentity::from(attachment.vf.clone().unwrap_or_default());
                (Phase::Attaching, self.original_of(&vf, rtnl)?)
            }
        };
        Ok(Record {
            attachment,
            configuration: request.configuration,
            netns,
            original,
            boot_id: self.boot_id.clone(),
            phase,
            device_info_file: request.device_info_file,
            is_returned: false,
        })
    }

    /// What a VF that no record holds is like, and is to be again.
    fn original_of(&self, vf: &VfIdentity, rtnl: &mut Rtnl) -> Result<Original, IntakeFailure> {
        let not_looked_at = |error: netlink::Error| not_found(not_moved(error));
        let own = self.own_state(vf);
        let name = own.as_ref().map(|own| own.name.as_str());
        let link = vf_source::find(&*self.source, rtnl, &vf.pci_address, name);
        let original = match link.map_err(not_looked_at)? {
            Some(link) => self.original_of_link(vf, &link, rtnl)?,
            None => self.original_of_device(vf)?,
        };
        let port = port_settings(&*self.source, rtnl, &vf.pci_address).map_err(not_looked_at)?;
        Ok(Original { port, ..original })
    }

    /// What the link of a VF is like, unless the host has taken it since it was offered. What the host
    /// has only changed is restored: nobody is to get it, and it is not to become that again.
    fn original_of_link(
        &self,
        vf: &VfIdentity,
        link: &Link,
        rtnl: &mut Rtnl,
    ) -> Result<Original, IntakeFailure> {
        let not_looked_at = |error: netlink::Error| not_found(not_moved(error));
        let links = rtnl.links().map_err(not_looked_at)?;
        let addresses = rtnl.all_addresses().map_err(not_looked_at)?;
        if let Some(used) = vf_source::use_by_host(link, &links, &addresses) {
            return Err(not_taken(used_by_host(vf, &used)));
        }
        if self.looks_clean(vf, link) {
            return Ok(Original::from(link));
        }
        self.restore_free(vf, link, rtnl).map_err(|why| not_found(not_as_it_was(vf, &why)))?;
        let restored = rtnl.link_by_index(link.index).map_err(not_looked_at)?;
        let restored = restored.ok_or_else(|| not_found(not_there(vf)))?;
        match self.superficial_differences(vf, &restored).join("; ") {
            what if what.is_empty() => Ok(Original::from(&restored)),
            what => Err(not_found(not_as_it_was(vf, &what))),
        }
    }

    /// What a VF without a link is like.
    fn original_of_device(&self, vf: &VfIdentity) -> Result<Original, IntakeFailure> {
        match self.source.handover(&vf.pci_address) {
            None => Err(not_found(not_there(vf))),
            Some(Handover::Open) => Err(not_taken(used_by_host(vf, "a program has it open"))),
            Some(Handover::Idle) => Ok(Original { is_handed_over: true, ..Original::default() }),
        }
    }

    /// Moves the VF of a record into its pod, and waits for the carrier.
    ///
    /// # Errors
    /// Why it could not be moved; the move is undone, unless it failed when the VF was in the pod.
    pub(in crate::agent) async fn move_in(
        self: &Arc<Self>,
        record: &Arc<Record>,
    ) -> Result<Durations, Failure> {
        let (agent, moved) = (Arc::clone(self), Arc::clone(record));
        let arrival = self.when_its_turn(move || agent.move_in_again(&moved)).await??;
        let settled = arrival.settle(self.await_port(&record.attachment)).await;
        settled.map_err(|failed| failure_of_move(record, &failed))
    }

    fn move_in_again(&self, record: &Record) -> Result<Arrival, Failure> {
        let pod = Some(open_pod(&record.netns)?);
        let host = Namespace::open(Arc::clone(&self.host)).map_err(not_moved)?;
        move_in_now(record, self.cargo(record)?, Namespaces { host, pod })
    }
}

/// A VF that another record holds is never touched.
fn held_by_another(holder: &Record) -> Failure {
    let message = format!(
        "VF {}, which the DPU chose, is held by {} of {}",
        holder.pci_address(),
        holder.id(),
        holder.key()
    );
    Failure::new(Reason::VfNotFree, message)
}

/// Moves the VF of a record into its pod.
fn move_in_now(record: &Record, cargo: Cargo, namespaces: Namespaces) -> Result<Arrival, Failure> {
    let arrival = Scene::new(cargo, namespaces).move_in();
    let arrival = arrival.map_err(|failed| failure_of_move(record, &failed))?;
    device_info::write(record).map_err(|error| {
        let path = record.device_info_file.as_deref().unwrap_or_default();
        let message = format!("the device-info file {path} can't be written: {error}");
        Failure::new(Reason::MoveFailed, message)
    })?;
    Ok(arrival)
}

/// Opens a pod's namespace, which has to be the one of the attach still.
fn open_pod(netns: &PodNetns) -> Result<Namespace, Failure> {
    let found = open_netns(&netns.path)?;
    if found.id() != netns.id {
        let message = format!("{} is another network namespace than at the attach", netns.path);
        return Err(Failure::new(Reason::NetnsInvalid, message));
    }
    Namespace::open(Arc::new(found)).map_err(not_moved)
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

fn not_there(vf: &VfIdentity) -> Failure {
    let VfIdentity { pci_address, .. } = vf;
    let message = format!("VF {pci_address}, which the DPU chose, is not in the host's namespace");
    Failure::new(Reason::VfMissing, message)
}

fn used_by_host(vf: &VfIdentity, used: &str) -> Failure {
    let message = format!("VF {} is used by the host itself: {used}", vf.pci_address);
    Failure::new(Reason::VfNotFree, message)
}

fn not_as_it_was(vf: &VfIdentity, what: &str) -> Failure {
    let message = format!("VF {} is not as it was: {what}", vf.pci_address);
    Failure::new(Reason::VfNotFree, message)
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, task::yield_now, time::timeout};

    use super::*;
    use crate::{
        agent::{
            caller::tests::caller,
            tests::{agent, agent_with},
            vfs::records::tests::record,
        },
        vf_source::{PfFacts, RenewalError},
    };

    /// An ADD of the container whose VF the record `earlier` still holds.
    fn attach_of(container_id: &str, earlier: &Record) -> (AddRequest, v1::Attachment) {
        let record = record("new", container_id);
        let request = AddRequest {
            key: record.key(),
            netns: record.netns.path.clone(),
            configuration: record.configuration.clone(),
            network: String::new(),
            pod: crate::protocol::Pod::default(),
            pci_address: None,
            mac: None,
            addresses: Vec::new(),
            bandwidth: crate::protocol::Bandwidth::default(),
            device_info_file: None,
        };
        (request, v1::Attachment { vf: earlier.attachment.vf.clone(), ..record.attachment })
    }

    #[tokio::test]
    async fn a_name_that_another_attachment_has_in_the_pod_is_told_with_that() {
        let (agent, _folder) = agent();
        let taken = || Failure::new(Reason::InterfaceExists, "there is an interface eth0");
        let newcomer = record("new", "newcomer");
        let told = |failure: Failure| agent.with_owner(failure, &newcomer).message;
        assert_eq!(told(taken()), "there is an interface eth0");
        let elsewhere =
            PodNetns { id: netlink::NetnsId { dev: 4, inode: 8 }, ..newcomer.netns.clone() };
        agent.records.keep(&Arc::new(Record { netns: elsewhere, ..record("far", "elsewhere") }));
        agent.records.keep(&Arc::new(newcomer.clone()));
        assert_eq!(told(taken()), "there is an interface eth0");
        agent.records.keep(&Arc::new(record("old", "owner")));
        assert_eq!(told(taken()), "there is an interface eth0, of attachment old of owner/eth0");
        assert_eq!(told(Failure::new(Reason::MoveFailed, "no room")), "no room");
    }

    /// A card whose VFs are all handed over to programs, none of which has one open.
    #[derive(Debug)]
    struct IdleDevices;

    impl VfSource for IdleDevices {
        fn vf_of(&self, _link: &Link) -> Option<VfIdentity> {
            None
        }

        fn pf_of(&self, _vf: &VfIdentity) -> PfFacts {
            PfFacts::default()
        }

        fn make_anew(&self, _: &str, _: &Link, _: &mut Rtnl) -> Result<(), RenewalError> {
            Ok(())
        }

        fn handover(&self, _pci_address: &str) -> Option<Handover> {
            Some(Handover::Idle)
        }
    }

    /// Or else the DPU would wait for the next inventory, and refuse the same ADD meanwhile.
    #[tokio::test]
    async fn a_vf_whose_caller_ended_before_it_was_touched_is_said_to_be_there() {
        let (agent, _folder) = agent_with(Arc::new(IdleDevices));
        let (request, attachment) = attach_of("ended", &record("old", "holder"));
        let netns = record("new", "ended").netns;
        let (caller, plugin) = caller(Duration::from_secs(60));
        drop(plugin);
        let taken = agent.take_in(request, netns, attachment, &Arc::new(caller)).await;
        assert!(matches!(taken, Err(IntakeFailure::Unrecorded { found_vf: true, .. })));
    }

    /// The first waits for the key of whoever holds its VF still; that one is about to make a VF its own;
    /// and between the two comes a change of the number of VFs.
    #[tokio::test]
    async fn an_attach_that_waits_for_an_earlier_holder_holds_nobody_up() {
        let (agent, _folder) = agent();
        let earlier = Arc::new(Record { phase: Phase::Releasing, ..record("old", "holder") });
        agent.records.keep(&earlier);
        let (request, attachment) = attach_of("waiting", &earlier);
        let netns = earlier.netns.clone();
        let (caller, _plugin) = caller(Duration::from_secs(60));
        let caller = Arc::new(caller);
        let key_of_holder = agent.keys.lock(&earlier.key()).await;

        let (held, other) = (Arc::clone(&agent), Arc::clone(&agent));
        let (all_wait, wait) = oneshot::channel::<()>();
        let holder = tokio::spawn(async move {
            wait.await.unwrap();
            let _vfs_stay = held.vfs_stay.read().await;
            drop(key_of_holder);
        });
        let taking = tokio::spawn({
            let agent = Arc::clone(&agent);
            async move { agent.take_in(request, netns, attachment, &caller).await }
        });
        yield_now().await;
        let change = tokio::spawn(async move { drop(other.vfs_stay.write().await) });
        yield_now().await;
        all_wait.send(()).unwrap();

        let limit = Duration::from_secs(10);
        timeout(limit, holder).await.expect("the holder waits for ever").unwrap();
        timeout(limit, change).await.expect("the change waits for ever").unwrap();
        let taken = timeout(limit, taking).await.expect("the attach waits for ever").unwrap();
        assert!(matches!(taken, Err(IntakeFailure::Unrecorded { found_vf: false, .. })));
    }
}
