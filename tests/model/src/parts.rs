//! The state of one host: on the host, on the wire, and on the DPU. Hosts share only the pool of addresses and the
//! service's life.
//!
//! [`differ`] checks that a step at one host leaves the state of all others unchanged. [`fingerprint`] lets states
//! that differ only in the numbering of hosts count as one. Nothing in the protocol depends on a host's number, so
//! each step from one such state has its mirror image from the other. Without a protection that may not hold, and
//! the explorer could miss something. What it finds is still a valid path, because it follows steps from real
//! states.

use std::hash::Hash;

use crate::{
    host::Host,
    names::{AttachmentId, BootId, HostId, HostTime, Key, Record, SessionId, Vf},
    service::memory::{Entry, Flow, Verdict},
    system::{Budget, Port, System},
};

/// The state of one host.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Part<'a> {
    host: &'a Host,
    journal: Vec<&'a Record>,
    ports: Vec<(&'a Vf, &'a Port)>,
    released: Vec<&'a AttachmentId>,
    lost: Vec<&'a AttachmentId>,
    known: Option<Known<'a>>,
}

/// The service's memory of one host.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Known<'a> {
    entries: Vec<&'a Entry>,
    known: Vec<&'a Vf>,
    reported_free: Vec<&'a Vf>,
    offers: Vec<(&'a Vf, &'a Option<u8>)>,
    last_number: Vec<(&'a Vf, &'a u8)>,
    unaccounted: Vec<&'a Vf>,
    reported: Vec<(&'a Vf, &'a (BootId, HostTime))>,
    tombstones: Vec<&'a (Key, BootId, HostTime)>,
    session: Option<&'a (SessionId, BootId)>,
    newest: Option<&'a SessionId>,
    flows: Vec<&'a Flow>,
    verdicts: Vec<&'a Verdict>,
    evaluating: Vec<&'a SessionId>,
}

/// Whether the state of a host differs.
#[must_use]
pub fn differ(one: &System, other: &System, host: HostId) -> bool {
    Part::new(one, host) != Part::new(other, host)
}

/// A fingerprint that is equal for states which differ only in the numbering of hosts.
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
        let evaluating = own(&service.evaluating, |(of, _)| *of == host);
        Some(Self {
            entries: own(&service.entries, |entry| entry.record.key.host == host),
            known: own(&service.known, |vf| vf.host == host),
            reported_free: own(&service.reported_free, |vf| vf.host == host),
            offers: own(&service.offers, |(vf, _)| vf.host == host),
            last_number: own(&service.last_number, |(vf, _)| vf.host == host),
            unaccounted: own(&service.unaccounted, |vf| vf.host == host),
            reported: own(&service.reported, |(vf, _)| vf.host == host),
            tombstones: own(&service.tombstones, |(key, ..)| key.host == host),
            session: service.sessions.get(&host),
            newest: service.newest.get(&host),
            flows: own(&service.flows, |flow| flow.key.host == host),
            verdicts: own(&service.verdicts, |verdict| verdict.host == host),
            evaluating: evaluating.into_iter().map(|(_, session)| session).collect(),
        })
    }
}

fn own<C: IntoIterator>(all: C, is_own: impl Fn(&C::Item) -> bool) -> Vec<C::Item> {
    all.into_iter().filter(is_own).collect()
}
