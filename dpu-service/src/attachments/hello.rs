//! Processing of a host's hello, its inventories, and its reports that a pod has its VF.
//!
//! A report may be outdated when it is processed: a newer session may have begun, a Detach may have overtaken it, or an
//! Attach of this session may be about to move a VF that the inventory calls clean. So its consequences run under the
//! key's lock after checking the session again, and an inventory counts for a VF only if it is newer than the VF's
//! latest Detach.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::future::join_all;
use offload_proto::{Failure, Reason};
use tokio::task::JoinHandle;

use super::{
    detach::{of_host, release_attachment, send_release},
    engine::Engine,
    hosts::Hosts,
    registry::{Conditions, Entry, InventoryResult, VfReturn},
    stale,
};
use crate::{
    events::EventKind,
    host::{Hello, Inventory, LiveAttachment, SessionId},
    kill_points::KillPoint,
    sessions::{HostCommand, Session},
};
use model::{AttachmentId, HostName, Record};

/// Consequence of a hello for one of the host's attachments.
enum Verdict {
    Attached,
    /// The pod lacks the VF: send `Reattach`.
    Reattach,
    /// The attachment is being released and the host may not know: send `Release`.
    SendRelease,
    /// The host does not know the attachment and its VF has not returned. A pod may use it, under an agent that lost
    /// its records, so the attachment stays until the VF returns.
    Keep,
    Release {
        vf: VfReturn,
        reason: &'static str,
    },
    /// A later report decides.
    Wait,
}

impl Hosts<'_> {
    /// Opens a session for the host. Returns after all consequences of the hello were carried out.
    ///
    /// # Errors
    /// The host is not configured, names a PF of another host, or has sent a newer hello.
    pub async fn hello(self, host: HostName, hello: Hello) -> Result<Session, Failure> {
        let process = async move |engine: Arc<Engine>| process_hello(&engine, &host, hello).await;
        self.0.to_the_end(process).await
    }

    /// Processes an inventory. The pools are updated before this returns; freeing attachments runs in the returned
    /// task.
    ///
    /// # Errors
    /// The inventory names a PF of another host, or the session is over.
    pub fn inventory(
        self,
        host: &HostName,
        session: SessionId,
        inventory: &Inventory,
    ) -> Result<JoinHandle<()>, Failure> {
        let returned = note_inventory(self.0, host, session, inventory)?;
        self.0.sessions.note_vfs_changed(host);
        let engine = Arc::clone(self.0);
        Ok(self.0.spawn(async move { free_returned(&engine, session, returned).await }))
    }

    /// Processes the host's report that the pod has the VF.
    pub fn attached(self, host: &HostName, session: SessionId, id: AttachmentId) {
        note_attached(self.0, host, session, id);
    }
}

async fn process_hello(engine: &Engine, host: &HostName, hello: Hello) -> Result<Session, Failure> {
    check_owner(engine, host, &hello.inventory)?;
    // Calls of earlier sessions are refused from here on, so the attachments they made are complete. If the session
    // were opened later, an Attach of the old session could reserve an attachment that this hello does not judge.
    let session = engine.sessions.open(host, &hello)?;
    // Before the inventory: a VF that the host took by an old offer must not stay offered.
    engine.registry().end_offers(host);
    note_session(engine, host, &hello, &session);
    // Before the inventory: a Detach with a time that the clock cannot show yet outdates nothing.
    let latest = engine.sessions.latest_time(host);
    engine.registry().note_host_clock(host, latest);

    KillPoint::HelloOpened.pass();
    let conditions = take_inventory(engine, host, session.id, &hello.inventory);
    // The host may have been removed from the configuration since `check_owner`.
    let conditions = conditions.inspect_err(|_| {
        engine.sessions.close(host, session.id, None);
    })?;
    KillPoint::HelloProcessed.pass();
    quarantine_unaccounted(engine, &hello.live, &conditions);
    send_unrecorded(engine, host, &hello.live);
    let verdicts = judge(engine, host, &hello, &conditions);
    // Before waiting for any key: inventories that arrive in between depend on it.
    note_unclaimed(engine, &verdicts);
    // Concurrently: the commits share transactions, and a locked key delays no other.
    let carried_out = verdicts.into_iter().map(|(record, verdict)| {
        carry_out(engine, session.id, record, verdict, hello.live.as_slice())
    });
    join_all(carried_out).await;
    KillPoint::HelloSettled.pass();
    // A host that connects during a drain has missed the command.
    let draining = engine.registry().draining().map(ToOwned::to_owned);
    if let Some(reason) = draining {
        engine.send_command(host, HostCommand::Draining { reason });
    }
    send_wanted_vfs(engine, host);
    engine.reconciler.thorough.notify_one();
    Ok(session)
}

fn note_session(engine: &Engine, host: &HostName, hello: &Hello, session: &Session) {
    if session.is_renewed {
        let message = "it renewed its connection and continues its session";
        return engine.events.record(EventKind::HostRenewed, host, message);
    }
    let mut message = format!("agent {}, boot {}", hello.agent_version, hello.boot_id);
    if session.has_replaced {
        message += ", in place of an open session: if this repeats, another agent uses this host's certificate";
    }
    engine.events.record(EventKind::HostConnected, host, message);
}

/// Sends all hosts the configured numbers of VFs.
pub(super) fn send_all_wanted_vfs(engine: &Engine) {
    let hosts: Vec<_> = engine.registry().hosts().names().cloned().collect();
    hosts.iter().for_each(|host| send_wanted_vfs(engine, host));
}

/// Sends a host the configured numbers of VFs. A host that already has that many does nothing.
fn send_wanted_vfs(engine: &Engine, host: &HostName) {
    let wanted = engine.registry().hosts().wanted_vfs(host);
    for (pf, count) in wanted {
        engine.send_command(host, HostCommand::WantedVfs { pf, count });
    }
}

/// Applies an inventory and returns the attachments whose VFs have returned. They are marked under the same lock of the
/// registry that finds them, so that the next inventory does not find them again. Refuses an earlier session.
fn note_inventory(
    engine: &Engine,
    host: &HostName,
    session: SessionId,
    inventory: &Inventory,
) -> Result<Vec<(Arc<Record>, VfReturn)>, Failure> {
    check_owner(engine, host, inventory)?;
    let conditions = take_inventory(engine, host, session, inventory)?;
    let boot_id = engine.sessions.boot_id(host, session).ok_or_else(|| stale(session))?;
    let mut registry = engine.registry();
    // A returned attachment already has a flow, or waits for the journal and the reconciler.
    let may_return = |entry: &&Entry| {
        (!entry.is_held() || entry.is_unclaimed())
            && !entry.is_returned()
            && !entry.is_under_way(Some(session))
    };
    let back = registry.entries().of_host(host).filter(may_return).filter_map(|entry| {
        let vf = vf_return(entry.record(), &boot_id, &conditions);
        (vf != VfReturn::Awaited).then(|| (Arc::clone(entry.record()), vf))
    });
    let back: Vec<_> = back.collect();
    back.iter().for_each(|(record, vf)| registry.release(record.id, *vf));
    Ok(back)
}

/// Frees attachments whose VFs have returned. The reconciler retries if the journal refuses.
async fn free_returned(
    engine: &Engine,
    session: SessionId,
    returned: Vec<(Arc<Record>, VfReturn)>,
) {
    let freed = returned.into_iter().map(|(record, vf)| {
        let reason =
            if vf == VfReturn::Gone { "its VF no longer exists" } else { "its VF is back" };
        let verdict = Verdict::Release { vf, reason };
        carry_out(engine, session, record, verdict, &[])
    });
    join_all(freed).await;
    KillPoint::InventorySettled.pass();
}

fn note_attached(engine: &Engine, host: &HostName, session: SessionId, id: AttachmentId) {
    // A newer hello reports the current state.
    if !engine.sessions.is_current(host, session) {
        return;
    }
    let mut registry = engine.registry();
    let record = registry.entries().get(id).map(|entry| Arc::clone(entry.record()));
    let Some(record) = record.filter(|record| record.key.host == *host) else { return };
    let is_news = registry.note_attached(id);
    drop(registry);
    if is_news {
        engine.refusals.note_done_on_host(host);
        engine.events.record_attached(&record);
    }
}

fn check_owner(engine: &Engine, host: &HostName, inventory: &Inventory) -> Result<(), Failure> {
    let registry = engine.registry();
    let hosts = registry.hosts();
    hosts.number(host)?;
    for pf in &inventory.pfs {
        match hosts.owner(pf.id) {
            Some(owner) if owner == host => {}
            Some(_) => {
                return Err(Failure::new(
                    Reason::NotAuthorised,
                    format!("host {host} claims PF {}, which belongs to another host", pf.id),
                ));
            }
            None => {
                tracing::warn!(%host, pf = %pf.id, "host reports a PF that is configured for no host; ignoring it");
            }
        }
    }
    Ok(())
}

/// Updates the pools with an inventory, unless a newer session has begun. Both happen under one lock of the registry.
fn take_inventory(
    engine: &Engine,
    host: &HostName,
    session: SessionId,
    inventory: &Inventory,
) -> Result<Conditions, Failure> {
    let mut registry = engine.registry();
    let boot_id = engine.sessions.boot_id(host, session).ok_or_else(|| stale(session))?;
    let InventoryResult { conditions, cleared } =
        registry.take_inventory(host, &boot_id, inventory)?;
    drop(registry);
    for vf in cleared {
        engine.events.record(EventKind::VfCleared, vf, "the host has it back, clean");
    }
    Ok(conditions)
}

fn quarantine_unaccounted(engine: &Engine, live: &[LiveAttachment], conditions: &Conditions) {
    let (unaccounted, reason) = engine.registry().quarantine_unaccounted(live, conditions);
    for vf in unaccounted {
        engine.events.record(EventKind::VfQuarantined, vf, reason.as_str());
    }
}

/// Sends the host the ids of its attachments that have no record here, so that it can report them.
fn send_unrecorded(engine: &Engine, host: &HostName, live: &[LiveAttachment]) {
    let unrecorded = engine.registry().unrecorded(live);
    if !unrecorded.is_empty() {
        engine.send_command(host, HostCommand::Unrecorded(unrecorded));
    }
}

fn judge(
    engine: &Engine,
    host: &HostName,
    hello: &Hello,
    conditions: &Conditions,
) -> Vec<(Arc<Record>, Verdict)> {
    let live: HashMap<_, _> = hello.live.iter().map(|live| (live.id, live.in_pod)).collect();
    let pending: HashSet<_> = hello.pending.iter().collect();
    let registry = engine.registry();
    let judge = |entry: &Entry| {
        let record = entry.record();
        let reported = Reported {
            is_of_earlier_boot: record.boot_id != hello.boot_id,
            in_pod: live.get(&record.id).copied(),
            is_pending: pending.contains(&record.key),
            vf: vf_return(record, &hello.boot_id, conditions),
        };
        let verdict = if entry.is_held() { reported.of_held() } else { reported.of_releasing() };
        (Arc::clone(record), verdict)
    };
    registry.entries().of_host(host).map(judge).collect()
}

/// What a hello reports of one attachment.
struct Reported {
    is_of_earlier_boot: bool,
    /// Whether the pod has its VF. `None`: the host has no record of the attachment.
    in_pod: Option<bool>,
    /// Whether the host has a call of the key under way.
    is_pending: bool,
    vf: VfReturn,
}

impl Reported {
    fn of_held(&self) -> Verdict {
        match self.in_pod {
            _ if self.is_of_earlier_boot => self.release("its host has rebooted"),
            Some(true) => Verdict::Attached,
            Some(false) => Verdict::Reattach,
            // The call under way may be the Attach that made it: the host learns the id only from the answer.
            None if self.is_pending => Verdict::Wait,
            None if self.vf == VfReturn::Awaited => Verdict::Keep,
            None => self.release("its host no longer has it"),
        }
    }

    fn of_releasing(&self) -> Verdict {
        if self.is_of_earlier_boot {
            return self.release("its host has rebooted");
        }
        // A host that is about to move the VF must learn of the release, too.
        match self.in_pod.is_some() || self.is_pending {
            true => Verdict::SendRelease,
            false if self.vf == VfReturn::Awaited => Verdict::Wait,
            false => self.release("its VF is back"),
        }
    }

    const fn release(&self, reason: &'static str) -> Verdict {
        Verdict::Release { vf: self.vf, reason }
    }
}

/// Stores which attachments are unclaimed and records an event for each new one.
fn note_unclaimed(engine: &Engine, verdicts: &[(Arc<Record>, Verdict)]) {
    let mut registry = engine.registry();
    let mut is_news = |(record, verdict): &&(Arc<Record>, Verdict)| {
        let is_unclaimed = matches!(verdict, Verdict::Keep);
        registry.change(record.id).is_some_and(|entry| entry.set_unclaimed(is_unclaimed))
    };
    let news: Vec<_> = verdicts.iter().filter(&mut is_news).collect();
    drop(registry);
    for (record, _) in news {
        let (id, vf) = (record.id, record.vf);
        let message =
            format!("the host does not know {}, and {vf} is not back: kept", record.holder());
        engine.events.record(EventKind::AttachmentUnclaimed, id, message);
    }
}

async fn carry_out(
    engine: &Engine,
    session: SessionId,
    record: Arc<Record>,
    verdict: Verdict,
    live: &[LiveAttachment],
) {
    match verdict {
        Verdict::Wait | Verdict::Keep => {}
        Verdict::Attached => note_attached(engine, &record.key.host, session, record.id),
        Verdict::Reattach => {
            // `Err`: the attachment has ended since it was judged.
            if let Ok(view) = engine.view(&record) {
                engine.send_command(&record.key.host, HostCommand::Reattach(view));
            }
        }
        Verdict::SendRelease => {
            send_release(engine, &record, "it was released while the host was away".into());
        }
        Verdict::Release { vf, reason } => {
            let is_live = live.iter().any(|live| live.id == record.id);
            end(engine, session, &record, vf, reason, is_live).await;
        }
    }
}

/// Releases an attachment that is over by the host's report, if the report is still valid once the key is locked. With
/// `is_live`, also sends the host a `Release`.
async fn end(
    engine: &Engine,
    session: SessionId,
    record: &Arc<Record>,
    vf: VfReturn,
    reason: &str,
    is_live: bool,
) {
    let _key = engine.keys.lock(&record.key).await;
    // While waiting for the key, a newer hello may have begun, or another flow may have ended the attachment.
    if !engine.sessions.is_current(&record.key.host, session)
        || engine.registry().entries().get(record.id).is_none()
    {
        return;
    }
    if let Err(failure) = release_attachment(engine, record, vf, &of_host(record, reason)).await {
        tracing::error!(attachment = %record.id, error = %failure, "cannot release an attachment yet; retrying");
    }
    if is_live {
        send_release(engine, record, reason.into());
    }
}

/// Where an attachment's VF is, by an inventory of that boot. An unlisted VF is gone if the host has rebooted since the
/// attach, because no pod can have it. In the same boot a pod may.
fn vf_return(record: &Record, boot_id: &str, conditions: &Conditions) -> VfReturn {
    if conditions.is_clean(record.vf) {
        VfReturn::Clean
    } else if record.boot_id != boot_id && conditions.is_gone(record.vf) {
        VfReturn::Gone
    } else {
        VfReturn::Awaited
    }
}
