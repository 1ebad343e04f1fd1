//! What is one host's own: on the host, on the wire, and on the DPU. All that hosts share is the pool of
//! addresses and the service's life.
//!
//! That serves two ends. A step at one host must leave the parts of all others as they were:
//! [`differ`]. And hosts are alike, so that two states which differ only in which host is which are
//! visited once: [`fingerprint`]. Nothing in the protocol depends on a host's number, so that each step
//! from the one state has its mirror image from the other: what can be reached, broken or settled from
//! the one can be from the other. Where a protection is taken out that need not be so, and something
//! could be missed; what is found is a way all the same, for steps are followed from states as they are.

use std::hash::Hash;

use crate::{
    host::Host,
    names::{AttachmentId, BootId, HostId, HostTime, Key, Record, SessionId, Vf},
    service::memory::{Entry, Flow, Verdict},
    system::{Budget, Port, System},
};

/// What is a host's own.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Part<'a> {
    host: &'a Host,
    journal: Vec<&'a Record>,
    ports: Vec<(&'a Vf, &'a Port)>,
    released: Vec<&'a AttachmentId>,
    lost: Vec<&'a AttachmentId>,
    known: Option<Known<'a>>,
}

/// What the service has in memory of a host.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Known<'a> {
    entries: Vec<&'a Entry>,
    known: Vec<&'a Vf>,
    offered: Vec<&'a Vf>,
    promises: Vec<(&'a Vf, &'a Option<u8>)>,
    last_told: Vec<(&'a Vf, &'a u8)>,
    unaccounted: Vec<&'a Vf>,
    reported: Vec<(&'a Vf, &'a (BootId, HostTime))>,
    overtaken: Vec<&'a (Key, BootId, HostTime)>,
    session: Option<&'a (SessionId, BootId)>,
    newest: Option<&'a SessionId>,
    flows: Vec<&'a Flow>,
    verdicts: Vec<&'a Verdict>,
    greeting: Vec<&'a SessionId>,
}

/// Whether what is a host's own differs.
#[must_use]
pub fn differ(one: &System, other: &System, host: HostId) -> bool {
    Part::new(one, host) != Part::new(other, host)
}

/// The same for states that differ only in which host is which.
#[must_use]
pub fn fingerprint(system: &System) -> u64 {
    let mut parts: Vec<_> =
        (0..).zip(&system.hosts).map(|(host, _)| of_host(system, host)).collect();
    parts.sort_unstable();
    let common = system.budgets.last();
    hash(&(parts, common, system.dpu.service.is_some()))
}

fn of_host(system: &System, host: HostId) -> u64 {
    let (_, own) = system.budgets.split_last().unwrap_or((&NOTHING, &[]));
    hash(&(Part::new(system, host), own.get(usize::from(host))))
}

const NOTHING: Budget = Budget { adds: 0, faults: 0 };

fn hash(value: &impl Hash) -> u64 {
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(value)
}

impl<'a> Part<'a> {
    fn new(system: &'a System, host: HostId) -> Self {
        let dpu = &system.dpu;
        Self {
            host: &system.hosts[usize::from(host)],
            journal: own(&dpu.journal, |record| record.key.host == host),
            ports: own(&dpu.ports, |(vf, _)| vf.host == host),
            released: own(&system.released, |id| id.host == host),
            lost: own(&system.lost, |id| id.host == host),
            known: Known::new(system, host),
        }
    }
}

impl<'a> Known<'a> {
    fn new(system: &'a System, host: HostId) -> Option<Self> {
        let service = system.dpu.service.as_ref()?;
        let greeting = own(&service.greeting, |(of, _)| *of == host);
        Some(Self {
            entries: own(&service.entries, |entry| entry.record.key.host == host),
            known: own(&service.known, |vf| vf.host == host),
            offered: own(&service.offered, |vf| vf.host == host),
            promises: own(&service.promises, |(vf, _)| vf.host == host),
            last_told: own(&service.last_told, |(vf, _)| vf.host == host),
            unaccounted: own(&service.unaccounted, |vf| vf.host == host),
            reported: own(&service.reported, |(vf, _)| vf.host == host),
            overtaken: own(&service.overtaken, |(key, ..)| key.host == host),
            session: service.sessions.get(&host),
            newest: service.newest.get(&host),
            flows: own(&service.flows, |flow| flow.key.host == host),
            verdicts: own(&service.verdicts, |verdict| verdict.host == host),
            greeting: greeting.into_iter().map(|(_, session)| session).collect(),
        })
    }
}

fn own<C: IntoIterator>(all: C, is_own: impl Fn(&C::Item) -> bool) -> Vec<C::Item> {
    all.into_iter().filter(is_own).collect()
}
