//! The host's own ports: attachments in its own namespace, by which it reaches pods.
//!
//! A host port is an attachment as a pod's is: the same verbs make it and give it back, and the keeper repairs
//! it. What is here compares the configuration with the records, and asks for what is missing and gives back
//! what is wanted no more. Its caller is the agent itself.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Instant};

use netlink::{Error, Link};
use offload_proto::{Failure, FindingCode, Reason, v1::Finding};
use parking_lot::Mutex;

use crate::{
    agent::{
        caller::Caller,
        defect::done_or_nothing,
        dpu::SessionState,
        host_port::HostPort,
        verbs::{self, Destination, Doors, Renewal, release},
        vfs::{Phase, Record, VfAbroad, Vfs},
    },
    protocol::AddRequest,
};

/// Keeps the host's own ports as they are configured.
#[derive(Debug)]
pub(in crate::agent) struct HostPorts {
    doors: Doors,
    wanted: Mutex<Vec<HostPort>>,
    /// Why host ports are not in place, by interface name; each reason is logged once.
    obstacles: Mutex<BTreeMap<String, String>>,
    /// Held while configuration and records are compared: a host port that is removed from the configuration must not
    /// be attached again after its release.
    comparing: tokio::sync::Mutex<()>,
}

impl HostPorts {
    pub(super) fn new(doors: Doors, wanted: Vec<HostPort>) -> Self {
        Self {
            doors,
            wanted: Mutex::new(wanted),
            obstacles: Mutex::default(),
            comparing: tokio::sync::Mutex::default(),
        }
    }

    /// From now on these are wanted and no others.
    pub(in crate::agent) fn want(&self, ports: Vec<HostPort>) {
        *self.wanted.lock() = ports;
        self.doors.vfs.signals().look_at_host_ports();
    }

    /// Compares configuration and records after each signal, forever.
    pub(in crate::agent) async fn keep(&self) -> Infallible {
        loop {
            self.doors.vfs.signals().host_ports_wanted().await;
            self.compare().await;
        }
    }

    /// Gives back what is wanted no more, and attaches what is missing.
    pub(super) async fn compare(&self) {
        let _one_at_a_time = self.comparing.lock().await;
        let wanted = self.wanted.lock().clone();
        for record in records(&self.doors.vfs) {
            if !wanted.iter().any(|port| is_of(&record, port)) {
                self.release(&record).await;
            }
        }
        self.obstacles.lock().retain(|name, _| wanted.iter().any(|port| port.name == *name));
        for port in &wanted {
            let outcome = self.provide(port).await;
            self.note(port, outcome.err());
        }
        self.fetch_from_abroad().await;
    }

    async fn release(&self, record: &Record) {
        let _key = self.doors.vfs.keys().lock(&record.key()).await;
        let Some(record) = self.doors.vfs.records().by_id(record.id()) else { return };
        // One that is being given back already is the keeper's, with its pauses.
        if record.phase != Phase::Releasing {
            tracing::info!(
                attachment = record.id(),
                "the host port is no longer configured; releasing it"
            );
            release(&self.doors, record, self.doors.timeouts.vf_return(), Renewal::Later).await;
        }
    }

    async fn provide(&self, port: &HostPort) -> Result<(), Failure> {
        let record = self.doors.vfs.records().by_key(&port.key());
        if record.as_ref().is_some_and(|record| is_as_wanted(record, port)) {
            return Ok(());
        }
        // An ADD would wait for a session that may be long in coming; each new one asks for a comparison.
        if let SessionState::Down { failure, .. } = self.doors.dpu.session().state() {
            return Err(failure);
        }
        if record.is_none() {
            self.refuse_taken_name(&port.name).await?;
        }
        self.attach(port).await
    }

    /// Before the DPU gives an attachment that could not be used.
    async fn refuse_taken_name(&self, name: &str) -> Result<(), Failure> {
        let vfs = Arc::clone(&self.doors.vfs);
        let present = self.doors.vfs.host().listed(move || vfs.host().links()).await?;
        let has_name = |link: &&Link| {
            link.name == name || link.alternative_names.iter().any(|other| other == name)
        };
        match present.links.iter().find(has_name) {
            None => Ok(()),
            Some(_) => {
                let message = format!(
                    "the host already has an interface {name} of another program: set another `host_port.name`"
                );
                Err(Failure::new(Reason::InterfaceExists, message))
            }
        }
    }

    /// An ADD whose caller is the agent itself. It hears the answer, so that this one is counted as heard.
    async fn attach(&self, port: &HostPort) -> Result<(), Failure> {
        let timeouts = self.doors.timeouts;
        let deadline = Instant::now() + timeouts.attach() + timeouts.vf_return();
        let (caller, receiver) = Caller::task(deadline);
        // It ends with its attach, so that one that fails is not waited for.
        let attach = async move {
            let (request, caller) = (request_for(port), Arc::new(caller));
            verbs::attach(&self.doors, request, &destination_of(port), &caller).await
        };
        let (attached, _) = tokio::join!(attach, receiver.receive());
        attached
    }

    /// Tells what became of a host port, if that is news.
    fn note(&self, port: &HostPort, failure: Option<Failure>) {
        let HostPort { name, network, .. } = port;
        let why = failure.map(|failure| failure.to_string());
        let mut obstacles = self.obstacles.lock();
        if obstacles.get(name) == why.as_ref() {
            return;
        }
        match why {
            Some(why) => {
                tracing::warn!(name, network, why, "the host port is not in place");
                obstacles.insert(name.clone(), why);
            }
            None => {
                tracing::info!(name, network, "the host port is in place");
                obstacles.remove(name);
            }
        }
    }

    /// The host ports that are not in place, and why.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let obstacles = self.obstacles.lock();
        let told = |(name, why): (&String, &String)| FindingCode::HostPortMissing.of(name, why);
        obstacles.iter().map(told).collect()
    }

    /// Moves VFs of host ports back that another program moved to another namespace: no pod depends on them. The keeper
    /// does the rest when they arrive.
    async fn fetch_from_abroad(&self) {
        let vfs = Arc::clone(&self.doors.vfs);
        let look = self.doors.vfs.host().look(move || ports_abroad(&vfs)).await;
        for (record, abroad) in done_or_nothing(look, "find the VFs of host ports") {
            let _key = self.doors.vfs.keys().lock(&record.key()).await;
            let now = self.doors.vfs.records().by_id(record.id());
            // Its release, for which the key was waited, brings it home itself.
            if now.is_some_and(|now| now.phase == Phase::Live) {
                let vfs = Arc::clone(&self.doors.vfs);
                let fetch = move || fetch(&vfs, &record, &abroad);
                let done = self.doors.vfs.host().look(fetch).await;
                done_or_nothing(done, "move the VF of a host port back");
            }
        }
    }
}

fn ports_abroad(vfs: &Vfs) -> Result<Vec<(Arc<Record>, VfAbroad)>, Error> {
    let present = vfs.host().links()?.links;
    let is_away = |record: &Arc<Record>| {
        record.phase == Phase::Live && !vfs.host().cards().is_among(record.device(), &present)
    };
    let away: Vec<_> = records(vfs).into_iter().filter(is_away).collect();
    if away.is_empty() {
        return Ok(Vec::new());
    }
    let abroad = vfs.abroad().find(&present).into_iter();
    let owned = abroad.filter_map(|abroad| {
        let owner = away.iter().find(|record| *record.device() == abroad.vf.device)?;
        Some((Arc::clone(owner), abroad))
    });
    Ok(owned.collect())
}

fn fetch(vfs: &Vfs, record: &Record, abroad: &VfAbroad) -> Result<(), Error> {
    if vfs.abroad().fetch(abroad)? {
        let from = abroad.path.display();
        vfs.repairs().note(record.id(), format!("the host port was moved back from {from}"));
    }
    Ok(())
}

/// The records of host ports.
fn records(vfs: &Vfs) -> Vec<Arc<Record>> {
    let all = vfs.records().all().into_iter();
    all.filter(|record| record.key().is_of_host_port()).collect()
}

/// Whether a record is of a host port, if perhaps with other routes.
fn is_of(record: &Record, port: &HostPort) -> bool {
    record.key() == port.key() && record.attachment.network == port.network
}

fn is_as_wanted(record: &Record, port: &HostPort) -> bool {
    let wanted = destination_of(port).adapt(record.attachment.clone());
    record.phase == Phase::Live && is_of(record, port) && record.attachment.routes == wanted.routes
}

fn destination_of(port: &HostPort) -> Destination {
    Destination::Host { routes: port.routes.clone() }
}

fn request_for(port: &HostPort) -> AddRequest {
    AddRequest::plain(port.key(), String::new(), port.network.clone())
}
