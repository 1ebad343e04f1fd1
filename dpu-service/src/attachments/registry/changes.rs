//! How networks come, change and go in memory, and how a changed configuration file is taken over.

use std::{collections::BTreeMap, sync::Arc};

use offload_proto::{Failure, Reason};
use vf_alloc::PfId;

use super::{Entry, Registry, networks::PooledNetwork};
use crate::{
    attachments::{
        settings::Configuration,
        views::{Applied, Origin},
    },
    config::{
        check_bridge, check_named_networks, check_networks, check_reaches, check_routed_subnets,
    },
    model::{GatewayMode, HostName, Network, Record, ResourceVersion, allow::named_networks},
    records::OpenError,
};

/// A network that a configuration file has changed.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) name: String,
    /// Whether it is gone.
    pub(crate) deleted: bool,
}

/// The door to changing networks. Whoever uses it holds the lock of networks, so that what was checked
/// in one hold of the registry and recorded since can still be put into force in the next.
#[derive(Debug)]
pub(crate) struct NetworkChanges<'a>(&'a mut Registry);

impl Registry {
    pub(crate) const fn change_networks(&mut self) -> NetworkChanges<'_> {
        NetworkChanges(self)
    }
}

impl NetworkChanges<'_> {
    /// The networks of the configuration and those that were made through the API.
    pub(super) fn restore(
        mut self,
        configured: Vec<Network>,
        made: Vec<Network>,
    ) -> Result<(), OpenError> {
        for network in configured {
            self.put(network, Origin::Configuration)
                .map_err(|failure| OpenError::Configuration(failure.message))?;
        }
        for network in made {
            if let Some(why) = self.put_or_suspend(network.clone()) {
                let network = network.name;
                tracing::error!(network, why, "a network of the API is not in force");
            }
        }
        Ok(())
    }

    /// The network of that name, if it can be applied anew.
    ///
    /// # Errors
    /// There is none, or it is the configuration file's.
    pub(crate) fn changeable(&self, name: &str) -> Result<Network, Failure> {
        let entry = self.0.networks.find(Some(name))?;
        match entry.origin() {
            Origin::Configuration => Err(fixed(entry.network())),
            Origin::Api => Ok(Network::clone(entry.network())),
        }
    }

    /// What applying the network would do.
    ///
    /// # Errors
    /// It can't be applied.
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
    /// An attachment got into its way since it was checked. The one of before stays.
    pub(crate) fn install(&mut self, network: Network) -> Result<(), Failure> {
        let name = network.name.clone();
        self.put(network, Origin::Api)?;
        self.0.networks.forget_suspended(&name);
        Ok(())
    }

    /// Refuses to replace another version of the network than the one that the caller has read. A network that is as
    /// requested already may have any version: the caller may be repeating itself.
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

    /// Closes a network to new attachments until it has its new name. Returns it with that name.
    ///
    /// # Errors
    /// The network can't have the name.
    pub(crate) fn begin_renaming(
        &mut self,
        name: &str,
        new_name: &str,
    ) -> Result<Network, Failure> {
        let network = self.changeable(name)?;
        let networks = &self.0.networks;
        if networks.get(new_name).is_some() || networks.is_suspended(new_name) {
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
        Ok(network.renamed(new_name))
    }

    /// An agent knows its host ports by their networks' names: under another name it would release the port and make a new
    /// one.
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

    /// The MAC address of a gateway follows from its network's name. Running pods would send to the old one until their
    /// kernels find it gone.
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

    /// A host that may use the network by its name today must be allowed to use it by the new one.
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

    /// The records that the journal is to have with the network's new name. Attachments that are being released are not
    /// among them, as a commit that deletes their records may be on its way.
    pub(crate) fn records_renamed(&self, name: &str, new_name: &str) -> Vec<Record> {
        let held = self.0.entries.held();
        held.iter().filter_map(|record| record.with_network_renamed(name, new_name)).collect()
    }

    /// The journal has the network under its new name.
    pub(crate) fn finish_renaming(&mut self, name: &str, renamed: Network) {
        self.0.entries.rename_network(name, &renamed.name);
        self.0.networks.rename(name, Arc::new(renamed));
    }

    /// Lets a network take no new attachments, if it may be deleted.
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
        // Who lets it in would let in nobody.
        self.check_unnamed(name, "allow", is_allowed_by)?;
        if !force {
            self.check_unnamed(name, "reaches", |by, name| by.reaches.contains(name))?;
        }
        self.0.networks.set_closing(name, true);
        Ok(())
    }

    /// Refuses to take away what other networks name by a key of theirs.
    fn check_unnamed(
        &self,
        name: &str,
        key: &str,
        names: impl Fn(&Network, &str) -> bool,
    ) -> Result<(), Failure> {
        let all = self.0.networks.iter().map(PooledNetwork::network);
        let by = all.filter(|by| names(by, name)).map(|by| by.name.as_str());
        match by.collect::<Vec<_>>()[..] {
            [] => Ok(()),
            ref by => Err(Failure::new(Reason::NetworkNamed, named(name, key, by))),
        }
    }

    /// It takes new attachments again, as it could not be deleted or renamed.
    pub(crate) fn reopen(&mut self, name: &str) {
        self.0.networks.set_closing(name, false);
    }

    /// It is deleted. Attachments that use it keep their snapshot of it.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.networks.remove(name);
    }

    /// A network that was not in force is deleted.
    pub(crate) fn forget_suspended(&mut self, name: &str) {
        self.0.networks.forget_suspended(name);
    }

    /// Tries again what is not in force. Returns the names of the networks that now are.
    pub(crate) fn resume(&mut self) -> Vec<String> {
        let suspended = self.0.networks.take_suspended();
        let resumed = suspended.filter_map(|network| {
            let name = network.name.clone();
            self.put_or_suspend(network).is_none().then_some(name)
        });
        resumed.collect()
    }

    /// Takes a changed configuration over: all of it or nothing. Returns the networks that differ.
    pub(crate) fn load(&mut self, configuration: Configuration) -> Result<Vec<Changed>, Failure> {
        let gone = self.configured_but_not_in(&configuration.networks);
        self.check_configuration(&configuration, &gone)?;
        let Configuration { hosts, rights, vfs: wanted_vfs, pools, networks } = configuration;
        // The last that may refuse, and then it has changed nothing either.
        self.0
            .vfs
            .replace_pools(pools)
            .map_err(|error| Failure::new(Reason::InvalidRequest, error.to_string()))?;
        self.replace_hosts(hosts, wanted_vfs);
        self.0.hosts.set_rights(rights);
        gone.iter().for_each(|name| self.0.networks.remove(name));
        let mut changed: Vec<_> =
            gone.into_iter().map(|name| Changed { name, deleted: true }).collect();
        for network in networks {
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
        first_problem(check_reaches(all.clone(), |network, _| is_of_file(network)))?;
        first_problem(check_named_networks(all, |network, _| is_of_file(network)))?;
        self.check_hosts(hosts)
    }

    /// A network of the file must not have the name of one of the API.
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

    /// A PF stays with the host whose attachments hold VFs of it: no other host could give them back. A host that is
    /// removed leaves its attachments behind.
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

    /// VFs of PFs that change hands are not to be had until their new host offers them.
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
                registry.vfs.withdraw(vf, "its host has not offered it");
                registry.vfs.end_promise(vf);
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

    /// Of the bridges that the service was started with.
    fn check_bridge(&self, network: &Network) -> Result<(), Failure> {
        match check_bridge(network, &self.0.settings.bridges) {
            Some(problem) => Err(Failure::new(Reason::InvalidRequest, problem)),
            None => Ok(()),
        }
    }

    /// Whether `network` can be in force beside those of other names.
    fn check_beside_others(&self, network: &Network) -> Result<(), Failure> {
        let all = self.0.networks.iter().map(|entry| &**entry.network());
        let others = all.filter(|other| other.name != network.name);
        self.check_together(&others.chain([network]).collect::<Vec<_>>())
    }

    /// Whether these networks can be in force together.
    fn check_together(&self, networks: &[&Network]) -> Result<(), Failure> {
        let bridges = &self.0.settings.bridges;
        first_problem(check_networks(networks.iter().copied(), bridges))?;
        let conflicts = check_routed_subnets(networks.iter().copied(), bridges);
        match conflicts.into_iter().next() {
            Some(conflict) => Err(Failure::new(Reason::SubnetConflict, conflict)),
            None => Ok(()),
        }
    }

    /// Whether `network` reaches such as there are, and can be reached by those that name it; likewise of whom
    /// its rules name. Others that are in force already stay so, whatever has become of those that they name, as
    /// by a forced deletion: they just do not reach them, or let nobody in for them.
    fn check_named(&self, network: &Network) -> Result<(), Failure> {
        let all = self.0.networks.iter().map(|entry| &**entry.network());
        let others = all.filter(|other| other.name != network.name);
        let concerns = |of: &Network, named: &str| of.name == network.name || named == network.name;
        let all: Vec<_> = others.chain([network]).collect();
        first_problem(check_reaches(all.clone(), concerns))?;
        first_problem(check_named_networks(all, concerns))
    }

    /// Puts a network of the API into force or, where it can't be, aside. Returns why it can't.
    fn put_or_suspend(&mut self, network: Network) -> Option<String> {
        let why = self.put_made(&network).err()?.message;
        self.0.networks.suspend(network, why.clone());
        Some(why)
    }

    fn put_made(&mut self, network: &Network) -> Result<(), Failure> {
        if self.0.networks.get(&network.name).is_some() {
            return Err(hidden(network));
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

fn first_problem(problems: Vec<String>) -> Result<(), Failure> {
    match problems.into_iter().next() {
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

/// Itself a network may name.
fn is_allowed_by(by: &Network, name: &str) -> bool {
    by.name != name && named_networks(&by.allow).any(|named| named == name)
}

fn named(name: &str, key: &str, by: &[&str]) -> String {
    let networks = if by.len() == 1 { "network" } else { "networks" };
    format!("network {name} is in `{key}` of {networks} {}: take it out first", by.join(", "))
}

fn in_use(name: &str, users: usize) -> Failure {
    let attachments = if users == 1 { "attachment" } else { "attachments" };
    let message = format!("network {name} is used by {users} {attachments}");
    Failure::new(Reason::NetworkInUse, message)
}
