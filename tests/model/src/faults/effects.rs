//! The effects of faults.

use super::{Fault, Faults, Forgotten};
use crate::{
    agent::{gives_back_unused, memory::Step},
    host::{Function, Life, Place},
    names::{HostId, HostTime, Key},
    system::System,
    wire::{InFlight, Wire},
};

impl Faults<'_> {
    /// Carries out a fault.
    pub fn breaks(&self, system: &mut System, fault: Fault) {
        match fault {
            Fault::AgentDies(host, in_flight, forgotten) => {
                agent_dies(system, host, in_flight, forgotten);
            }
            Fault::RecordsAreLost(host) => records_are_lost(system, host),
            Fault::ServiceDies => self.service_dies(system),
            Fault::HostReboots(host, forgotten) => host_reboots(system, host, forgotten),
            Fault::PowerFails(host) => {
                host_reboots(system, host, Forgotten::Gone);
                system.hosts[usize::from(host)].disk.clear();
            }
            Fault::ConnectionBreaks(host, in_flight) => {
                self.connection_breaks(system, host, in_flight);
            }
            Fault::CallTimesOut(key, in_flight) => self.call_times_out(system, key, in_flight),
            Fault::NetnsDies(key) => system.netns_dies(key),
            Fault::RuntimeGivesUp(key) => system.gives_up(key),
            Fault::CallerDies(key) => system.caller_dies(key),
            Fault::PoolsChange(host) => system.hosts[usize::from(host)].wire.invalidate_offers(),
            Fault::OperatorReleases(key) => self.operator_releases(system, key),
        }
    }

    fn call_times_out(&self, system: &mut System, key: Key, in_flight: InFlight) {
        system.abandon(key, in_flight);
        let Some(agent) = &system.host(key).agent else { return };
        match agent.task(key).map(|task| task.step) {
            Some(Step::CallAttach(..) | Step::AskAgain(_) | Step::AwaitAttach(..)) => {
                self.agents.disowns(system, key);
            }
            // The earlier holder of the VF is not waited for any longer.
            Some(Step::WriteRecord(_, attachment, _)) => {
                gives_back_unused(system, key, attachment, false);
            }
            Some(Step::AwaitDetach(..)) => self.agents.detach_ends(system, key, false),
            _ => {}
        }
    }

    /// A host's connection breaks, and its agent notices.
    fn connection_breaks(&self, system: &mut System, host: HostId, in_flight: InFlight) {
        for key in system.keys().filter(|key| key.host == host).collect::<Vec<_>>() {
            self.agents.call_fails(system, key, in_flight);
        }
        let host = &mut system.hosts[usize::from(host)];
        host.wire.hang_up(in_flight);
        if let Some(agent) = &mut host.agent {
            self.agents.goes_down(agent);
        }
    }

    /// The service's process ends with all connections.
    fn service_dies(&self, system: &mut System) {
        system.dpu.service = None;
        for host in system.host_ids() {
            self.connection_breaks(system, host, InFlight::Lost);
            system.hosts[usize::from(host)].wire = Wire::default();
        }
    }

    /// The host is asked to release what an operator releases.
    fn operator_releases(&self, system: &mut System, key: Key) {
        let Some(service) = system.service_mut() else { return };
        let Some(id) = service.by_key(key).map(|entry| entry.record.id) else { return };
        self.service.gives_back(service, (key, id), false, None);
        if let Some(flow) = service.flows.iter_mut().find(|flow| flow.key == key) {
            flow.informs_host = true;
        }
        system.released.push(id);
        system.released.sort_unstable();
    }
}

/// The agent's process ends with its tasks.
fn agent_dies(system: &mut System, host: HostId, in_flight: InFlight, forgotten: Forgotten) {
    let keys: Vec<_> = system.keys().filter(|key| key.host == host).collect();
    for key in &keys {
        system.abandon(*key, in_flight);
        // Recorded as kept but not answered: this takes a DEL, and therefore a runtime.
        let is_kept = is_kept_unanswered(system, *key);
        let container = system.container_mut(*key);
        let is_calling = matches!(container.life, Life::Adding | Life::Deleting);
        if is_calling || is_kept && container.life == Life::Abandoned {
            (container.life, container.confirmed) = (Life::Failed, None);
        }
    }
    let host = &mut system.hosts[usize::from(host)];
    host.wire.hang_up(in_flight);
    host.agent = None;
    host.disk.iter_mut().for_each(|record| record.is_returned = false);
    match forgotten {
        Forgotten::Gone => host.disk.retain(|record| !record.is_forgotten),
        Forgotten::Back => host.disk.iter_mut().for_each(|record| record.is_forgotten = false),
    }
}

fn records_are_lost(system: &mut System, host: HostId) {
    agent_dies(system, host, InFlight::Lost, Forgotten::Gone);
    let lost = std::mem::take(&mut system.hosts[usize::from(host)].disk);
    system.lost.extend(lost.iter().map(|record| record.attachment.id));
    system.lost.sort_unstable();
}

/// Nothing of the old boot remains: no process, no namespace, no connection. The card creates its VFs again,
/// possibly after the agent has started.
fn host_reboots(system: &mut System, host: HostId, forgotten: Forgotten) {
    agent_dies(system, host, InFlight::Lost, forgotten);
    for vf in system.vfs_of(host) {
        *system.function_mut(vf) = Function { place: Place::Nowhere, carries: None };
    }
    let host = &mut system.hosts[usize::from(host)];
    host.boot_id.0 += 1;
    host.clock = HostTime::default();
    host.wire.requests.clear();
    for container in &mut host.containers {
        (container.life, container.has_netns) = (Life::Absent, false);
        container.confirmed = None;
    }
}

/// Whether an ADD of the key is between its record and its answer.
fn is_kept_unanswered(system: &System, key: Key) -> bool {
    let agent = system.host(key).agent.as_ref();
    let step = agent.and_then(|agent| agent.task(key)).map(|task| task.step);
    matches!(step, Some(Step::Answer(..)))
}
