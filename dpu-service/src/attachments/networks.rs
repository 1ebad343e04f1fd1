//! Networks: applied and deleted through the API, or loaded from the configuration file. Running attachments keep the
//! snapshot of the network that they were made with.
//!
//! Locks: changes are serialised by a lock of their own. Each is checked under the registry's lock, recorded, and put
//! into force under the registry's lock again. Attaches run in between, so a new lease may conflict with a checked
//! change; then the journal gets the previous network back. A network is closed to attaches before it is deleted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ipnetwork::IpNetwork;
use offload_proto::{Failure, Reason, v1};
use serde_json::json;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    engine::{Engine, now},
    gateways::look_after_gateways,
    hello::send_all_wanted_vfs,
    refuse_first,
    registry::PooledNetwork,
    requirements::check_requirements,
    settings::Configuration,
    subnets::SubnetChange,
    views::{Applied, NetworkView},
};
use crate::{
    audit::{AuditAction, AuditEntry},
    author::{Author, Cause},
    events::EventKind,
    records::Changes,
    sessions::HostCommand,
};
use model::{HostName, HostRights, Network, ResourceVersion};

/// How long renaming a network waits for attaches under way: each needs one write of the journal.
const RECORDS_WAIT: Duration = Duration::from_secs(2);
const RECORDS_POLL: Duration = Duration::from_millis(5);

/// The networks' part of the engine: see [`Engine::networks`].
#[derive(Clone, Copy, Debug)]
pub struct Networks<'a>(pub(super) &'a Arc<Engine>, Option<&'a Cause>);

/// What a host's agent knows of the networks that the host may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownNetworks {
    pub pools: HashMap<String, String>,
    /// Prefixes of names for interfaces that the pod does not name, by network.
    pub interface_prefixes: HashMap<String, String>,
    /// The network of an attach that names none, if the host may use it.
    pub default: Option<String>,
}

impl Engine {
    pub const fn networks(self: &Arc<Self>) -> Networks<'_> {
        Networks(self, None)
    }

    /// Puts a changed configuration file into force: all of it or, if any part is invalid, nothing.
    ///
    /// # Errors
    /// What is invalid.
    pub async fn load_configuration(
        self: &Arc<Self>,
        configuration: Configuration,
    ) -> Result<(), Failure> {
        self.to_the_end(async move |engine: Arc<Self>| load(&engine, configuration).await).await
    }
}

impl<'a> Networks<'a> {
    /// Sets the author and reason of changes. Without it the author is the service.
    #[must_use]
    pub const fn by(self, cause: &'a Cause) -> Self {
        Self(self.0, Some(cause))
    }

    fn cause(self) -> Cause {
        self.1.cloned().unwrap_or_default()
    }

    pub fn is_empty(self) -> bool {
        self.0.registry().networks().len() == 0
    }

    pub fn list(self) -> Vec<NetworkView> {
        let registry = self.0.registry();
        let users = registry.entries().users();
        let used = |name: &str| users.get(name).copied().unwrap_or_default();
        let networks = registry.networks().iter();
        let views = networks.map(|entry| entry.view(used(&entry.network().name), now()));
        views.map(|view| with_gateway(self.0, view)).collect()
    }

    /// The subnets of the named network. An empty name means the default network or, if there is none, all networks
    /// that the host may use.
    ///
    /// # Errors
    /// [`Reason::NetworkUnknown`], or the host may not use the network.
    pub fn prefixes_of(self, host: &HostName, name: &str) -> Result<Vec<IpNetwork>, Failure> {
        let registry = self.0.registry();
        let (networks, rights) = (registry.networks(), registry.hosts().rights(host));
        let name = (!name.is_empty()).then_some(name);
        rights.check_name(host, name)?;
        let prefixes = |network: &Network| -> Vec<IpNetwork> {
            network.subnets.iter().map(|subnet| subnet.cidr).collect()
        };
        match networks.find(name) {
            Ok(found) => {
                rights.check_found(host, name, found.network())?;
                Ok(prefixes(found.network()))
            }
            Err(unknown) if name.is_some() => Err(unknown),
            Err(_) if networks.len() == 0 => {
                Err(Failure::new(Reason::NetworkUnknown, "the DPU has no network"))
            }
            Err(_) => {
                let all = networks.iter().map(PooledNetwork::network);
                let allowed = all.filter(|network| rights.allows(&network.name));
                Ok(allowed.flat_map(|network| prefixes(network)).collect())
            }
        }
    }

    pub fn shown_to(self, host: &HostName) -> ShownNetworks {
        let registry = self.0.registry();
        let rights = registry.hosts().rights(host);
        let all = registry.networks().iter().map(PooledNetwork::network);
        let mut shown = ShownNetworks::default();
        for network in all.filter(|network| rights.allows(&network.name)) {
            shown.pools.insert(network.name.clone(), network.pool.clone());
            if !network.interface_prefix.is_empty() {
                let prefix = network.interface_prefix.clone();
                shown.interface_prefixes.insert(network.name.clone(), prefix);
            }
        }
        let default = registry.networks().default_name().filter(|name| rights.allows(name));
        shown.default = default.map(str::to_owned);
        shown
    }

    pub(crate) async fn look_after_gateways(self, is_thorough: bool) {
        let look_after = async move |engine: Arc<Engine>| {
            look_after_gateways(&engine, is_thorough).await;
            Ok(())
        };
        // It fails only by a panic, which is logged where it happens.
        let _ = self.0.to_the_end(look_after).await;
    }

    /// Creates or replaces a network; with `dry_run`, only returns the outcome. The caller validates the network's
    /// form. With `read`, replaces only that version of the network. Running attachments keep their settings.
    ///
    /// # Errors
    /// The network is invalid, another version is in force, a lease conflicts, or the journal cannot be written.
    pub async fn apply(
        self,
        network: Network,
        read: Option<ResourceVersion>,
        dry_run: bool,
    ) -> Result<(NetworkView, Applied), Failure> {
        let cause = self.cause();
        let apply =
            async move |engine: Arc<Engine>| apply(&engine, network, read, dry_run, &cause).await;
        self.0.to_the_end(apply).await
    }

    /// Renames a network. Its attachments keep their addresses and belong to the renamed network. Attaches to it are
    /// refused until the rename is durable.
    ///
    /// # Errors
    /// The network is unknown or the configuration file's; the new name is taken; other networks or hosts' rights name
    /// the network; attaches to it do not end in time; or the journal cannot be written.
    pub async fn rename(self, name: String, new_name: String) -> Result<NetworkView, Failure> {
        let cause = self.cause();
        let rename =
            async move |engine: Arc<Engine>| rename(&engine, &name, &new_name, &cause).await;
        self.0.to_the_end(rename).await
    }

    /// Changes the subnets of an existing network: all requested changes, or none. Running attachments keep their
    /// addresses.
    ///
    /// # Errors
    /// The network is unknown or the configuration file's; a subnet is invalid; a lease conflicts; or the journal
    /// cannot be written.
    pub async fn change_subnets(
        self,
        name: String,
        change: SubnetChange,
    ) -> Result<(NetworkView, Applied), Failure> {
        let cause = self.cause();
        let change =
            async move |engine: Arc<Engine>| change_subnets(&engine, &name, change, &cause).await;
        self.0.to_the_end(change).await
    }

    /// Deletes a network. With `force` even while attachments use it; they keep their snapshot.
    ///
    /// # Errors
    /// The network is unknown, the configuration file's, or in use, or the journal cannot be written.
    pub async fn delete(self, name: String, force: bool) -> Result<(), Failure> {
        let cause = self.cause();
        let delete = async move |engine: Arc<Engine>| delete(&engine, name, force, &cause).await;
        self.0.to_the_end(delete).await
    }
}

async fn apply(
    engine: &Engine,
    network: Network,
    read: Option<ResourceVersion>,
    dry_run: bool,
    cause: &Cause,
) -> Result<(NetworkView, Applied), Failure> {
    let _changes = engine.network_changes.lock().await;
    if let Some(read) = read {
        engine.registry().change_networks().check_version(&network, &read)?;
    }
    apply_alone(engine, network, dry_run, (AuditAction::ApplyNetwork, cause)).await
}

async fn change_subnets(
    engine: &Engine,
    name: &str,
    change: SubnetChange,
    cause: &Cause,
) -> Result<(NetworkView, Applied), Failure> {
    let _changes = engine.network_changes.lock().await;
    let network = engine.registry().change_networks().changeable(name)?;
    let network = change.made_of(network)?;
    apply_alone(engine, network, false, (AuditAction::ChangeSubnets, cause)).await
}

/// The caller holds the lock of networks.
async fn apply_alone(
    engine: &Engine,
    network: Network,
    dry_run: bool,
    (action, cause): (AuditAction, &Cause),
) -> Result<(NetworkView, Applied), Failure> {
    refuse_first(engine.gateways.problem_of(&network))?;
    refuse_first(too_large_for_uplinks(engine, &network))?;
    let outcome = engine.registry().change_networks().check(&network)?;
    check_requirements(engine, &network)?;
    if dry_run {
        return Ok((NetworkView::unused(network), outcome));
    }
    let name = network.name.clone();
    if outcome != Applied::Unchanged {
        // Recorded before it is put into force: a crash must not lose a network with attachments.
        let entry = AuditEntry::new(cause, action, format!("network/{name}")).after(&network);
        let entry = with_former(engine, &name, entry);
        let id = entry.id;
        let changes = Changes::default().put_network(&network).audited(Some(entry));
        engine.records.commit(changes).await?;
        // Then resume: the change may have resolved the conflict of a suspended network.
        install(engine, network, id)?;
        resume(engine);
        let message = match outcome {
            Applied::Created => "created",
            _ => "changed; running attachments keep what they have",
        };
        engine.events.record_by(&cause.author, EventKind::NetworkApplied, &name, message);
        report_network(engine, &name, false);
        look_after_gateways(engine, false).await;
    }
    Ok((view(engine, &name)?, outcome))
}

/// Adds the current version of the API's network to the audit entry, whether that version is in force or suspended.
fn with_former(engine: &Engine, name: &str, entry: AuditEntry) -> AuditEntry {
    let registry = engine.registry();
    let networks = registry.networks();
    let in_force = || networks.get(name).map(|former| &**former.network());
    match networks.find_suspended(name).or_else(in_force) {
        Some(former) => entry.before(former),
        None => entry,
    }
}

async fn rename(
    engine: &Engine,
    name: &str,
    new_name: &str,
    cause: &Cause,
) -> Result<NetworkView, Failure> {
    let _changes = engine.network_changes.lock().await;
    let renamed = engine.registry().change_networks().begin_renaming(name, new_name)?;
    if let Err(failure) = rename_closed(engine, name, renamed, cause).await {
        engine.registry().change_networks().reopen(name);
        return Err(failure);
    }
    let (author, events) = (&cause.author, &engine.events);
    events.record_by(author, EventKind::NetworkDeleted, name, format!("renamed to {new_name}"));
    events.record_by(author, EventKind::NetworkApplied, new_name, format!("renamed from {name}"));
    report_network(engine, name, true);
    report_network(engine, new_name, false);
    look_after_gateways(engine, false).await;
    // Objects that ports share on a card have the network's name.
    engine.reconciler.thorough.notify_one();
    view(engine, new_name)
}

/// Renames a network that is closed to new attachments.
async fn rename_closed(
    engine: &Engine,
    name: &str,
    renamed: Network,
    cause: &Cause,
) -> Result<(), Failure> {
    refuse_first(engine.gateways.problem_of(&renamed))?;
    // An attach under way writes its record with the old name: it must be in the journal before it can be rewritten.
    wait_for_records(engine, name).await?;
    let entry = AuditEntry::new(cause, AuditAction::RenameNetwork, format!("network/{name}"))
        .before(&json!({ "name": name }))
        .after(&json!({ "name": renamed.name }));
    let committed = {
        // The changes are enqueued while the registry is locked: a release that begins afterwards is also enqueued
        // later, so this commit cannot write back the record of an ended attachment.
        let mut registry = engine.registry();
        let records = registry.change_networks().records_renamed(name, &renamed.name);
        let changes = Changes::default().delete_network(name).put_network(&renamed);
        let changes = changes.audited(Some(entry));
        let changes = records.iter().fold(changes, Changes::put_attachment);
        engine.records.commit(changes)
    };
    committed.await?;
    engine.registry().change_networks().finish_renaming(name, renamed);
    Ok(())
}

/// Waits until all attachments of a closed network are recorded.
async fn wait_for_records(engine: &Engine, name: &str) -> Result<(), Failure> {
    let recorded = async {
        while engine.registry().entries().has_unrecorded(name) {
            sleep(RECORDS_POLL).await;
        }
    };
    timeout(RECORDS_WAIT, recorded).await.map_err(|_| {
        let message = format!("network {name} can't be renamed now: pods are being attached to it");
        Failure::new(Reason::Overloaded, message)
    })
}

async fn delete(engine: &Engine, name: String, force: bool, cause: &Cause) -> Result<(), Failure> {
    let _changes = engine.network_changes.lock().await;
    if engine.registry().networks().find_suspended(&name).is_some() {
        return delete_suspended(engine, name, cause).await;
    }
    // Closed before the commit: otherwise an attach could join the network while the journal deletes it.
    engine.registry().change_networks().close(&name, force)?;
    let deleted = engine.records.commit(deletion(engine, &name, cause)).await;
    match &deleted {
        Ok(()) => engine.registry().change_networks().remove(&name),
        Err(_) => engine.registry().change_networks().reopen(&name),
    }
    deleted?;
    engine.events.record_by(&cause.author, EventKind::NetworkDeleted, &name, "deleted");
    report_network(engine, &name, true);
    // A suspended network may have conflicted only with the deleted one.
    resume(engine);
    look_after_gateways(engine, false).await;
    Ok(())
}

fn deletion(engine: &Engine, name: &str, cause: &Cause) -> Changes {
    let entry = AuditEntry::new(cause, AuditAction::DeleteNetwork, format!("network/{name}"));
    let entry = with_former(engine, name, entry);
    Changes::default().delete_network(name).audited(Some(entry))
}

/// A sentence if the network's MTU exceeds what the uplinks carry.
pub(super) fn too_large_for_uplinks(engine: &Engine, network: &Network) -> Option<String> {
    let carried = engine
        .programmer()
        .uplink_mtu(network.bridge.as_deref())
        .filter(|carried| *carried < network.mtu)?;
    Some(format!(
        "network {} has an mtu of {}, and an uplink of this DPU carries {carried} at most: give the \
         network that, or the uplink more by `ip link set UPLINK mtu {}`",
        network.name, network.mtu, network.mtu
    ))
}

/// Deletes a suspended network of the API. A network of the same name in the configuration file stays.
async fn delete_suspended(engine: &Engine, name: String, cause: &Cause) -> Result<(), Failure> {
    engine.records.commit(deletion(engine, &name, cause)).await?;
    engine.registry().change_networks().forget_suspended(&name);
    let message = "deleted; it was not in force";
    engine.events.record_by(&cause.author, EventKind::NetworkDeleted, name, message);
    Ok(())
}

async fn load(engine: &Engine, configuration: Configuration) -> Result<(), Failure> {
    let _changes = engine.network_changes.lock().await;
    // Read before the load: afterwards the removed hosts, whose sessions must end, are unknown.
    let before = rights_of_all(engine);
    // Without a commit: the file itself is the durable copy of its networks.
    let changed = engine.registry().change_networks().load(configuration)?;
    end_removed(engine, before.keys());
    send_all_wanted_vfs(engine);
    let deleted = changed.iter().filter(|network| network.deleted);
    let deleted: Vec<_> = deleted.map(|network| network.name.clone()).collect();
    for network in changed {
        let (kind, message) = match network.deleted {
            true => (EventKind::NetworkDeleted, "no longer in the configuration file"),
            false => (EventKind::NetworkApplied, "read from the configuration file"),
        };
        engine.events.record_by(&Author::ConfigurationFile, kind, &network.name, message);
        report_network(engine, &network.name, network.deleted);
    }
    report_rights(engine, &before, deleted);
    resume(engine);
    look_after_gateways(engine, false).await;
    Ok(())
}

fn rights_of_all(engine: &Engine) -> HashMap<HostName, HostRights> {
    let registry = engine.registry();
    let hosts = registry.hosts();
    hosts.names().map(|host| (host.clone(), hosts.rights(host))).collect()
}

/// Ends the sessions of hosts that are no longer configured. Their attachments stay.
fn end_removed<'a>(engine: &Engine, before: impl Iterator<Item = &'a HostName>) {
    for host in before {
        let registry = engine.registry();
        if registry.hosts().serves(host) {
            continue;
        }
        let attachments = registry.entries().of_host(host).count();
        drop(registry);
        engine.sessions.end(host);
        let message =
            format!("it is no longer in the configuration; {attachments} attachments stay");
        let author = &Author::ConfigurationFile;
        engine.events.record_by(author, EventKind::HostRemoved, host, message);
    }
}

/// Reports to each host the networks it gains or loses by its rights. That includes networks deleted together with the
/// right: no other report would reach the host.
fn report_rights(engine: &Engine, before: &HashMap<HostName, HostRights>, deleted: Vec<String>) {
    let mut networks = deleted;
    {
        let registry = engine.registry();
        networks.extend(registry.networks().iter().map(|entry| entry.network().name.clone()));
    }
    for (host, rights) in rights_of_all(engine) {
        let Some(before) = before.get(&host) else { continue };
        for name in &networks {
            match (before.allows(name), rights.allows(name)) {
                (false, true) => report_network_to(engine, &host, name, false),
                (true, false) => report_network_to(engine, &host, name, true),
                _ => {}
            }
        }
    }
}

/// Puts a recorded network into force. If an attachment made since the check conflicts, takes the change back from
/// journal and audit.
fn install(engine: &Engine, network: Network, entry: Uuid) -> Result<(), Failure> {
    let mut registry = engine.registry();
    let name = network.name.clone();
    let before = registry.networks().get(&name).map(|entry| Arc::clone(entry.network()));
    let installed = registry.change_networks().install(network);
    if installed.is_err() {
        let changes = Changes::default();
        let changes = match before {
            Some(before) => changes.put_network(&before),
            None => changes.delete_network(&name),
        };
        engine.records.revert(changes, entry);
    }
    installed
}

/// Puts suspended networks of the API into force whose conflict is gone.
fn resume(engine: &Engine) {
    let resumed = engine.registry().change_networks().resume();
    for network in resumed {
        engine.events.record(EventKind::NetworkApplied, &network, "in force again");
        report_network(engine, &network, false);
    }
}

/// Reports a changed network to the hosts that may use it.
fn report_network(engine: &Engine, network: &str, deleted: bool) {
    for (host, rights) in rights_of_all(engine) {
        if rights.allows(network) {
            report_network_to(engine, &host, network, deleted);
        }
    }
}

fn report_network_to(engine: &Engine, host: &HostName, network: &str, deleted: bool) {
    let registry = engine.registry();
    let rights = registry.hosts().rights(host);
    let known = registry.networks().get(network).map(PooledNetwork::network);
    let known = known.filter(|_| !deleted);
    let default = registry.networks().default_name().filter(|name| rights.allows(name));
    let changed = v1::NetworkChanged {
        network: network.to_owned(),
        deleted,
        interface_prefix: known.map(|it| it.interface_prefix.clone()).unwrap_or_default(),
        pool: known.map(|it| it.pool.clone()).unwrap_or_default(),
        default_network: default.unwrap_or_default().to_owned(),
    };
    drop(registry);
    engine.send_command(host, HostCommand::NetworkChanged(changed));
}

fn view(engine: &Engine, name: &str) -> Result<NetworkView, Failure> {
    let registry = engine.registry();
    let entry = registry.networks().find(Some(name))?;
    Ok(with_gateway(engine, entry.view(registry.entries().users_of(name), now())))
}

fn with_gateway(engine: &Engine, view: NetworkView) -> NetworkView {
    NetworkView { gateway: engine.gateways.view(&view.network.name), ..view }
}
