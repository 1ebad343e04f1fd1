//! The agent's messages to the DPU, and the DPU's messages to it. In the program:
//! host-shim/src/agent/{dpu/session,dpu/inventory,dpu/reports,dpu/mod,upkeep/room}.rs.

use super::{
    memory::{Agent, LockRequest, Standing},
    side::AgentSide,
};
use crate::{
    host::{AgentPhase, AgentRecord, Function, Host, Place},
    names::{AttachmentId, HostId, Key, Offer, Vf},
    protection::Protection,
    system::System,
    wire::{DpuMessage, Hello, HostMessage, Inventory, Stream, VfCondition},
};

impl AgentSide<'_> {
    /// `dpu/reports.rs::hello`, up to the list of attaches in progress.
    pub(super) fn connects(&self, system: &mut System, host: HostId) {
        let Some(agent) = &mut system.hosts[usize::from(host)].agent else { return };
        agent.unreported.clear();
        let pending = match self.has(Protection::PendingInHello) {
            true => pending(host, agent),
            false => Vec::new(),
        };
        agent.standing = Standing::Connecting(pending);
    }
}

/// The keys of attaches in progress.
pub(super) fn pending(host: HostId, agent: &Agent) -> Vec<Key> {
    let tasks = (0..).zip(&agent.tasks);
    let pending = tasks.filter(|(container, task)| {
        let has_hold = agent.vf_holds[usize::from(*container)].is_some();
        task.is_some_and(|task| task.is_pending(has_hold))
    });
    pending.map(|(container, _)| Key { host, container }).collect()
}

impl AgentSide<'_> {
    /// `dpu/inventory.rs::physical_functions`: the state of the host's VFs.
    fn conditions(&self, system: &System, host: HostId) -> Vec<(Vf, VfCondition)> {
        let of_host = &system.hosts[usize::from(host)];
        let is_on_hold = |vf| {
            let is_on_hold = of_host.agent.as_ref().is_some_and(|agent| agent.is_held_by_add(vf));
            is_on_hold && self.has(Protection::HeldInUse)
        };
        let condition = |vf| match (of_host.by_vf(vf), *system.function(vf)) {
            (Some(record), _) if !record.is_returned => VfCondition::InUse,
            (None, _) if is_on_hold(vf) => VfCondition::InUse,
            (_, Function::CLEAN) => VfCondition::Clean,
            _ => VfCondition::Missing,
        };
        system.vfs_of(host).map(|vf| (vf, condition(vf))).collect()
    }

    /// `dpu/inventory.rs::in_session`. Leaves out VFs whose offers were taken in this session, since that makes no
    /// difference.
    fn news(&self, system: &System, host: HostId) -> Vec<(Vf, VfCondition)> {
        let of_host = &system.hosts[usize::from(host)];
        let is_taken = |vf: Vf| {
            let is_over = of_host.by_vf(vf).is_some_and(|record| record.is_returned);
            let agent = of_host.agent.as_ref().filter(|_| !is_over);
            let mut vf_holds = agent.into_iter().flat_map(|agent| agent.vf_holds.iter().flatten());
            vf_holds.any(|hold| hold.vf == vf && hold.number > 0)
        };
        self.conditions(system, host).into_iter().filter(|(vf, _)| !is_taken(*vf)).collect()
    }

    /// Whether the inventory differs from the latest one sent, or has to be sent again.
    pub(super) fn has_inventory(&self, system: &System, host: HostId, agent: &Agent) -> bool {
        let is_reported =
            |sent: &Vec<_>| self.news(system, host).iter().all(|it| sent.contains(it));
        !agent.sent_inventory.as_ref().is_some_and(is_reported)
    }

    pub(super) fn sends_inventory(&self, system: &mut System, host: HostId) {
        let as_of = system.hosts[usize::from(host)].clock;
        let conditions = self.news(system, host);
        let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
            return;
        };
        let mut sent = agent.sent_inventory.take().unwrap_or_default();
        sent.retain(|(vf, _)| conditions.iter().all(|(reported, _)| reported != vf));
        sent.extend(&conditions);
        sent.sort_unstable();
        agent.sent_inventory = Some(sent);
        let stream = agent.session().and_then(|session| wire.stream_mut(session));
        if let Some(stream) = stream.filter(|stream| !stream.is_ended) {
            stream.up.push(HostMessage::Inventory(Inventory { as_of, conditions }));
        }
    }

    /// `dpu/reports.rs::hello`, from the records on.
    pub(super) fn says_hello(&self, system: &mut System, host: HostId) {
        let as_of = system.hosts[usize::from(host)].clock;
        let inventory = Inventory { as_of, conditions: self.conditions(system, host) };
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

pub(super) fn hears(system: &mut System, host: HostId) {
    let Host { agent: Some(agent), wire, disk, .. } = &mut system.hosts[usize::from(host)] else {
        return;
    };
    let (Standing::Opening(session) | Standing::Up(session)) = agent.standing else { return };
    let Some(stream) = wire.stream_mut(session) else { return };
    match stream.down.remove(0) {
        DpuMessage::HelloReply => {
            agent.standing = Standing::Up(session);
            agent.offers.clear();
            let is_recorded = |id: &AttachmentId| {
                disk.iter().any(|record| !record.is_forgotten && record.attachment.id == *id)
            };
            let unreported = std::mem::take(&mut agent.unreported).into_iter().filter(is_recorded);
            stream.up.extend(unreported.map(HostMessage::Attached));
        }
        DpuMessage::Offers(Offer { vf, number }) => {
            agent.offers.insert(vf, number);
        }
        DpuMessage::Release(key, id) => {
            agent.waiting[usize::from(key.container)].push(LockRequest::Release(id));
        }
    }
}

impl AgentSide<'_> {
    /// Only the stream has ended: calls on the connection continue.
    pub(super) fn notices_end(&self, system: &mut System, host: HostId) {
        let Host { agent: Some(agent), wire, .. } = &mut system.hosts[usize::from(host)] else {
            return;
        };
        if let Standing::Opening(session) | Standing::Up(session) = agent.standing {
            wire.streams.retain(|stream| stream.session != session);
            self.goes_down(agent);
        }
    }

    /// Ends the session and its offers: `dpu/established.rs::close_offers`.
    pub fn goes_down(&self, agent: &mut Agent) {
        agent.standing = Standing::Down;
        if self.has(Protection::ClosedBeforeHello) {
            agent.offers.clear();
        }
        agent.vf_holds.iter_mut().flatten().for_each(|offer| offer.number = 0);
    }
}
