//! The properties: what must hold in every state, at every step, and in the end.
//!
//! `lost` and `released` contain justified exceptions: an agent cannot report records that were lost, and operators
//! release attachments on purpose.

use crate::{
    agent::memory::Standing,
    host::{AgentPhase, AgentRecord, Function, Host, Life, Place},
    names::{Address, AttachmentId, BootId, HostId, Key, Netns, Phase, Record, Vf},
    parts,
    service::memory::Service,
    system::System,
    wire::{Answer, Call, Request},
};

type Invariant = (&'static str, fn(&System) -> bool);

/// A VF has one holder.
pub const ONE_VF: &str = "no VF is in two attachments";
/// An address has one holder.
pub const ONE_ADDRESS: &str = "no address is in two attachments, nor in two pods";
/// The records are the agent's and the journal's.
pub const HELD_ON_BOTH_SIDES: &str =
    "a VF that is not clean at home is held by records on both sides";
/// Also for a VF's first attachment.
pub const CLEAN_AT_HOME: &str = "an allocated VF is clean at home, or on its way to its pod";
/// The record of the speculative move, or of the DPU's answer since.
pub const SPECULATIVE_IS_RECORDED: &str = "a speculatively moved VF is recorded";
/// Except after a reboot of the host, the end of the pod's namespace, or an operator's release.
pub const CONFIRMED_STAYS: &str = "an attachment that was confirmed to the runtime stays until DEL";
/// The VF belongs to the host whose certificate requested the attachment.
pub const OF_ONE_HOST: &str = "an attachment's VF is its own host's";
/// Covers all events of a host: its death, its late messages, and steps for it.
pub const OTHERS_UNTOUCHED: &str = "a step at one host does not change another host";
/// Except if another key holds the VF, or an operator has changed the pools.
pub const HELD_IS_GIVEN: &str = "a key is not refused the offered VF that it has taken";
/// A pod with another pod's VF would use that pod's identity.
pub const PORT_SPEAKS_FOR_ITS_POD: &str =
    "a representor is programmed only if its VF is at home, or in the pod of that attachment";
/// The data path must not stop while the runtime relies on it.
pub const PORT_SERVES_ITS_POD: &str = "a representor serves the pod that was confirmed";

/// What must hold in every state.
pub const INVARIANTS: [Invariant; 9] = [
    (ONE_VF, no_vf_is_held_twice),
    (OF_ONE_HOST, vfs_are_of_their_hosts),
    (ONE_ADDRESS, no_address_is_held_twice),
    (HELD_ON_BOTH_SIDES, vfs_are_held),
    (SPECULATIVE_IS_RECORDED, speculative_vfs_are_recorded),
    (CLEAN_AT_HOME, vfs_are_given_out_clean),
    (CONFIRMED_STAYS, confirmed_stays),
    (PORT_SERVES_ITS_POD, ports_serve_their_pods),
    (PORT_SPEAKS_FOR_ITS_POD, ports_speak_for_their_pods),
];

/// The first invariant that does not hold.
#[must_use]
pub fn broken(system: &System) -> Option<&'static str> {
    INVARIANTS.iter().find(|(_, holds)| !holds(system)).map(|(name, _)| *name)
}

/// The property that a step at a host breaks. `host` is `None` for the DPU itself, which serves all hosts.
#[must_use]
pub fn broken_by_step(
    before: &System,
    host: Option<HostId>,
    after: &System,
) -> Option<&'static str> {
    let others =
        (0..).zip(&before.hosts).map(|(other, _)| other).filter(|other| host != Some(*other));
    let mut others = others.filter(|_| host.is_some());
    if others.any(|other| parts::differ(before, after, other)) {
        return Some(OTHERS_UNTOUCHED);
    }
    let mut refused =
        after.keys().filter(|key| is_refused(after, *key) && !is_refused(before, *key));
    refused.any(|key| is_to_be_given(before, key)).then_some(HELD_IS_GIVEN)
}

fn is_refused(system: &System, key: Key) -> bool {
    system.host(key).wire.answers.contains(&(key, Answer::NotFree))
}

/// Whether the DPU is asked for a VF with a valid offer that only this key has taken.
fn is_to_be_given(system: &System, key: Key) -> bool {
    let Host { wire, agent, .. } = system.host(key);
    let Some(hold) = agent.as_ref().and_then(|agent| agent.hold_of(key)) else { return false };
    let names_it = |request: &Request| match request.call {
        Call::Attach { offered, .. } => {
            request.is_awaited && request.key == key && offered == Some(hold)
        }
        Call::Detach(_) => false,
    };
    let is_free = |service: &Service| {
        service.by_key(key).is_none()
            && service.offers.contains_key(&hold.vf)
            && service.is_idle(hold.vf)
    };
    wire.requests.iter().any(names_it) && system.dpu.service.as_ref().is_some_and(is_free)
}

/// All attachments of the DPU, on disk and in memory.
fn attachments(system: &System) -> impl Iterator<Item = Record> + '_ {
    let entries = system.dpu.service.iter().flat_map(|service| &service.entries);
    let in_memory = entries.map(|entry| entry.record);
    system.dpu.journal.iter().copied().chain(in_memory)
}

fn no_vf_is_held_twice(system: &System) -> bool {
    let differ = |a: &Record, b: &Record| a.id == b.id || a.vf != b.vf;
    let on_dpu = attachments(system).all(|a| attachments(system).all(|b| differ(&a, &b)));
    let on_host = system.hosts.iter().all(|host| {
        host.records().all(|a| host.records().all(|b| differ(&a.attachment, &b.attachment)))
    });
    on_dpu && on_host
}

fn vfs_are_of_their_hosts(system: &System) -> bool {
    let on_hosts = system.hosts.iter().flat_map(Host::records).map(|record| record.attachment);
    attachments(system).chain(on_hosts).all(|record| record.vf.host == record.key.host)
}

fn no_address_is_held_twice(system: &System) -> bool {
    let differ = |a: &Record, b: &Record| a.id == b.id || a.address != b.address;
    let in_pods = || system.vfs().filter_map(|vf| in_pod(system, vf));
    attachments(system).all(|a| attachments(system).all(|b| differ(&a, &b)))
        && in_pods().all(|a| in_pods().all(|b| differ(&a, &b)))
}

/// The attachment whose pod has the VF, by the agent's record.
fn in_pod(system: &System, vf: Vf) -> Option<Record> {
    let Function { place: Place::Pod(netns), carries: Some(id) } = *system.function(vf) else {
        return None;
    };
    system.host(netns.key).by_id(id).map(|record| record.attachment)
}

fn vfs_are_held(system: &System) -> bool {
    system.vfs().all(|vf| {
        let Some(id) = system.function(vf).carries else { return true };
        let host = &system.hosts[usize::from(vf.host)];
        let is_recorded = host.by_id(id).is_some_and(|record| record.attachment.vf == vf);
        (is_recorded || system.lost.contains(&id))
            && system.dpu.journal.iter().any(|record| (record.id, record.vf) == (id, vf))
    })
}

/// The namespace of the pod with a VF that was moved speculatively and has no attachment's settings yet.
fn speculative_netns(system: &System, vf: Vf) -> Option<Netns> {
    match *system.function(vf) {
        Function { place: Place::Pod(netns), carries: None } => Some(netns),
        _ => None,
    }
}

fn speculative_vfs_are_recorded(system: &System) -> bool {
    system.vfs().all(|vf| {
        let Some(netns) = speculative_netns(system, vf) else { return true };
        let host = &system.hosts[usize::from(vf.host)];
        let is_recorded =
            |record: &AgentRecord| record.netns == netns && record.phase != AgentPhase::Live;
        host.by_vf(vf).is_some_and(is_recorded) || is_lost(system, netns.key, vf)
    })
}

/// Whether the agent has lost its record of the key's speculative move.
fn is_speculative_lost(system: &System, key: Key) -> bool {
    system.lost.contains(&AttachmentId::speculative_id(key))
}

/// Whether the agent has lost its record of a speculatively moved VF, or of the answer since.
fn is_lost(system: &System, key: Key, vf: Vf) -> bool {
    let is_it = |record: &Record| record.vf == vf && system.lost.contains(&record.id);
    is_speculative_lost(system, key) || attachments(system).any(|record| is_it(&record))
}

fn vfs_are_given_out_clean(system: &System) -> bool {
    attachments(system).all(|record| {
        let holder = system.hosts[usize::from(record.vf.host)].by_vf(record.vf);
        let is_on_its_way = |holder: &AgentRecord| {
            let Record { id, key, .. } = holder.attachment;
            id == record.id || holder.is_speculative() && key == record.key
        };
        match system.function(record.vf).carries {
            Some(id) => id == record.id,
            None => speculative_netns(system, record.vf).is_none_or(|netns| {
                holder.is_some_and(is_on_its_way) || is_lost(system, netns.key, record.vf)
            }),
        }
    })
}

/// The attachment that the runtime relies on: its pod runs, and no operator has released it.
fn counted_on(system: &System, key: Key) -> Option<Record> {
    let container = system.container(key);
    let Life::Attached(id) = container.life else { return None };
    let is_counted_on = container.has_netns && !system.released.contains(&id);
    let record = system.dpu.journal.iter().find(|record| record.id == id).copied();
    let lost = || Record {
        id,
        key,
        vf: Vf { host: key.host, number: u8::MAX },
        address: Address(u8::MAX),
        boot_id: BootId::default(),
        phase: Phase::Releasing,
    };
    is_counted_on.then(|| record.unwrap_or_else(lost))
}

fn confirmed_stays(system: &System) -> bool {
    system.keys().filter_map(|key| counted_on(system, key)).all(|attachment| {
        let Record { id, key, vf, phase, .. } = attachment;
        let netns = Netns { key, sandbox: system.container(key).sandboxes };
        let in_pod = Function { place: Place::Pod(netns), carries: Some(id) };
        let is_live =
            |record: &AgentRecord| (record.phase, record.netns) == (AgentPhase::Live, netns);
        phase == Phase::Held
            && system.hosts[usize::from(vf.host)].functions.get(usize::from(vf.number))
                == Some(&in_pod)
            && (system.host(key).by_id(id).is_some_and(is_live) || system.lost.contains(&id))
    })
}

fn ports_serve_their_pods(system: &System) -> bool {
    system
        .keys()
        .filter_map(|key| counted_on(system, key))
        .all(|attachment| system.dpu.programmed(attachment.vf) == Some(attachment.id))
}

fn ports_speak_for_their_pods(system: &System) -> bool {
    system.dpu.ports.iter().all(|(vf, port)| match system.function(*vf).place {
        Place::Pod(netns) => netns.key == port.key,
        Place::Home | Place::Nowhere => true,
    })
}

/// Whether nothing is left to do: journal, agents' records and kernels agree.
#[must_use]
pub fn is_settled(system: &System) -> bool {
    system.keys().all(|key| is_container_settled(system, key))
        && system.hosts.iter().all(|host| {
            let agent = host.agent.as_ref();
            agent.is_some_and(|agent| {
                matches!(agent.standing, Standing::Up(_))
                    && agent.tasks.iter().all(Option::is_none)
                    && agent.undelivered.is_empty()
            })
        })
        && system.vfs().all(|vf| is_vf_settled(system, vf))
        && attachments(system).count() == system.dpu.journal.len() * 2
}

/// A running pod has its attachment everywhere; any other pod has none anywhere.
fn is_container_settled(system: &System, key: Key) -> bool {
    let recorded = system.host(key).by_key(key);
    let journal = system.dpu.journal.iter().find(|record| record.key == key);
    let has_netns = system.container(key).has_netns;
    match (system.container(key).life, counted_on(system, key)) {
        (Life::Attached(_), Some(attachment)) => {
            let entry = system.dpu.service.as_ref().and_then(|service| service.get(attachment.id));
            let is_known = recorded.is_some() && entry.is_some_and(|entry| entry.attached);
            is_known || system.lost.contains(&attachment.id)
        }
        // The pod keeps the VF until it ends: without the record it cannot be taken away.
        (Life::Attached(id), None) if has_netns && system.lost.contains(&id) => true,
        // A crash kept the operator's release from the journal, so it has not happened.
        (Life::Attached(_), None) if has_netns => {
            let is_held = journal.is_some_and(|record| record.phase == Phase::Held);
            recorded.is_some() == is_held && journal.is_some() == is_held
        }
        // If the record of an ADD was lost, it is unknown whether the ADD was answered.
        (Life::Abandoned, _)
            if is_speculative_lost(system, key)
                || journal.is_some_and(|record| system.lost.contains(&record.id)) =>
        {
            true
        }
        // An ADD that was not answered leaves nothing behind.
        (Life::Absent | Life::Attached(_) | Life::Abandoned, _) => {
            recorded.is_none() && journal.is_none()
        }
        _ => false,
    }
}

/// A VF serves its pod, or is available.
fn is_vf_settled(system: &System, vf: Vf) -> bool {
    let Some(service) = &system.dpu.service else { return false };
    let port = system.dpu.programmed(vf);
    match service.by_vf(vf) {
        Some(entry) => (port == Some(entry.record.id)) == entry.is_held(),
        // Until the pod ends, and the kernel puts it back.
        None if speculative_netns(system, vf)
            .is_some_and(|netns| is_lost(system, netns.key, vf)) =>
        {
            true
        }
        None => {
            port.is_none()
                && *system.function(vf) == Function::CLEAN
                && service.reported_free.contains(&vf)
                && !service.unaccounted.contains(&vf)
                && is_offer_known(system, service, vf)
        }
    }
}

/// The agent may take every offered VF.
fn is_offer_known(system: &System, service: &Service, vf: Vf) -> bool {
    let agent = system.hosts[usize::from(vf.host)].agent.as_ref();
    let heard = agent.and_then(|agent| agent.offers.get(&vf)).copied();
    service.offers.get(&vf).is_none_or(|reported| reported.is_some() && *reported == heard)
}
