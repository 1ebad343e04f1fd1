//! What the agent tells the DPU in its session, and hears of it.
//! In the program: host-shim/src/agent/{dpu/session,dpu/inventory,dpu/reports,dpu/room,upkeep/room}.rs.

use super::{
    memory::{Agent, Standing, Wish},
    side::AgentSide,
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Host, Place},
    names::{AttachmentId, HostId, Key, Vf},
    protection::Protection,
    system::System,
    wire::{DpuMessage, Hello, HostMessage, Inventory, Stream, VfCondition},
};

impl AgentSide<'_> {
    /// `dpu/reports.rs::hello`, as far as it lists what is under way.
    pub(super) fn connects(&self, system: &mut System, host: HostId) {
        let Some(agent) = &mut system.hosts[usize::from(host)].agent else { return };
        agent.untold.clear();
        let pending = match self.has(Protection::PendingInHello) {
            true => pending(host, agent),
            false => Vec::new(),
        };
        agent.standing = Standing::Connecting(pending);
    }
}

/// The keys of attaches under way.
pub(super) fn pending(host: HostId, agent: &Agent) -> Vec<Key> {
    let tasks = (0..).zip(&agent.tasks);
    let pending = tasks.filter(|(_, task)| task.is_some_and(|task| task.is_pending()));
    pending.map(|(container, _)| Key { host, container }).collect()
}

impl AgentSide<'_> {
    /// How the host's VFs are: `dpu/inventory.rs::physical_functions`.
    pub(super) fn conditions(&self, system: &System, host: HostId) -> Vec<(Vf, VfCondition)> {
        let of_host = &system.hosts[usize::from(host)];
        let is_told = |record: &&AgentRecord| {
            !record.is_returned && (!record.is_guess() || self.has(Protection::GuessInUse))
        };
        let own = system.vfs_of(host);
        own.map(|vf| match *system.function(vf) {
            _ if of_host.by_vf(vf).filter(is_told).is_some() => (vf, VfCondition::InUse),
            Function::CLEAN => (vf, VfCondition::Clean),
            _ => (vf, VfCondition::Missing),
        })
        .collect()
    }

    pub(super) fn inventory(&self, system: &System, host: HostId) -> Inventory {
        let as_of = system.hosts[usize::from(host)].clock;
        Inventory { as_of, conditions: self.conditions(system, host) }
    }

    pub(super) fn sends_inventory(&self, system: &mut System, host: HostId) {
        let inventory = self.inventory(system, host);
        let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
            return;
        };
        agent.sent_inventory = Some(inventory.conditions.clone());
        let stream = agent.session().and_then(|session| wire.stream_mut(session));
        if let Some(stream) = stream.filter(|stream| !stream.is_ended) {
            stream.up.push(HostMessage::Inventory(inventory));
        }
    }
    /// `dpu/reports.rs::hello`, as far as it lists what is recorded.
    pub(super) fn says_hello(&self, system: &mut System, host: HostId) {
        let inventory = self.inventory(system, host);
        let of_host = &system.hosts[usize::from(host)];
        let is_in_pod = |record: &AgentRecord| {
            system.function(record.attachment.vf).place == Place::Pod(record.netns)
        };
        let kept = of_host.records().filter(|record| record.phase == AgentPhase::Live);
        let live = kept.map(|record| (record.attachment.id, is_in_pod(record))).collect();
        let attaching = of_host.records().filter(|record| record.phase == AgentPhase::Attaching);
        let attaching: Vec<_> = attaching.map(|record| record.attachment.key).collect();
        let of_host = &mut system.hosts[usize::from(host)];
        let Some(agent) = &mut of_host.agent else { return };
        let Standing::Connecting(mut pending) =
            std::mem::replace(&mut agent.standing, Standing::Down)
        else {
            return;
        };
        if self.has(Protection::PendingInHello) {
            pending.extend(attaching);
            pending.sort_unstable();
            pending.dedup();
        }
        of_host.latest_session.0 += 1;
        let session = of_host.latest_session;
        agent.standing = Standing::Opening(session);
        agent.sent_inventory = Some(inventory.conditions.clone());
        let hello = Hello { boot_id: of_host.boot_id, inventory, live, pending };
        let up = vec![HostMessage::Hello(hello)];
        let stream = Stream { session, up, down: Vec::new(), agent_listens: true, is_ended: false };
        of_host.wire.streams.push(stream);
    }
}

impl AgentSide<'_> {
    pub(super) fn hears(&self, system: &mut System, host: HostId) {
        let Host { agent: Some(agent), wire, disk, .. } = &mut system.hosts[usize::from(host)]
        else {
            return;
        };
        let (Standing::Opening(session) | Standing::Up(session)) = agent.standing else { return };
        let Some(stream) = wire.stream_mut(session) else { return };
        match stream.down.remove(0) {
            DpuMessage::Welcome(kept) => {
                agent.standing = Standing::Up(session);
                if self.may_guess {
                    agent.unclaimed = kept;
                }
                let is_recorded = |id: &AttachmentId| {
                    disk.iter().any(|record| !record.is_forgotten && record.attachment.id == *id)
                };
                let untold = std::mem::take(&mut agent.untold).into_iter().filter(is_recorded);
                stream.up.extend(untold.map(HostMessage::Attached));
            }
            DpuMessage::Release(key, id) => {
                agent.waiting[usize::from(key.container)].push(Wish::Release(id));
            }
        }
    }
}

/// Calls on the connection go on: only the stream has ended.
pub(super) fn notices_end(system: &mut System, host: HostId) {
    let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
        return;
    };
    if let Standing::Opening(session) | Standing::Up(session) = agent.standing {
        wire.streams.retain(|stream| stream.session != session);
        agent.standing = Standing::Down;
    }
}
