//! Normalises the state after each step: states that no later step can tell apart become one.

use crate::{
    agent::memory::Step,
    host::{Host, Life},
    names::{HostId, HostTime, Key, Offer, Vf},
    system::System,
    wire::{Call, Detach, DpuMessage, HostMessage},
};

impl System {
    /// Renumbers values of which only the order matters: each host's times that may still be compared, and calls of
    /// containers without a call in progress.
    pub fn tidy(&mut self) {
        for key in self.keys().collect::<Vec<_>>() {
            tidy_calls(self, key);
        }
        self.host_ids().for_each(|host| self.tidy_times(host));
        self.vfs().for_each(|vf| self.tidy_numbers(vf));
    }

    fn tidy_times(&mut self, host: HostId) {
        self.tidy_detach_times(host);
        self.tidy_tombstones(host);
        let mut times = Vec::new();
        self.each_time(host, &mut |time| times.push(*time));
        times.sort_unstable();
        times.dedup();
        self.each_time(host, &mut |time| {
            let rank = times.binary_search(time).unwrap_or_else(|place| place);
            *time = HostTime(u8::try_from(rank).unwrap_or(u8::MAX));
        });
        let latest = times.len().saturating_sub(1);
        self.hosts[usize::from(host)].clock = HostTime(u8::try_from(latest).unwrap_or(u8::MAX));
    }

    /// Drops the times of Detaches once no older inventory is in flight.
    fn tidy_detach_times(&mut self, host: HostId) {
        let Host { boot_id, clock, wire, .. } = &self.hosts[usize::from(host)];
        let messages = wire.streams.iter().flat_map(|stream| &stream.up);
        let under_way = messages.filter_map(|message| match message {
            HostMessage::Hello(hello) => Some(hello.inventory.as_of),
            HostMessage::Inventory(inventory) => Some(inventory.as_of),
            HostMessage::Attached(_) | HostMessage::Declined(_) => None,
        });
        let oldest = under_way.min().unwrap_or(*clock);
        let Some(service) = &mut self.dpu.service else { return };
        service
            .reported
            .retain(|vf, (boot, at)| vf.host != host || boot == boot_id && *at > oldest);
    }

    /// Drops tombstones once no older Attach is in flight.
    fn tidy_tombstones(&mut self, host: HostId) {
        let Host { boot_id, wire, .. } = &self.hosts[usize::from(host)];
        let is_asked_before = |key: Key, until: HostTime| {
            wire.requests.iter().any(|request| match request.call {
                Call::Attach { key: of, as_of, .. } => of == key && as_of <= until,
                Call::Detach(_) => false,
            })
        };
        let Some(service) = &mut self.dpu.service else { return };
        service.tombstones.retain(|(key, boot, until)| {
            key.host != host || boot == boot_id && is_asked_before(*key, *until)
        });
    }

    /// Visits all times on a host's clock.
    fn each_time(&mut self, host: HostId, visit: &mut impl FnMut(&mut HostTime)) {
        let Host { agent, wire, .. } = &mut self.hosts[usize::from(host)];
        if let Some(agent) = agent {
            agent.undelivered.iter_mut().for_each(|detach| visit(&mut detach.as_of));
            agent.tasks.iter_mut().flatten().for_each(|task| match &mut task.step {
                Step::CallDetach(_, detach) | Step::AwaitDetach(_, detach, _) => {
                    visit(&mut detach.as_of);
                }
                _ => {}
            });
        }
        wire.requests.iter_mut().for_each(|request| match &mut request.call {
            Call::Attach { as_of, .. } | Call::Detach(Detach { as_of, .. }) => visit(as_of),
        });
        let messages = wire.streams.iter_mut().flat_map(|stream| &mut stream.up);
        messages.for_each(|message| match message {
            HostMessage::Hello(hello) => visit(&mut hello.inventory.as_of),
            HostMessage::Inventory(inventory) => visit(&mut inventory.as_of),
            HostMessage::Attached(_) | HostMessage::Declined(_) => {}
        });
        let Some(service) = &mut self.dpu.service else { return };
        let tombstones = service.tombstones.iter_mut().filter(|(key, ..)| key.host == host);
        tombstones.for_each(|(.., until)| visit(until));
        let reported = service.reported.iter_mut().filter(|(vf, _)| vf.host == host);
        reported.for_each(|(_, (_, at))| visit(at));
    }

    /// Renumbers the offers of a VF, of which only equality matters.
    fn tidy_numbers(&mut self, vf: Vf) {
        let mut numbers = vec![0];
        self.each_number(vf, &mut |number| numbers.push(*number));
        numbers.sort_unstable();
        numbers.dedup();
        let rank = |number: &u8| {
            let rank = numbers.binary_search(number).unwrap_or_else(|place| place - 1);
            u8::try_from(rank).unwrap_or(u8::MAX)
        };
        self.each_number(vf, &mut |number| *number = rank(number));
        if let Some(service) = &mut self.dpu.service
            && let Some(last) = service.last_number.remove(&vf).map(|last| rank(&last))
            && last > 0
        {
            service.last_number.insert(vf, last);
        }
    }

    /// Visits all numbers of a VF's offers that may still be named.
    fn each_number(&mut self, vf: Vf, visit: &mut impl FnMut(&mut u8)) {
        let mut visit_of = |offer: &mut Offer| {
            if offer.vf == vf {
                visit(&mut offer.number);
            }
        };
        for host in &mut self.hosts {
            for request in &mut host.wire.requests {
                if let Call::Attach { offered: Some(offer), .. } = &mut request.call {
                    visit_of(offer);
                }
            }
            for stream in &mut host.wire.streams {
                for message in &mut stream.up {
                    if let HostMessage::Declined(offer) = message {
                        visit_of(offer);
                    }
                }
                for message in &mut stream.down {
                    if let DpuMessage::Offers(offer) = message {
                        visit_of(offer);
                    }
                }
            }
            if let Some(agent) = &mut host.agent {
                agent.vf_holds.iter_mut().flatten().for_each(&mut visit_of);
            }
        }
        let agents = self.hosts.iter_mut().filter_map(|host| host.agent.as_mut());
        agents.filter_map(|agent| agent.offers.get_mut(&vf)).for_each(&mut *visit);
        let service = self.dpu.service.as_mut();
        let reported = service.and_then(|service| service.offers.get_mut(&vf)?.as_mut());
        reported.into_iter().for_each(visit);
    }
}

/// Resets the call number of a container without a call in progress.
fn tidy_calls(system: &mut System, key: Key) {
    let Host { agent, containers, .. } = system.host(key);
    let number = usize::from(key.container);
    let is_served =
        agent.as_ref().is_some_and(|agent| agent.calls[number] > 0 || agent.is_repeated(key));
    if !is_served && containers[number].life != Life::Adding {
        system.container_mut(key).call = 0;
    }
}
