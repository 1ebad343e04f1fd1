//! Callers without CNI: the gRPC service `metropolis.node.core.network.workloads.WorkloadNetworking`, on the plugin's
//! socket.
//!
//! A workload's id is the container id of its attachment's key. Calls are the verbs ADD, DEL and STATUS, with the same
//! dispatcher, locks, records and recovery. Differences: the calls of a workload run one after the other, whatever
//! interface they name. A workload with an interface gets no second one. A detach removes all interfaces of the
//! workload.
//!
//! A client that exits or resets its call drops the future that serves it, and with it the answer's receiver. An Attach
//! in progress is then undone, as that of a killed plugin. A received answer is sent to the client; gRPC does not
//! report its arrival, and a client that misses it detaches.
//!
//! # Locks and races
//!
//! - *Two calls of one workload.* One lock per id, taken before the verbs' own locks, and nowhere else.
//! - *A workload and a plugin's container with the same id.* The verbs' key locks order them, as with two plugins.
//!   Looking for an existing interface and attaching are two steps; the plugin may attach another interface in between.
//! - *The agent stops with calls in progress.* No new connections and calls are accepted. Present ones end with their
//!   last answer ([`Connections`]), which the stopping agent waits for.

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
    dispatcher::{Dispatcher, refused},
    verbs::{self, Destination, Doors},
    vfs::{Phase, Record},
};
use crate::{
    cni::{environment::Verb, request::call_timeout},
    protocol::{AddRequest, DelRequest, Key},
};

/// The name prefix of a first interface that neither caller nor network names.
const FIRST_PREFIX: &str = "eth";

#[derive(Clone, Debug)]
pub(super) struct Workloads {
    doors: Doors,
    dispatcher: Dispatcher,
    /// One lock per workload id.
    locks: Arc<KeyedLocks<String>>,
    /// The DPU's network of all workloads. Empty: the DPU's default network.
    network: Arc<str>,
}

impl Workloads {
    pub(super) fn new(doors: Doors, dispatcher: Dispatcher, network: String) -> Self {
        Self { doors, dispatcher, locks: Arc::default(), network: network.into() }
    }

    /// Runs the work of a call through the dispatcher and waits for the answer.
    pub(super) async fn dispatch<Work>(
        &self,
        verb: Verb,
        work: impl FnOnce(Self, Arc<Caller>) -> Work,
    ) -> Result<Vec<Attachment>, Failure>
    where
        Work: Future<Output = Option<Answer>> + Send + 'static,
    {
        let (caller, receiver) = Caller::task(Instant::now() + call_timeout(verb));
        let caller = Arc::new(caller);
        let work = work(self.clone(), Arc::clone(&caller));
        let dispatcher = self.dispatcher.clone();
        // A task of its own, which counts the call even if the client stopped waiting.
        self.doors.tasks.spawn(async move {
            dispatcher.attend(verb, "a workload".into(), &caller, work).await;
        });
        match receiver.receive().await {
            Some(Answer::Attached(attachments)) => Ok(attachments),
            Some(Answer::Done | Answer::Warned(_)) => Ok(Vec::new()),
            Some(Answer::Refused { failure, .. }) => Err(failure),
            None => Err(Failure::new(Reason::Internal, "the call ended without an answer")),
        }
    }

    /// Attaches a workload without an interface; refuses one that has an interface.
    async fn attach_once(&self, request: AddRequest, caller: &Arc<Caller>) -> Result<(), Failure> {
        let workload = &request.key.container_id;
        let _one_at_a_time = self.locks.lock(workload).await;
        if let Some(held) = self.records_of(workload).find(|held| held.phase == Phase::Live) {
            let interface = held.key().interface_name;
            let message =
                format!("workload {workload} is attached already, with interface {interface}");
            return Err(Failure::new(Reason::WorkloadAttached, message));
        }
        let request = self.named(request).await?;
        verbs::attach(&self.doors, request, &Destination::Pod, caller).await
    }

    /// Names the first interface: the one that the workload has, or the network's prefix with a number.
    async fn named(&self, mut request: AddRequest) -> Result<AddRequest, Failure> {
        if !request.key.interface_name.is_empty() {
            return Ok(request);
        }
        let is_first = |held: &Arc<Record>| held.phase == Phase::Live && held.group_key().is_none();
        let there = self.records_of(&request.key.container_id).find(is_first);
        request.key.interface_name = match there {
            Some(there) => there.key().interface_name,
            None => {
                let reconnect = self.doors.timeouts.reconnect();
                let session = self.doors.dpu.session().current(reconnect).await?;
                let prefix = session.interface_prefix(&request.interface.network);
                format!("{}0", prefix.as_deref().unwrap_or(FIRST_PREFIX))
            }
        };
        Ok(request)
    }

    /// Attaches a workload. An attached workload keeps its interfaces and gets the same answer.
    pub(super) async fn attach(
        &self,
        request: AddRequest,
        caller: &Arc<Caller>,
    ) -> Result<(), Failure> {
        let _one_at_a_time = self.locks.lock(&request.key.container_id).await;
        let request = self.named(request).await?;
        verbs::attach(&self.doors, request, &Destination::Pod, caller).await
    }

    /// Detaches all interfaces of a workload. Without records (they may be lost), detaches `named`, in the given
    /// namespace.
    pub(super) async fn detach(&self, workload: &String, named: Option<Key>, netns: &str) {
        let _one_at_a_time = self.locks.lock(workload).await;
        // Group members are detached with their group key.
        let is_recorded = |key: &Key| self.doors.vfs.records().by_key(key).is_some();
        let leads =
            |record: &Arc<Record>| !record.group_key().is_some_and(|lead| is_recorded(&lead));
        let mut keys: Vec<_> =
            self.records_of(workload).filter(leads).map(|record| record.key()).collect();
        if keys.is_empty() {
            keys.extend(named);
        }
        for key in keys {
            verbs::detach(&self.doors, DelRequest { key, netns: netns.to_owned() }).await;
        }
    }

    /// Checks whether the network serves attaches. Empty: the DPU's default network.
    pub(super) async fn status(&self, network: &str) -> Answer {
        verbs::trouble(&self.doors, Some(network)).await.map_or(Answer::Done, refused)
    }

    fn records_of(&self, workload: &str) -> impl Iterator<Item = Arc<Record>> {
        let all = self.doors.vfs.records().all().into_iter();
        all.filter(move |record| record.key().container_id == workload)
    }
}
