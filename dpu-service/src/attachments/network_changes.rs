//! Networks applied and deleted through the API, and the configuration file read again. Running
//! attachments keep the snapshot of the network that they were made with.

use offload_proto::{Failure, Reason};
use vf_alloc::PfId;

use super::{
    engine::{Engine, now},
    networks::Suspended,
    registry::Registry,
    settings::Configuration,
    views::{Applied, NetworkView, Origin},
};
use crate::{
    config::check_networks,
    events::EventKind,
    model::{HostName, Network, Record},
    records::Changes,
    sessions::HostCommand,
};

impl Engine {
    /// Creates a network or replaces it; with `dry_run`, only says what that would do.
    pub(super) async fn apply_network(
        &self,
        network: Network,
        dry_run: bool,
    ) -> Result<(NetworkView, Applied), Failure> {
        let _networks = self.networks.lock().await;
        let outcome = self.check_network(&network)?;
        let name = network.name.clone();
        if !dry_run && outcome != Applied::Unchanged {
            self.records.commit(Changes::default().put_network(&network)).await?;
            self.install_network(network)?;
            self.resume_networks();
            let message = match outcome {
                Applied::Created => "created",
                _ => "changed; running attachments keep what they have",
            };
            self.events.record(EventKind::NetworkApplied, &name, message);
            self.sessions
                .broadcast(&HostCommand::NetworkChanged { network: name.clone(), deleted: false });
        } else if dry_run {
            return Ok((preview(network), outcome));
        }
        Ok((self.network_view(&name)?, outcome))
    }

    /// Deletes a network that was made through the API.
    pub(super) async fn delete_network(&self, name: String, force: bool) -> Result<(), Failure> {
        let _networks = self.networks.lock().await;
        if self.registry().suspended.contains_key(&name) {
            return self.delete_suspended(name).await;
        }
        self.close_network(&name, force)?;
        let deleted = self.records.commit(Changes::default().delete_network(&name)).await;
        {
            let mut registry = self.registry();
            match &deleted {
                Ok(()) => registry.networks.remove(&name),
                Err(_) => registry.reopen_network(&name),
            }
        }
        deleted?;
        self.events.record(EventKind::NetworkDeleted, &name, "deleted");
        self.sessions.broadcast(&HostCommand::NetworkChanged { network: name, deleted: true });
        self.resume_networks();
        Ok(())
    }

    /// Deletes a network of the API that is not in force. The configuration file may have one of its
    /// name, which stays.
    async fn delete_suspended(&self, name: String) -> Result<(), Failure> {
        self.records.commit(Changes::default().delete_network(&name)).await?;
        self.registry().suspended.remove(&name);
        self.events.record(EventKind::NetworkDeleted, name, "deleted; it was not in force");
        Ok(())
    }

    /// Puts those networks of the API into force that now can be.
    fn resume_networks(&self) {
        let resumed = self.registry().resume_networks();
        for network in resumed {
            self.events.record(EventKind::NetworkApplied, &network, "in force again");
            self.sessions.broadcast(&HostCommand::NetworkChanged { network, deleted: false });
        }
    }

    /// Takes a changed configuration file over: all of it or nothing.
    pub(super) async fn load_configuration(
        &self,
        configuration: Configuration,
    ) -> Result<(), Failure> {
        let _networks = self.networks.lock().await;
        let changed = self.registry().load(configuration)?;
        self.tell_all_wanted_vfs();
        for (network, deleted) in changed {
            let (kind, message) = match deleted {
                true => (EventKind::NetworkDeleted, "no longer in the configuration file"),
                false => (EventKind::NetworkApplied, "read from the configuration file"),
            };
            self.events.record(kind, &network, message);
            self.sessions.broadcast(&HostCommand::NetworkChanged { network, deleted });
        }
        self.resume_networks();
        Ok(())
    }

    fn check_network(&self, network: &Network) -> Result<Applied, Failure> {
        let registry = self.registry();
        registry.check_pool(network)?;
        let outcome = match registry.networks.get(&network.name) {
            Some(entry) if entry.origin == Origin::Configuration => return Err(fixed(network)),
            Some(entry) if *entry.network == *network => Applied::Unchanged,
            Some(_) => Applied::Changed,
            None => Applied::Created,
        };
        registry.check_beside_others(network)?;
        let limit = registry.settings.networks;
        if outcome == Applied::Created && registry.networks.len() >= limit {
            return Err(Failure::new(
                Reason::Overloaded,
                format!("this DPU has {limit} networks already, which is its limit"),
            ));
        }
        registry.networks.check(network)?;
        Ok(outcome)
    }

    /// Puts into force what the journal has already. Should an attachment have got into the way
    /// meanwhile, the journal gets the network of before back.
    fn install_network(&self, network: Network) -> Result<(), Failure> {
        let mut registry = self.registry();
        let before = registry.networks.get(&network.name).map(|entry| entry.network.clone());
        let name = network.name.clone();
        let installed = registry.put_network(network, Origin::Api);
        if installed.is_ok() {
            registry.suspended.remove(&name);
        }
        if let (Err(_), Some(before)) = (&installed, before) {
            self.records.commit_lazily(Changes::default().put_network(&before));
        }
        installed
    }

    /// Lets a network take no new attachments, if it may be deleted.
    fn close_network(&self, name: &str, force: bool) -> Result<(), Failure> {
        let mut registry = self.registry();
        let users = registry.users_of(name).count();
        let entry = registry.networks.get_mut(name).ok_or_else(|| {
            Failure::new(Reason::NetworkUnknown, format!("there is no network {name:?}"))
        })?;
        if entry.origin == Origin::Configuration {
            return Err(fixed(&entry.network));
        }
        if users > 0 && !force {
            return Err(in_use(name, users));
        }
        entry.closing = true;
        Ok(())
    }

    pub(super) fn network_view(&self, name: &str) -> Result<NetworkView, Failure> {
        let registry = self.registry();
        let entry = registry.networks.find(Some(name))?;
        Ok(entry.view(registry.users_of(name).count(), now()))
    }
}

impl Registry {
    /// The changed networks, and whether each is gone.
    fn load(&mut self, configuration: Configuration) -> Result<Vec<(String, bool)>, Failure> {
        let Configuration { hosts, vfs, pools, networks } = configuration;
        let pool_names: Vec<_> = pools.iter().map(|pool| pool.name.clone()).collect();
        let gone = self.configured_but_not_in(&networks);
        for name in &gone {
            match self.users_of(name).count() {
                0 => {}
                users => return Err(in_use(name, users)),
            }
        }
        for network in &networks {
            check_pool_of(network, pool_names.iter().map(String::as_str))?;
            if self.networks.get(&network.name).is_some_and(|entry| entry.origin == Origin::Api) {
                return Err(Failure::new(
                    Reason::InvalidRequest,
                    format!(
                        "network {} was made through the API: delete it there first",
                        network.name
                    ),
                ));
            }
            self.networks.check(network)?;
        }
        let made = self.networks.iter().filter(|entry| entry.origin == Origin::Api);
        let made: Vec<_> = made.map(|entry| &*entry.network).collect();
        for network in &made {
            check_pool_of(network, pool_names.iter().map(String::as_str))?;
        }
        check_together(&networks.iter().chain(made).collect::<Vec<_>>())?;
        self.check_hosts(&hosts)?;
        // From here on nothing is refused any more.
        self.vfs
            .replace_pools(pools)
            .map_err(|error| Failure::new(Reason::InvalidRequest, error.to_string()))?;
        self.replace_hosts(hosts);
        self.wanted_vfs = vfs;
        let mut changed: Vec<_> = gone.iter().map(|name| (name.clone(), true)).collect();
        for name in gone {
            self.networks.remove(&name);
        }
        for network in networks {
            let before = self.networks.get(&network.name).map(|entry| &*entry.network);
            if before != Some(&network) {
                changed.push((network.name.clone(), false));
                self.put_network(network, Origin::Configuration)?;
            }
        }
        Ok(changed)
    }

    /// A host with attachments stays, and so do its PFs: nobody else could give their VFs back.
    fn check_hosts(&self, hosts: &[(HostName, Vec<PfId>)]) -> Result<(), Failure> {
        for entry in self.entries() {
            let Record { key, vf, .. } = &*entry.record;
            let pfs = hosts.iter().find(|(host, _)| *host == key.host).map(|(_, pfs)| pfs);
            let problem = match pfs {
                None => format!("host {} can't be removed", key.host),
                Some(pfs) if !pfs.contains(&vf.pf) => {
                    format!("PF {} can't be taken from host {}", vf.pf, key.host)
                }
                Some(_) => continue,
            };
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("{problem}: attachment {} holds {vf}; detach it first", entry.record.id),
            ));
        }
        Ok(())
    }

    /// VFs of PFs that change hands are not to be had until their new host offers them.
    fn replace_hosts(&mut self, hosts: Vec<(HostName, Vec<PfId>)>) {
        let before: Vec<_> =
            self.vfs.vfs().map(|view| (view.vf, self.owner(view.vf.pf).cloned())).collect();
        self.set_hosts(hosts);
        for (vf, owner) in before {
            if self.owner(vf.pf) != owner.as_ref() {
                self.vfs.withdraw(vf, "its host has not offered it");
            }
        }
    }

    fn configured_but_not_in(&self, networks: &[Network]) -> Vec<String> {
        let configured = self.networks.iter().filter(|entry| entry.origin == Origin::Configuration);
        let names = configured.map(|entry| entry.network.name.clone());
        names.filter(|name| !networks.iter().any(|network| network.name == *name)).collect()
    }

    fn check_pool(&self, network: &Network) -> Result<(), Failure> {
        check_pool_of(network, self.vfs.pools().map(|pool| pool.name.as_str()))
    }

    /// Whether `network` can be in force beside those of other names.
    fn check_beside_others(&self, network: &Network) -> Result<(), Failure> {
        let all = self.networks.iter().map(|entry| &*entry.network);
        let others = all.filter(|other| other.name != network.name);
        check_together(&others.chain([network]).collect::<Vec<_>>())
    }

    /// Puts a network of the API into force or, where it can't be, aside.
    pub(super) fn put_or_suspend(&mut self, network: Network) {
        if let Err(failure) = self.put_made(&network) {
            let (name, why) = (network.name.clone(), failure.message);
            tracing::error!(network = name, why, "a network of the API is not in force");
            self.suspended.insert(name, Suspended { network, why });
        }
    }

    fn put_made(&mut self, network: &Network) -> Result<(), Failure> {
        if self.networks.get(&network.name).is_some() {
            return Err(hidden(network));
        }
        self.check_pool(network)?;
        self.check_beside_others(network)?;
        self.put_network(network.clone(), Origin::Api)
    }

    /// Tries again what is not in force. Returns the names of the networks that now are.
    fn resume_networks(&mut self) -> Vec<String> {
        let mut resumed = Vec::new();
        for (name, Suspended { network, .. }) in std::mem::take(&mut self.suspended) {
            match self.put_made(&network) {
                Ok(()) => resumed.push(name),
                Err(failure) => {
                    self.suspended.insert(name, Suspended { network, why: failure.message });
                }
            }
        }
        resumed
    }

    fn reopen_network(&mut self, name: &str) {
        if let Some(entry) = self.networks.get_mut(name) {
            entry.closing = false;
        }
    }
}

fn preview(network: Network) -> NetworkView {
    NetworkView {
        network: network.into(),
        origin: Origin::Api,
        attachments: 0,
        subnets: Vec::new(),
    }
}

fn check_pool_of<'a>(
    network: &Network,
    mut pools: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    if pools.any(|pool| pool == network.pool) {
        return Ok(());
    }
    Err(Failure::new(
        Reason::InvalidRequest,
        format!(
            "network {} draws from VF pool {:?}, which does not exist: list the pools with \
             `dpuctl get pools`",
            network.name, network.pool
        ),
    ))
}

/// Whether these networks can be in force together.
fn check_together(networks: &[&Network]) -> Result<(), Failure> {
    match check_networks(networks.iter().copied()).into_iter().next() {
        Some(problem) => Err(Failure::new(Reason::InvalidRequest, problem)),
        None => Ok(()),
    }
}

fn hidden(network: &Network) -> Failure {
    Failure::new(
        Reason::NetworkFixed,
        format!("the configuration file has a network {}, too", network.name),
    )
}

fn fixed(network: &Network) -> Failure {
    Failure::new(
        Reason::NetworkFixed,
        format!("network {} comes from the configuration file", network.name),
    )
}

fn in_use(name: &str, users: usize) -> Failure {
    let attachments = if users == 1 { "attachment" } else { "attachments" };
    let message = format!("network {name} is used by {users} {attachments}");
    Failure::new(Reason::NetworkInUse, message)
}
