//! The door without CNI: the gRPC service `metropolis.node.core.network.workloads.WorkloadNetworking`, on the socket
//! that the plugin calls, too.
//!
//! A workload is to it what a container is to CNI: its id is the container id of the attachment's key. Its calls are
//! the verbs ADD, DEL and STATUS, answered at the same desk, with the same locks, records and recovery. What differs is
//! kept here: all of a workload's calls come one after the other, whatever interface they name; a workload that has its
//! interface gets none again; and a detach takes back all that the workload has.
//!
//! A client that ends, or resets its call, ends the future that serves it, and with it the ear that would hear the
//! answer. So an Attach under way is undone as that of a plugin is that was killed. An answer that was heard is on its
//! way to the client; whether it arrives gRPC does not tell, and a client that misses it detaches.
//!
//! # Who races
//!
//! - *Two calls of one workload.* A lock for each id, which is taken before the verbs' own locks, by nobody else.
//! - *A workload with the plugin's container of the same id.* The verbs' locks of keys put them in order, as two plugins;
//!   to look for an interface that is there already and to attach are two steps, between which the plugin may attach
//!   another one.
//! - *The agent's end with calls under way.* No further connections and calls are taken, and those that are there end
//!   with their last answer ([`Connections`]), which is among the work that the agent's end waits for.

mod connections;
mod request;
mod service;
mod settings;

use std::{sync::Arc, time::Instant};

use keyed_locks::KeyedLocks;
use offload_proto::{Failure, Reason, v1::Attachment};

pub(super) use connections::Connections;
pub(super) use request::{
    check_first_interface, check_interface, check_netns, workload as workload_id,
};
pub use settings::WorkloadSettings;

use super::{
    caller::{Answer, Caller},
    desk::{Desk, refused},
    verbs::{self, Destination, Doors},
    vfs::{Phase, Record},
};
use crate::{
    cni::{environment::Verb, request::call_timeout},
    protocol::{AddRequest, DelRequest, Key},
};

/// How the name of a first interface begins that neither its caller nor its network names.
const FIRST_PREFIX: &str = "eth";

/// What workloads ask for.
#[derive(Clone, Debug)]
pub(super) struct Workloads {
    doors: Doors,
    desk: Desk,
    /// By the workload's id.
    locks: Arc<KeyedLocks<String>>,
    /// The DPU's network that they are attached to. Empty: its default one.
    network: Arc<str>,
}

impl Workloads {
    /// Those of that network, answered at the desk.
    pub(super) fn new(doors: Doors, desk: Desk, network: String) -> Self {
        Self { doors, desk, locks: Arc::default(), network: network.into() }
    }

    /// Has the work of a call done for the caller that it is given, and waits for the answer.
    pub(super) async fn at_desk<Work>(
        &self,
        verb: Verb,
        work: impl FnOnce(Self, Arc<Caller>) -> Work,
    ) -> Result<Vec<Attachment>, Failure>
    where
        Work: Future<Output = Option<Answer>> + Send + 'static,
    {
        let (caller, ear) = Caller::task(Instant::now() + call_timeout(verb));
        let caller = Arc::new(caller);
        let work = work(self.clone(), Arc::clone(&caller));
        let desk = self.desk.clone();
        // A task of its own, which counts the call also when nobody waits for it any more.
        self.doors
            .tasks
            .spawn(async move { desk.attend(verb, "a workload".into(), &caller, work).await });
        match ear.hear().await {
            Some(Answer::Attached(attachments)) => Ok(attachments),
            Some(Answer::Done | Answer::Warned(_)) => Ok(Vec::new()),
            Some(Answer::Refused { failure, .. }) => Err(failure),
            None => Err(Failure::new(Reason::Internal, "the call ended without an answer")),
        }
    }

    /// Attaches a workload that is attached by no interface yet.
    async fn attach_anew(&self, request: AddRequest, caller: &Arc<Caller>) -> Result<(), Failure> {
        let workload = &request.key.container_id;
        let _one_at_a_time = self.locks.lock(workload).await;
        if let Some(held) = self.records_of(workload).find(|held| held.phase == Phase::Live) {
            let interface = held.key().interface_name;
            let message = format!("workload {workload} is attached already, by {interface}");
            return Err(Failure::new(Reason::WorkloadAttached, message));
        }
        let request = self.named(request).await?;
        verbs::attach(&self.doors, request, &Destination::Pod, caller).await
    }

    /// The request with the name that its first interface gets: that which the workload has, or else one that begins as
    /// the network says.
    async fn named(&self, mut request: AddRequest) -> Result<AddRequest, Failure> {
        if !request.key.interface_name.is_empty() {
            return Ok(request);
        }
        let is_first = |held: &Arc<Record>| held.phase == Phase::Live && held.lead_key().is_none();
        let there = self.records_of(&request.key.container_id).find(is_first);
        request.key.interface_name = match there {
            Some(there) => there.key().interface_name,
            None => {
                let reconnect = self.doors.timeouts.reconnect();
                let session = self.doors.dpu.session().current(reconnect).await?;
                let prefix = session.interface_prefix(&request.network);
                format!("{}0", prefix.as_deref().unwrap_or(FIRST_PREFIX))
            }
        };
        Ok(request)
    }

    /// Attaches a workload. One that is attached just so keeps what it has, and is told it again.
    pub(super) async fn attach(
        &self,
        request: AddRequest,
        caller: &Arc<Caller>,
    ) -> Result<(), Failure> {
        let _one_at_a_time = self.locks.lock(&request.key.container_id).await;
        let request = self.named(request).await?;
        verbs::attach(&self.doors, request, &Destination::Pod, caller).await
    }

    /// Takes all back that a workload has, or else what `named` names, in that namespace if it is told: records may be
    /// lost.
    pub(super) async fn detach(&self, workload: &String, named: Option<Key>, netns: &str) {
        let _one_at_a_time = self.locks.lock(workload).await;
        // What one leads goes with it.
        let is_recorded = |key: &Key| self.doors.vfs.records().by_key(key).is_some();
        let leads =
            |record: &Arc<Record>| !record.lead_key().is_some_and(|lead| is_recorded(&lead));
        let mut keys: Vec<_> =
            self.records_of(workload).filter(leads).map(|record| record.key()).collect();
        if keys.is_empty() {
            keys.extend(named);
        }
        for key in keys {
            verbs::detach(&self.doors, DelRequest { key, netns: netns.to_owned() }).await;
        }
    }

    /// Whether an attach to the network would be served. Empty: to the default one.
    pub(super) async fn status(&self, network: &str) -> Answer {
        verbs::trouble(&self.doors, Some(network)).await.map_or(Answer::Done, refused)
    }

    fn records_of(&self, workload: &str) -> impl Iterator<Item = Arc<Record>> {
        let all = self.doors.vfs.records().all().into_iter();
        all.filter(move |record| record.key().container_id == workload)
    }
}
