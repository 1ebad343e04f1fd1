//! Changes of networks in memory, including a changed configuration file.

use std::{collections::BTreeMap, sync::Arc};

use offload_proto::{Failure, Reason};
use vf_alloc::PfId;

use super::{Entry, Registry, networks::PooledNetwork};
use crate::{
    attachments::{
        refuse_first,
        settings::Configuration,
        views::{Applied, Origin},
    },
    records::OpenError,
};
use model::{
    GatewayMode, HostName, Network, Record, ResourceVersion,
    allow::named_networks,
    check::{
        check_bridge, check_named_networks, check_networks, check_reaches, check_routed_subnets,
    },
};

#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) name: String,
    /// Whether the file no longer has it.
    pub(crate) deleted: bool,
}

/// Changes of networks. The caller holds the lock of networks: between check and installation the registry is unlocked
/// for the journal's commit.
#[derive(Debug)]
pub(crate) struct NetworkChanges<'a>(&'a mut Registry);

impl Registry {
    pub(crate) const fn change_networks(&mut self) -> NetworkChanges<'_> {
        NetworkChanges(self)
    }
}

impl NetworkChanges<'_> {
    /// Restores the configuration's networks and those of the API.
    pub(super) fn restore(
        mut self,
        configured: Vec<Network>,
        made: Vec<Network>,
    ) -> Result<(), OpenError> {
        for network in configured {
            self.put(network, Origin::Configuration)
                .map_err(|failure| OpenError::Configuration(failure.message))?;
        }
        // After the file's networks: in a conflict the file wins.
        for network in made {
            if let Some(why) = self.put_or_suspend(network.clone()) {
                let network = network.name;
                tracing::error!(network, reason = why, "a network of the API is suspended");
            }
        }
        Ok(())
    }

    /// Returns the API's network of that name.
    ///
    /// # Errors
    /// The network is unknown or the configuration file's.
    pub(crate) fn changeable(&self, name: &str) -> Result<Network, Failure> {
        let entry = self.0.networks.find(Some(name))?;
        match entry.origin() {
            Origin::Configuration => Err(fixed(entry.network())),
            Origin::Api => Ok(Network::clone(entry.network())),
        }
    }

    /// Checks a network and returns what applying it would do.
    ///
    /// # Errors
    /// The network is invalid or conflicts with others.
    pub(crate) fn check(&self, network: &Network) -> Result<Applied, Failure> {
        self.check_pool(network)?;
        self.check_bridge(network)?;
        let networks = &self.0.networks;
        let outcome = match networks.get(&network.name) {
            Some(entry) if entry.origin() == Origin::Configuration => return Err(fixed(network)),
            Some(entry) if **entry.network() == *network => Applied::Unchanged,
            Some(_) => Applied::Changed,
            None => Applied::Created,
        };
        self.check_beside_others(network)?;
        self.check_named(network)?;
        let limit = self.0.settings.networks;
        if outcome == Applied::Created && networks.len() >= limit {
            return Err(Failure::new(
                Reason::Overloaded,
                format!("this DPU has {limit} networks already, which is its limit"),
            ));
        }
        networks.check(network, &self.0.entries)?;
        Ok(outcome)
    }

    /// Puts a network of the API into force.
    ///
    /// # Errors
    /// An attachment made since the check conflicts. The previous network stays in force.
    pub(crate) fn install(&mut self, network: Network) -> Result<(), Failure> {
        let name = network.name.clone();
        self.put(network, Origin::Api)?;
        self.0.networks.forget_suspended(&name);
        Ok(())
    }

    /// Refuses to replace another version than the caller has read. A network that already equals `network` passes with
    /// any version: the caller may be repeating its call.
    ///
    /// # Errors
    /// [`Reason::NetworkConflict`].
    pub(crate) fn check_version(
        &self,
        network: &Network,
        read: &ResourceVersion,
    ) -> Result<(), Failure> {
        let name = &network.name;
        let conflict = |what: String| Err(Failure::new(Reason::NetworkConflict, what));
        let Some(entry) = self.0.networks.get(name) else {
            return conflict(format!(
                "network {name} of version {read} no longer exists: it was deleted or renamed"
            ));
        };
        let version = ResourceVersion::of(entry.network());
        if version == *read || **entry.network() == *network {
            return Ok(());
        }
        conflict(format!(
            "network {name} has changed since version {read}: its version is {version}"
        ))
    }

    /// Closes a network to new attachments until it is renamed. Returns it under its new name.
    ///
    /// # Errors
    /// The network cannot be renamed, or not to this name.
    pub(crate) fn begin_renaming(
        &mut self,
        name: &str,
        new_name: &str,
    ) -> Result<Network, Failure> {
        let network = self.changeable(name)?;
        let networks = &self.0.networks;
        if networks.get(new_name).is_some() || networks.find_suspended(new_name).is_some() {
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("network {name} can't be renamed: there is a network {new_name} already"),
            ));
        }
        self.check_unnamed(name, "allow", is_allowed_by)?;
        self.check_unnamed(name, "reaches", |by, name| by.reaches.contains(name))?;
        self.check_hosts_may_use(name, new_name)?;
        self.check_gateway_stays(&network)?;
        self.check_no_host_port(name)?;
        self.0.networks.set_closing(name, true);
        // Closed from here on: no attach can add a record with the old name.
        Ok(network.renamed(new_name))
    }

    /// Refuses networks with host ports. An agent identifies its host ports by network name: after a rename it would
    /// release the port and make a new one.
    fn check_no_host_port(&self, name: &str) -> Result<(), Failure> {
        let is_one = |record: &&Arc<Record>| {
            record.key.is_host_port() && record.networks().any(|network| network.name == name)
        };
        match self.0.entries.iter().map(Entry::record).find(is_one) {
            None => Ok(()),
            Some(port) => Err(Failure::new(
                Reason::NetworkInUse,
                format!(
                    "network {name} can't be renamed: host {} has its host port {} in it",
                    port.key.host, port.key.interface_name
                ),
            )),
        }
    }

    /// Refuses networks whose gateway's MAC address would change: it is derived from the network's name. Running pods
    /// would keep sending to the old address until their neighbour entries expire.
    fn check_gateway_stays(&self, network: &Network) -> Result<(), Failure> {
        let users = self.0.entries.users_of(&network.name);
        if network.gateway_mode == GatewayMode::Router || users == 0 {
            return Ok(());
        }
        Err(Failure::new(
            Reason::NetworkInUse,
            format!(
                "network {} can't be renamed: this DPU is the gateway of {users} running attachments, and its MAC \
                 address follows from the network's name",
                network.name
            ),
        ))
    }

    /// Refuses a rename by which a host would lose its right to use the network.
    fn check_hosts_may_use(&self, name: &str, new_name: &str) -> Result<(), Failure> {
        let hosts = &self.0.hosts;
        let loses = |host: &&HostName| {
            let rights = hosts.rights(host);
            rights.allows(name) && !rights.allows(new_name)
        };
        match hosts.names().find(loses) {
            None => Ok(()),
            Some(host) => Err(Failure::new(
                Reason::NetworkNamed,
                format!(
                    "host {host} could no longer use network {name}: add {new_name} to `networks` of its [[host]] \
                     in the service's configuration, and reload it first"
                ),
            )),
        }
    }

    /// The records to rewrite with the network's new name. Attachments being released are left out: a commit that
    /// deletes their records may be under way.
    pub(crate) fn records_renamed(&self, name: &str, new_name: &str) -> Vec<Record> {
        let held = self.0.entries.held();
        held.iter().filter_map(|record| record.with_network_renamed(name, new_name)).collect()
    }

    /// Renames the network in memory once the journal has the new name.
    pub(crate) fn finish_renaming(&mut self, name: &str, renamed: Network) {
        self.0.entries.rename_network(name, &renamed.name);
        self.0.networks.rename(name, Arc::new(renamed));
    }

    /// Closes a network to new attachments if it may be deleted.
    pub(crate) fn close(&mut self, name: &str, force: bool) -> Result<(), Failure> {
        let users = self.0.entries.users_of(name);
        let entry = self.0.networks.get(name).ok_or_else(|| {
            Failure::new(Reason::NetworkUnknown, format!("there is no network {name:?}"))
        })?;
        if entry.origin() == Origin::Configuration {
            return Err(fixed(entry.network()));
        }
        if users > 0 && !force {
            return Err(in_use(name, users));
        }
        // Checked even with `force`: without the named network, an `allow` rule would admit nothing.
        self.check_unnamed(name, "allow", is_allowed_by)?;
        if !force {
            self.check_unnamed(name, "reaches", |by, name| by.reaches.contains(name))?;
        }
        self.0.networks.set_closing(name, true);
        Ok(())
    }

    /// Refuses to remove a network that other networks name in `key`.
    fn check_unnamed(
        &self,
        name: &str,
        key: &str,
        names: impl Fn(&Network, &str) -> bool,
    ) -> Result<(), Failure> {
        let all = self.0.networks.iter().map(PooledNetwork::network);
        let by: Vec<_> = all.filter(|by| names(by, name)).map(|by| by.name.as_str()).collect();
        if by.is_empty() {
            return Ok(());
        }
        let networks = if by.len() == 1 { "network" } else { "networks" };
        let by = by.join(", ");
        let message = format!("network {name} is in `{key}` of {networks} {by}: take it out first");
        Err(Failure::new(Reason::NetworkNamed, message))
    }

    /// Opens a network again that could not be deleted or renamed.
    pub(crate) fn reopen(&mut self, name: &str) {
        self.0.networks.set_closing(name, false);
    }

    /// Removes a deleted network. Its attachments keep their snapshot.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.networks.remove(name);
    }

    /// Removes a deleted network that was suspended.
    pub(crate) fn forget_suspended(&mut self, name: &str) {
        self.0.networks.forget_suspended(name);
    }

    /// Tries to put suspended networks into force. Returns the names of those that now are.
    pub(crate) fn resume(&mut self) -> Vec<String> {
        let suspended = self.0.networks.take_suspended();
        let resumed = suspended.filter_map(|network| {
            let name = network.name.clone();
            self.put_or_suspend(network).is_none().then_some(name)
        });
        resumed.collect()
    }

    /// Puts a changed configuration into force: all of it or nothing. Returns the networks that differ.
    pub(crate) fn load(&mut self, configuration: Configuration) -> Result<Vec<Changed>, Failure> {
        let gone = self.configured_but_not_in(&configuration.networks);
        self.check_configuration(&configuration, &gone)?;
        let Configuration { hosts, rights, vfs: wanted_vfs, pools, networks } = configuration;
        // The last step that may fail; it changes nothing then.
        self.0
            .vfs
            .replace_pools(pools)
            .map_err(|error| Failure::new(Reason::InvalidRequest, error.to_string()))?;
        self.replace_hosts(hosts, wanted_vfs);
        self.0.hosts.set_rights(rights);
        for name in &gone {
            self.0.networks.remove(name);
        }
        let mut changed: Vec<_> =
            gone.into_iter().map(|name| Changed { name, deleted: true }).collect();
        for network in networks {
            // An unchanged network keeps its `Arc`, by which attachments with current settings are recognised cheaply.
            let before = self.0.networks.get(&network.name).map(|entry| &**entry.network());
            if before != Some(&network) {
                changed.push(Changed { name: network.name.clone(), deleted: false });
                self.put(network, Origin::Configuration)?;
            }
        }
        Ok(changed)
    }

    fn check_configuration(
        &self,
        configuration: &Configuration,
        gone: &[String],
    ) -> Result<(), Failure> {
        let Configuration { hosts, pools, networks, .. } = configuration;
        for name in gone {
            match self.0.entries.users_of(name) {
                0 => {}
                users => return Err(in_use(name, users)),
            }
        }
        let pool_names = || pools.iter().map(|pool| pool.name.as_str());
        for network in networks {
            check_pool_of(network, pool_names())?;
            self.check_bridge(network)?;
            self.check_not_made(network)?;
            self.0.networks.check(network, &self.0.entries)?;
        }
        let made: Vec<_> = self.0.networks.of_origin(Origin::Api).map(|made| &**made).collect();
        for network in &made {
            check_pool_of(network, pool_names())?;
        }
        let all: Vec<_> = networks.iter().chain(made).collect();
        self.check_together(&all)?;
        let is_of_file = |network: &Network| networks.iter().any(|of| of.name == network.name);
        refuse_first(check_reaches(all.clone(), |network, _| is_of_file(network)))?;
        refuse_first(check_named_networks(all, |network, _| is_of_file(network)))?;
        self.check_hosts(hosts)
    }

    /// Refuses a network of the file whose name a network of the API has.
    fn check_not_made(&self, network: &Network) -> Result<(), Failure> {
        let known = self.0.networks.get(&network.name);
        if known.is_none_or(|entry| entry.origin() == Origin::Configuration) {
            return Ok(());
        }
        Err(Failure::new(
            Reason::InvalidRequest,
            format!("network {} was made through the API: delete it there first", network.name),
        ))
    }

    /// Keeps a PF with the host whose attachments hold its VFs: no other host could return them. A host may be removed
    /// from the configuration while it has attachments.
    fn check_hosts(&self, hosts: &[(HostName, Vec<PfId>)]) -> Result<(), Failure> {
        let is_served = |name: &HostName| hosts.iter().any(|(host, _)| host == name);
        for entry in self.0.entries.iter() {
            let Record { id, key, vf, .. } = &**entry.record();
            let owner = hosts.iter().find(|(_, pfs)| pfs.contains(&vf.pf)).map(|(host, _)| host);
            let problem = match owner {
                Some(owner) if *owner == key.host => continue,
                None if !is_served(&key.host) => continue,
                Some(owner) => format!("PF {} can't be given to host {owner}", vf.pf),
                None => format!("PF {} can't be taken from host {}", vf.pf, key.host),
            };
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!(
                    "{problem}: attachment {id} of host {} holds {vf}; release it first",
                    key.host
                ),
            ));
        }
        Ok(())
    }

    /// Withdraws VFs of PFs that change hands until the new host advertises them.
    fn replace_hosts(
        &mut self,
        hosts: Vec<(HostName, Vec<PfId>)>,
        wanted_vfs: BTreeMap<PfId, u32>,
    ) {
        let registry = &mut *self.0;
        let owner =
            |view: vf_alloc::VfView<'_, _>| (view.vf, registry.hosts.owner(view.vf.pf).cloned());
        let before: Vec<_> = registry.vfs.vfs().map(owner).collect();
        registry.hosts.replace(hosts, wanted_vfs);
        for (vf, owner) in before {
            if registry.hosts.owner(vf.pf) != owner.as_ref() {
                registry.vfs.withdraw(vf, "its host does not report it as free");
                registry.vfs.end_offer(vf);
            }
        }
    }

    fn configured_but_not_in(&self, networks: &[Network]) -> Vec<String> {
        let configured = self.0.networks.of_origin(Origin::Configuration);
        let names = configured.map(|network| network.name.clone());
        names.filter(|name| !networks.iter().any(|network| network.name == *name)).collect()
    }

    fn check_pool(&self, network: &Network) -> Result<(), Failure> {
        check_pool_of(network, self.0.vfs.pools().map(|pool| pool.name.as_str()))
    }

    /// Checks against the bridges that the service was started with.
    fn check_bridge(&self, network: &Network) -> Result<(), Failure> {
        refuse_first(check_bridge(network, &self.0.settings.bridges))
    }

    /// Checks `network` together with the networks of other names.
    fn check_beside_others(&self, network: &Network) -> Result<(), Failure> {
        self.check_together(&self.with_others(network))
    }

    /// The network and those of other names.
    fn with_others<'a>(&'a self, network: &'a Network) -> Vec<&'a Network> {
        let all = self.0.networks.iter().map(|entry| &**entry.network());
        all.filter(|other| other.name != network.name).chain([network]).collect()
    }

    /// Checks that these networks can be in force together.
    fn check_together(&self, networks: &[&Network]) -> Result<(), Failure> {
        let bridges = &self.0.settings.bridges;
        refuse_first(check_networks(networks.iter().copied(), bridges))?;
        let conflicts = check_routed_subnets(networks.iter().copied(), bridges);
        match conflicts.into_iter().next() {
            Some(conflict) => Err(Failure::new(Reason::SubnetConflict, conflict)),
            None => Ok(()),
        }
    }

    /// Checks that the networks named by `network` exist, and that networks which name it still may. Other networks
    /// stay in force even if one they name is gone, as after a forced deletion: they no longer reach it and admit
    /// nothing from it.
    fn check_named(&self, network: &Network) -> Result<(), Failure> {
        let concerns = |of: &Network, named: &str| of.name == network.name || named == network.name;
        let all = self.with_others(network);
        refuse_first(check_reaches(all.clone(), concerns))?;
        refuse_first(check_named_networks(all, concerns))
    }

    /// Puts a network of the API into force or suspends it. Returns why it was suspended.
    fn put_or_suspend(&mut self, network: Network) -> Option<String> {
        let why = self.put_made(&network).err()?.message;
        self.0.networks.suspend(network, why.clone());
        Some(why)
    }

    fn put_made(&mut self, network: &Network) -> Result<(), Failure> {
        if self.0.networks.get(&network.name).is_some() {
            let message = format!("the configuration file has a network {}, too", network.name);
            return Err(Failure::new(Reason::NetworkFixed, message));
        }
        self.check_pool(network)?;
        self.check_bridge(network)?;
        self.check_beside_others(network)?;
        self.put(network.clone(), Origin::Api)
    }

    fn put(&mut self, network: Network, origin: Origin) -> Result<(), Failure> {
        self.0.networks.put(network, origin, &self.0.entries)
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

fn fixed(network: &Network) -> Failure {
    Failure::new(
        Reason::NetworkFixed,
        format!("network {} comes from the configuration file", network.name),
    )
}

/// Whether `by` admits another network of that name. A network may name itself.
fn is_allowed_by(by: &Network, name: &str) -> bool {
    by.name != name && named_networks(&by.allow).any(|named| named == name)
}

fn in_use(name: &str, users: usize) -> Failure {
    let attachments = if users == 1 { "attachment" } else { "attachments" };
    let message = format!("network {name} is used by {users} {attachments}");
    Failure::new(Reason::NetworkInUse, message)
}
