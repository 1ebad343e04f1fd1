//! Networks applied and deleted through the API, and the configuration file read again. Running
//! attachments keep the snapshot of the network that they were made with.
//!
//! Changes come one after the other, under a lock of their own: each is checked in one hold of the
//! registry, recorded, and put into force in another. Attaches go on in between, so that a lease may
//! get into the way of what was checked already; then the journal gets the network of before back. A
//! network that is to be deleted is closed to attaches first.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ipnetwork::IpNetwork;
use offload_proto::{Failure, Reason};
use serde_json::json;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    engine::{Engine, now},
    gateways::look_after_gateways,
    registry::PooledNetwork,
    requirements::check_requirements,
    settings::Configuration,
    subnets::SubnetChange,
    views::{Applied, NetworkView, Origin},
    welcome::tell_all_wanted_vfs,
};
use crate::{
    audit::{AuditAction, AuditEntry},
    author::{Author, Cause},
    events::EventKind,
    model::{HostName, HostRights, Network, ResourceVersion},
    records::Changes,
    sessions::{ChangedNetwork, HostCommand},
};

/// How long renaming a network waits for attaches that have begun: each takes one write of the journal.
const RECORDS_WAIT: Duration = Duration::from_secs(2);
const RECORDS_POLL: Duration = Duration::from_millis(5);

/// The networks: see [`Engine::networks`].
#[derive(Clone, Copy, Debug)]
pub struct Networks<'a>(pub(super) &'a Arc<Engine>, Option<&'a Cause>);

/// What a host's agent has to know of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownNetworks {
    /// The pool that each draws from.
    pub pools: HashMap<String, String>,
    /// How the names of interfaces begin that the pod does not name, of networks that say so.
    pub interface_prefixes: HashMap<String, String>,
    /// The network of an attach that names none.
    pub default: Option<String>,
}

impl Engine {
    /// The networks.
    #[must_use]
    pub const fn networks(self: &Arc<Self>) -> Networks<'_> {
        Networks(self, None)
    }

    /// Takes a changed configuration file over: all of it or, when something in it can't be, nothing.
    ///
    /// # Errors
    /// What can't be.
    pub async fn load_configuration(
        self: &Arc<Self>,
        configuration: Configuration,
    ) -> Result<(), Failure> {
        self.to_the_end(async move |engine: Arc<Self>| load(&engine, configuration).await).await
    }
}

impl<'a> Networks<'a> {
    /// The same, for changes by that author and for that reason. Without it the service itself is the author.
    #[must_use]
    pub const fn by(self, cause: &'a Cause) -> Self {
        Self(self.0, Some(cause))
    }

    fn cause(self) -> Cause {
        self.1.cloned().unwrap_or_default()
    }

    /// Whether there is no network.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.registry().networks().len() == 0
    }

    /// All networks, by name.
    #[must_use]
    pub fn list(self) -> Vec<NetworkView> {
        let registry = self.0.registry();
        let users = registry.entries().users();
        let used = |name: &str| users.get(name).copied().unwrap_or_default();
        let networks = registry.networks().iter();
        let views = networks.map(|entry| entry.view(used(&entry.network().name), now()));
        views.map(|view| with_gateway(self.0, view)).collect()
    }

    /// What the host's attachments to the network of that name get addresses of. Without a name it is the default one,
    /// and where none is, all that the host may use.
    ///
    /// # Errors
    /// There is no such network that the host may use, or none at all.
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

    /// What a host's agent has to know of the networks that the host may use.
    #[must_use]
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

    /// Makes this DPU the gateway of those networks that want it, and no longer of others.
    pub(crate) async fn look_after_gateways(self, is_thorough: bool) {
        let look_after = async move |engine: Arc<Engine>| {
            look_after_gateways(&engine, is_thorough).await;
            Ok(())
        };
        // It can fail only by a panic, which was told of.
        let _ = self.0.to_the_end(look_after).await;
    }

    /// Creates a network or replaces it; with `dry_run`, only says what that would do. Its form is
    /// the caller's to check. Running attachments keep the settings that they were made with. With `read`, it replaces
    /// only that version of the network.
    ///
    /// # Errors
    /// The network can't be, another version is in force, a lease is in the way, or the journal can't be written.
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

    /// Gives a network another name. Its attachments keep their addresses and belong to the renamed network. Attaches to
    /// it are refused until that is durable.
    ///
    /// # Errors
    /// The network is unknown or of the configuration file; the new name is taken; other networks or hosts' rights name
    /// the network; attaches to it do not end; or the journal can't be written.
    pub async fn rename(self, name: String, new_name: String) -> Result<NetworkView, Failure> {
        let cause = self.cause();
        let rename =
            async move |engine: Arc<Engine>| rename(&engine, &name, &new_name, &cause).await;
        self.0.to_the_end(rename).await
    }

    /// Changes the subnets of a network that there is: all that is asked for, or nothing. Running attachments keep
    /// their addresses.
    ///
    /// # Errors
    /// There is no such network, or it is the configuration file's; a subnet can't be; a lease is in the way; or
    /// the journal can't be written.
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

    /// Deletes a network. With `force` even while attachments use it: they keep their snapshot of it.
    ///
    /// # Errors
    /// It is unknown, or of the configuration file, or in use, or the journal can't be written.
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

/// Whoever calls it holds the lock of networks.
async fn apply_alone(
    engine: &Engine,
    network: Network,
    dry_run: bool,
    (action, cause): (AuditAction, &Cause),
) -> Result<(NetworkView, Applied), Failure> {
    check_gateway(engine, &network)?;
    check_mtu(engine, &network)?;
    let outcome = engine.registry().change_networks().check(&network)?;
    check_requirements(engine, &network)?;
    if dry_run {
        return Ok((preview(network), outcome));
    }
    let name = network.name.clone();
    if outcome != Applied::Unchanged {
        // Recorded first: a network that pods may be attached to must outlive a crash.
        let entry = AuditEntry::new(cause, action, format!("network/{name}")).after(&network);
        let entry = with_former(engine, &name, entry);
        let id = entry.id;
        let changes = Changes::default().put_network(&network).audited(Some(entry));
        engine.records.commit(changes).await?;
        install(engine, network, id)?;
        resume(engine);
        let message = match outcome {
            Applied::Created => "created",
            _ => "changed; running attachments keep what they have",
        };
        engine.events.record_by(&cause.author, EventKind::NetworkApplied, &name, message);
        tell(engine, &name, false);
        look_after_gateways(engine, false).await;
    }
    Ok((view(engine, &name)?, outcome))
}

/// The entry with the API's network as it is now, if there is one, in force or not.
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
    tell(engine, name, true);
    tell(engine, new_name, false);
    look_after_gateways(engine, false).await;
    // What ports share on a card is named after their network.
    engine.reconciler.look_closely();
    view(engine, new_name)
}

/// Renames a network that takes no new attachments.
async fn rename_closed(
    engine: &Engine,
    name: &str,
    renamed: Network,
    cause: &Cause,
) -> Result<(), Failure> {
    check_gateway(engine, &renamed)?;
    wait_for_records(engine, name).await?;
    let entry = AuditEntry::new(cause, AuditAction::RenameNetwork, format!("network/{name}"))
        .before(&json!({ "name": name }))
        .after(&json!({ "name": renamed.name }));
    let committed = {
        // The journal is given the changes while the registry is held: a release that begins afterwards comes later
        // there, too, and the record of an attachment that has ended is not written again.
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

/// Waits until the journal has all attachments to a network that takes no new ones.
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
    if engine.registry().networks().is_suspended(&name) {
        return delete_suspended(engine, name, cause).await;
    }
    // Closed first, or an attach would get into it while the journal forgets it.
    engine.registry().change_networks().close(&name, force)?;
    let deleted = engine.records.commit(deletion(engine, &name, cause)).await;
    match &deleted {
        Ok(()) => engine.registry().change_networks().remove(&name),
        Err(_) => engine.registry().change_networks().reopen(&name),
    }
    deleted?;
    engine.events.record_by(&cause.author, EventKind::NetworkDeleted, &name, "deleted");
    tell(engine, &name, true);
    resume(engine);
    look_after_gateways(engine, false).await;
    Ok(())
}

fn deletion(engine: &Engine, name: &str, cause: &Cause) -> Changes {
    let entry = AuditEntry::new(cause, AuditAction::DeleteNetwork, format!("network/{name}"));
    let entry = with_former(engine, name, entry);
    Changes::default().delete_network(name).audited(Some(entry))
}

fn check_gateway(engine: &Engine, network: &Network) -> Result<(), Failure> {
    match engine.gateways().problem_of(network) {
        Some(problem) => Err(Failure::new(Reason::InvalidRequest, problem)),
        None => Ok(()),
    }
}

fn check_mtu(engine: &Engine, network: &Network) -> Result<(), Failure> {
    match too_large_for_uplinks(engine, network) {
        Some(problem) => Err(Failure::new(Reason::InvalidRequest, problem)),
        None => Ok(()),
    }
}

/// That the network has larger packets than leave this DPU, one sentence.
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

/// Deletes a network of the API that is not in force. The configuration file may have one of its
/// name, which stays.
async fn delete_suspended(engine: &Engine, name: String, cause: &Cause) -> Result<(), Failure> {
    engine.records.commit(deletion(engine, &name, cause)).await?;
    engine.registry().change_networks().forget_suspended(&name);
    let message = "deleted; it was not in force";
    engine.events.record_by(&cause.author, EventKind::NetworkDeleted, name, message);
    Ok(())
}

async fn load(engine: &Engine, configuration: Configuration) -> Result<(), Failure> {
    let _changes = engine.network_changes.lock().await;
    let before = rights_of_all(engine);
    let changed = engine.registry().change_networks().load(configuration)?;
    end_removed(engine, before.keys());
    tell_all_wanted_vfs(engine);
    let deleted = changed.iter().filter(|network| network.deleted);
    let deleted: Vec<_> = deleted.map(|network| network.name.clone()).collect();
    for network in changed {
        let (kind, message) = match network.deleted {
            true => (EventKind::NetworkDeleted, "no longer in the configuration file"),
            false => (EventKind::NetworkApplied, "read from the configuration file"),
        };
        engine.events.record_by(&Author::ConfigurationFile, kind, &network.name, message);
        tell(engine, &network.name, network.deleted);
    }
    tell_of_rights(engine, &before, deleted);
    resume(engine);
    look_after_gateways(engine, false).await;
    Ok(())
}

fn rights_of_all(engine: &Engine) -> HashMap<HostName, HostRights> {
    let registry = engine.registry();
    let hosts = registry.hosts();
    hosts.names().map(|host| (host.clone(), hosts.rights(host))).collect()
}

/// Ends the sessions of hosts that are served no more. Their attachments go on.
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
            format!("it is no longer in the configuration; {attachments} attachments go on");
        let author = &Author::ConfigurationFile;
        engine.events.record_by(author, EventKind::HostRemoved, host, message);
    }
}

/// Reports to each host which networks it gains or loses by its rights. Of a network that was deleted together with a
/// host's right to it, the host would learn by nothing else.
fn tell_of_rights(engine: &Engine, before: &HashMap<HostName, HostRights>, deleted: Vec<String>) {
    let mut networks = deleted;
    {
        let registry = engine.registry();
        networks.extend(registry.networks().iter().map(|entry| entry.network().name.clone()));
    }
    for (host, rights) in rights_of_all(engine) {
        let Some(before) = before.get(&host) else { continue };
        for name in &networks {
            match (before.allows(name), rights.allows(name)) {
                (false, true) => tell_host(engine, &host, name, false),
                (true, false) => tell_host(engine, &host, name, true),
                _ => {}
            }
        }
    }
}

/// Puts into force what the journal has already. Should an attachment have got into the way
/// since it was checked, the journal gets the former network back, or forgets the new one, and the audit its entry.
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
        engine.records.take_back(changes, entry);
    }
    installed
}

/// Puts those networks of the API into force that now can be.
fn resume(engine: &Engine) {
    let resumed = engine.registry().change_networks().resume();
    for network in resumed {
        engine.events.record(EventKind::NetworkApplied, &network, "in force again");
        tell(engine, &network, false);
    }
}

/// Tells the hosts that may use the network.
fn tell(engine: &Engine, network: &str, deleted: bool) {
    for (host, rights) in rights_of_all(engine) {
        if rights.allows(network) {
            tell_host(engine, &host, network, deleted);
        }
    }
}

fn tell_host(engine: &Engine, host: &HostName, network: &str, deleted: bool) {
    let registry = engine.registry();
    let rights = registry.hosts().rights(host);
    let known = registry.networks().get(network).map(PooledNetwork::network);
    let known = known.filter(|_| !deleted);
    let default = registry.networks().default_name().filter(|name| rights.allows(name));
    let changed = ChangedNetwork {
        network: network.to_owned(),
        deleted,
        interface_prefix: known.map(|it| it.interface_prefix.clone()).unwrap_or_default(),
        pool: known.map(|it| it.pool.clone()).unwrap_or_default(),
        default_network: default.unwrap_or_default().to_owned(),
    };
    drop(registry);
    engine.tell(host, HostCommand::NetworkChanged(changed));
}

fn view(engine: &Engine, name: &str) -> Result<NetworkView, Failure> {
    let registry = engine.registry();
    let entry = registry.networks().find(Some(name))?;
    Ok(with_gateway(engine, entry.view(registry.entries().users_of(name), now())))
}

fn with_gateway(engine: &Engine, view: NetworkView) -> NetworkView {
    NetworkView { gateway: engine.gateways().view(&view.network.name), ..view }
}

fn preview(network: Network) -> NetworkView {
    NetworkView {
        network: network.into(),
        origin: Origin::Api,
        attachments: 0,
        subnets: Vec::new(),
        gateway: None,
    }
}
