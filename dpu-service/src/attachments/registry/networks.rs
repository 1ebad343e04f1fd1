//! Networks and their address pools, in memory.

mod addresses;
mod shape;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipam::{Pool, RestoreError};
use netlink::MacAddress;
use offload_proto::{Failure, Reason};

pub(super) use addresses::{check_families, distinct_addresses};
use shape::{Shape, in_the_way, pair};

use super::{Entries, Entry};
use crate::{
    attachments::views::{NetworkView, Origin, SubnetUsage},
    records::Cooling,
};
use drivers::fabric::mac_of;
use model::{
    AttachmentId, DomainAddress, Layer2Domain, Layer2Domains, Network, Prefixes, Record,
    allow::named_networks, check::prefixes_of,
};

/// Addresses that attachments hold, by layer-2 domain.
type Holders<'a> = HashMap<Layer2Domain, Vec<(IpAddr, &'a Record)>>;

/// All networks, by name. `addresses` has leases and cool-downs, `shape` creates and resizes pools.
#[derive(Debug, Default)]
pub(crate) struct PooledNetworks {
    by_name: BTreeMap<String, PooledNetwork>,
    /// Names by the first address of each subnet, in each domain that the network reaches.
    by_subnet: BTreeMap<DomainAddress, String>,
    /// Names by the MAC address that the network's gateway has, or would have.
    by_gateway: HashMap<MacAddress, String>,
    /// Networks of the API that are not in force. The journal keeps them.
    suspended: BTreeMap<String, Suspended>,
    /// Cool-downs as the journal has them, ended ones included until their rows are deleted.
    cool_downs: Vec<Cooling>,
    /// Duration of the cool-down, in seconds.
    cool_down: u64,
    domains: Layer2Domains,
}

/// A network with one address pool for each subnet, in the subnets' order.
#[derive(Debug)]
pub(crate) struct PooledNetwork {
    network: Arc<Network>,
    origin: Origin,
    pools: Vec<Pool<AttachmentId>>,
    /// Being deleted or renamed: takes no new attachments.
    closing: bool,
}

/// A network of the API that conflicts with others.
#[derive(Debug)]
pub(crate) struct Suspended {
    network: Network,
    /// Why, in one sentence.
    why: String,
}

/// A lease in force, or an address in cool-down, of whichever network.
enum Claim<'a> {
    Held(AttachmentId, DomainAddress),
    Cooling(&'a Cooling),
}

impl PooledNetworks {
    pub(super) fn new(cool_down: u64, domains: Layer2Domains) -> Self {
        Self { cool_down, domains, ..Self::default() }
    }

    pub(super) fn has_cool_down(&self) -> bool {
        self.cool_down > 0
    }

    /// The network of that name, or the default network.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&PooledNetwork, Failure> {
        let found = match name {
            Some(name) => self.by_name.get(name),
            None => self.by_name.values().find(|entry| entry.network.default),
        };
        // A closing network looks deleted to new attachments.
        found.filter(|entry| !entry.closing).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: Option<&str>) -> Failure {
        let suspended = name.and_then(|name| self.suspended.get(name));
        let message = match (name, suspended) {
            (Some(name), Some(Suspended { why, .. })) => {
                format!("network {name:?} is not in force: {why}")
            }
            (Some(name), None) => format!("there is no network {name:?}"),
            (None, _) => "the request names no network, and none is the default".into(),
        };
        Failure::new(Reason::NetworkUnknown, message)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&PooledNetwork> {
        self.by_name.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PooledNetwork> {
        self.by_name.values()
    }

    pub(crate) fn default_name(&self) -> Option<&str> {
        let default = self.by_name.values().find(|entry| entry.network.default);
        default.map(|entry| entry.network.name.as_str())
    }

    /// The network whose gateway has that MAC address, or would have it with `gateway_mode = "dpu"`.
    pub(super) fn with_gateway_mac(&self, mac: MacAddress) -> Option<&str> {
        self.by_gateway.get(&mac).map(String::as_str)
    }

    pub(super) fn of_origin(&self, origin: Origin) -> impl Iterator<Item = &Arc<Network>> {
        let of_origin = self.iter().filter(move |entry| entry.origin == origin);
        of_origin.map(|entry| &entry.network)
    }

    /// The prefixes of the networks that the network's rules name.
    pub(crate) fn named_in(&self, network: &Network) -> Prefixes {
        let named = named_networks(&network.allow).filter_map(|name| self.get(name));
        named.map(|entry| (entry.network.name.clone(), prefixes_of(&entry.network))).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Opens or closes the network to new attachments.
    pub(super) fn set_closing(&mut self, name: &str, closing: bool) {
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.closing = closing;
        }
    }

    /// Renames a network. Leases and cool-downs stay with it.
    pub(super) fn rename(&mut self, from: &str, renamed: Arc<Network>) {
        if let Some(entry) = self.remove(from) {
            self.insert(PooledNetwork { network: renamed, closing: false, ..entry });
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<PooledNetwork> {
        let removed = self.by_name.remove(name)?;
        // Another network may own the subnet's entry by now.
        for at in self.first_addresses(&removed.network) {
            if self.by_subnet.get(&at).is_some_and(|owner| owner == name) {
                self.by_subnet.remove(&at);
            }
        }
        self.by_gateway.remove(&mac_of(name));
        Some(removed)
    }

    fn insert(&mut self, entry: PooledNetwork) {
        let name = &entry.network.name;
        let subnets = self.first_addresses(&entry.network);
        self.by_subnet.extend(subnets.into_iter().map(|at| (at, name.clone())));
        self.by_gateway.insert(mac_of(name), name.clone());
        self.by_name.insert(name.clone(), entry);
    }

    /// The first address of each subnet in each domain that the network reaches.
    fn first_addresses(&self, network: &Network) -> Vec<DomainAddress> {
        let of_domain = |domain: Layer2Domain| {
            let subnets = network.subnets.iter().map(|subnet| subnet.cidr.network());
            subnets.map(move |address| DomainAddress { domain: domain.clone(), address })
        };
        self.domains.reached_from(network).flat_map(of_domain).collect()
    }

    /// Suspended networks of the API with their reasons.
    pub(crate) fn suspended(&self) -> impl Iterator<Item = (&str, &str)> {
        self.suspended.iter().map(|(name, suspended)| (name.as_str(), suspended.why.as_str()))
    }

    pub(crate) fn find_suspended(&self, name: &str) -> Option<&Network> {
        self.suspended.get(name).map(|suspended| &suspended.network)
    }

    pub(super) fn suspend(&mut self, network: Network, why: String) {
        self.suspended.insert(network.name.clone(), Suspended { network, why });
    }

    pub(super) fn forget_suspended(&mut self, name: &str) {
        self.suspended.remove(name);
    }

    /// Takes all suspended networks, for another attempt.
    pub(super) fn take_suspended(&mut self) -> impl Iterator<Item = Network> + use<> {
        std::mem::take(&mut self.suspended).into_values().map(|suspended| suspended.network)
    }

    /// The pool that contains the address, of whichever network. Subnets of one domain do not overlap, so only the one
    /// that starts last before the address can contain it.
    fn pool_with(&mut self, at: &DomainAddress) -> Option<&mut Pool<AttachmentId>> {
        self.network_with(at).map(|(_, pool)| pool)
    }

    fn network_with(&mut self, at: &DomainAddress) -> Option<(&Network, &mut Pool<AttachmentId>)> {
        let (first, name) = self.by_subnet.range(..=at).next_back()?;
        if first.domain != at.domain {
            return None;
        }
        let PooledNetwork { network, pools, .. } = self.by_name.get_mut(name)?;
        let pool = pools.iter_mut().find(|pool| pool.spec().cidr.contains(at.address))?;
        Some((network, pool))
    }

    /// Restores the leases of an attachment in the networks that have its addresses now.
    pub(super) fn restore_leases(&mut self, attachment: &Entry) {
        let record = attachment.record();
        let held: Vec<_> = self.domains.held_by(record).collect();
        for at in held {
            if let Some(pool) = self.pool_with(&at) {
                Claim::Held(record.id, at).restore(pool);
            }
        }
    }

    /// Restores cool-downs from the journal. Leases are restored first.
    pub(super) fn restore_cool_downs(&mut self, cool_downs: Vec<Cooling>) {
        for cool_down in &cool_downs {
            if let Some(pool) = self.pool_with(&cool_down.of.at) {
                Claim::Cooling(cool_down).restore(pool);
            }
        }
        self.cool_downs.extend(cool_downs);
    }

    /// Whether a network is still in the layer-2 domain that it was in at the attach.
    pub(crate) fn has_stayed(&self, network: &Network) -> bool {
        let now = self.get(&network.name).map(|entry| self.domains.of(&entry.network));
        now == Some(self.domains.of(network))
    }

    /// Checks that `network` can replace the one of its name.
    pub(super) fn check(&self, network: &Network, attachments: &Entries) -> Result<(), Failure> {
        if let Some(conflict) = attachments.conflict_with_host_port(network) {
            return Err(Failure::new(Reason::SubnetConflict, conflict));
        }
        self.check_used_addresses(network, attachments)?;
        self.check_trunk(network, attachments)?;
        let shape = self.shape(network, attachments);
        let before = self.by_name.get(&network.name);
        // A network that moves to another domain gets new pools: leases stay in the old domain.
        let is_leased_here =
            |entry: &&PooledNetwork| self.domains.of(&entry.network) == self.domains.of(network);
        let Some(entry) = before.filter(is_leased_here) else {
            return shape.make_pools(self.cool_down).map(drop);
        };
        let (resized, removed) = pair(network, &entry.pools);
        // Tried on copies: a refused change must leave the pools unchanged.
        for (subnet, old) in resized {
            match old {
                Some(old) => shape.check_resize(&entry.pools[old], subnet, self.cool_down)?,
                None => drop(shape.make_pool(subnet, self.cool_down)?),
            }
        }
        let removed = removed.into_iter().map(|old| &entry.pools[old]);
        match removed.flat_map(Pool::leases).next() {
            Some((key, address)) => Err(in_the_way(network, address, key)),
            None => Ok(()),
        }
    }

    /// Refuses a gateway, next hop, network or broadcast address that an attachment holds: its pod would receive the
    /// packets of the network's pods. Addresses that the network in force already uses are accepted.
    fn check_used_addresses(
        &self,
        network: &Network,
        attachments: &Entries,
    ) -> Result<(), Failure> {
        let domain = self.domains.of(network);
        let before = self.by_name.get(&network.name).map(|entry| &entry.network);
        let before = before.filter(|before| self.domains.of(before) == domain);
        let before: BTreeSet<_> =
            before.iter().flat_map(|before| before.used_addresses()).collect();
        let mut new = network.used_addresses().filter(|address| !before.contains(address));
        let held = new
            .find_map(|address| Some((address, attachments.holder_in(network, address)?.record())));
        match held {
            None => Ok(()),
            Some((address, holder)) => {
                Err(Failure::new(Reason::LeaseInTheWay, held_address(network, address, holder)))
            }
        }
    }

    /// Refuses a trunk that joins two domains in which two attachments hold the same address of the network's subnets.
    /// What the network in force already joins is accepted: it passed at a start, and a warning names it.
    fn check_trunk(&self, network: &Network, attachments: &Entries) -> Result<(), Failure> {
        let reached = |network: &Network| self.domains.reached_from(network).collect::<Vec<_>>();
        let is_in_force = self.by_name.get(&network.name).is_some_and(|entry| {
            entry.network.subnets == network.subnets && reached(&entry.network) == reached(network)
        });
        if is_in_force || network.trunk.is_empty() {
            return Ok(());
        }
        let joined = self.joined_holders(network, &self.holders(attachments));
        joined.map_or(Ok(()), |joined| Err(Failure::new(Reason::LeaseInTheWay, joined)))
    }

    fn holders<'a>(&self, attachments: &'a Entries) -> Holders<'a> {
        let mut holders = Holders::new();
        for record in attachments.iter().map(Entry::record) {
            for DomainAddress { domain, address } in self.domains.held_by(record) {
                holders.entry(domain).or_default().push((address, record));
            }
        }
        holders
    }

    /// One sentence if the network joins two domains in which two attachments hold the same address of its subnets.
    fn joined_holders(&self, network: &Network, holders: &Holders<'_>) -> Option<String> {
        let reached: BTreeSet<_> = self.domains.reached_from(network).collect();
        let mut by_address = BTreeMap::<_, BTreeMap<_, _>>::new();
        for domain in &reached {
            for (address, record) in holders.get(domain).into_iter().flatten() {
                if network.subnets.iter().any(|subnet| subnet.cidr.contains(*address)) {
                    by_address.entry(address).or_default().insert(record.id, (record, domain));
                }
            }
        }
        let (address, holders) = by_address.iter().find(|(_, holders)| holders.len() > 1)?;
        let named = holders.values().map(|(holder, domain)| {
            format!("{} of host {} in {domain}", holder.id, holder.key.host)
        });
        let holders: Vec<_> = named.collect();
        Some(format!(
            "network {}: its trunk joins attachments that hold {address}: {}. Recreate the pod of one, or leave its VLAN \
             out of the trunk",
            network.name,
            holders.join(" and ")
        ))
    }

    /// Name and one sentence of each network in force that uses an attachment's address or joins two holders of one
    /// address. A start accepts such a file, because running pods must not lose their network by it.
    pub(crate) fn conflicts_with_leases(&self, attachments: &Entries) -> Vec<(String, String)> {
        let conflict = |network: &Network| {
            network.used_addresses().find_map(|address| {
                let holder = attachments.holder_in(network, address)?.record();
                Some(format!(
                    "{}, whose pod receives what others send there: use another address, or recreate that pod",
                    held_address(network, address, holder)
                ))
            })
        };
        let networks = || self.iter().map(|entry| &*entry.network);
        let used = networks().filter_map(|it| Some((it.name.clone(), conflict(it)?)));
        let trunks: Vec<_> = networks().filter(|network| !network.trunk.is_empty()).collect();
        if trunks.is_empty() {
            return used.collect();
        }
        let holders = self.holders(attachments);
        let joined = trunks
            .iter()
            .filter_map(|it| Some((it.name.clone(), self.joined_holders(it, &holders)?)));
        used.chain(joined).collect()
    }

    /// Replaces the network of the same name. Takes over all leases and cool-downs in its subnets and domains,
    /// including those of deleted or renamed networks.
    pub(super) fn put(
        &mut self,
        network: Network,
        origin: Origin,
        attachments: &Entries,
    ) -> Result<(), Failure> {
        // First: after `remove` below, a failure would lose the network.
        self.check(&network, attachments)?;
        let shape = self.shape(&network, attachments);
        let before = self.remove(&network.name);
        // In other domains other leases count: the pools are created again.
        let before = before.filter(|entry| {
            self.domains.reached_from(&entry.network).eq(shape.reached.iter().cloned())
        });
        let mut pools = match before {
            Some(entry) => shape.change_pools(entry.pools, self.cool_down)?,
            None => shape.make_pools(self.cool_down)?,
        };
        let reached = shape.reached;
        let mut restore = |claim: Claim<'_>| claim.restore_among(&mut pools, &reached);
        for record in attachments.iter().map(Entry::record) {
            self.domains.held_by(record).for_each(|at| restore(Claim::Held(record.id, at)));
        }
        self.cool_downs.iter().map(Claim::Cooling).for_each(&mut restore);
        self.insert(PooledNetwork { network: Arc::new(network), origin, pools, closing: false });
        Ok(())
    }

    /// Excludes the addresses that the journal's attachments use.
    pub(super) fn exclude_used(&mut self, attachments: &Entries) {
        for PooledNetwork { network, pools, .. } in self.by_name.values_mut() {
            let shape = Shape::new(network, attachments, &self.domains);
            pools.iter_mut().for_each(|pool| shape.reshape(pool));
        }
    }

    fn shape<'a>(&self, network: &'a Network, attachments: &'a Entries) -> Shape<'a> {
        Shape::new(network, attachments, &self.domains)
    }

    /// Updates the pools after the end of an attachment.
    pub(super) fn note_end(&mut self, ended: &Record, attachments: &Entries) {
        self.hold_for_others(ended, attachments);
        self.update_excluded(ended, attachments);
    }

    /// Leases the addresses of an ended attachment to another holder. A pool has one holder for an address, but a file
    /// with a new trunk may have joined two domains at a start.
    fn hold_for_others(&mut self, ended: &Record, attachments: &Entries) {
        let domains = self.domains.clone();
        for DomainAddress { domain, address } in domains.held_by(ended) {
            let at = DomainAddress { domain, address };
            let Some((network, pool)) = self.network_with(&at) else { continue };
            let mut reached =
                domains.reached_from(network).map(|domain| DomainAddress { domain, address });
            if let Some(other) = reached.find_map(|at| Some(attachments.holder(&at)?.record().id)) {
                Claim::Held(other, at).restore(pool);
            }
        }
    }

    /// Returns addresses to the pools that only the ended attachment used, and excludes those it held that others use.
    fn update_excluded(&mut self, ended: &Record, attachments: &Entries) {
        let domains = self.domains.clone();
        let used = domains.used_by(ended).map(|at| (at, true));
        let held = domains.held_by(ended).map(|at| (at, false));
        for (at, was_used) in used.chain(held) {
            let Some((network, pool)) = self.network_with(&at) else { continue };
            let address = at.address;
            let mut reached = domains.reached_from(network);
            let is_used =
                reached.any(|domain| attachments.is_used(&DomainAddress { domain, address }));
            let is_excluded = pool.spec().exclude.contains(&address.into());
            // Skips the common cases: a gateway that others still use, and an address that nothing uses.
            let is_due = if was_used { !is_used && is_excluded } else { is_used && !is_excluded };
            if is_due {
                Shape::new(network, attachments, &domains).reshape(pool);
            }
        }
    }
}

fn held_address(network: &Network, address: IpAddr, holder: &Record) -> String {
    format!(
        "network {}: its {} {address} is the address of attachment {} of host {}",
        network.name,
        network.use_of(address),
        holder.id,
        holder.key.host
    )
}

impl PooledNetwork {
    pub(crate) const fn network(&self) -> &Arc<Network> {
        &self.network
    }

    pub(crate) const fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn view(&self, attachments: usize, now: u64) -> NetworkView {
        let usage = |pool: &Pool<AttachmentId>| {
            let usage = pool.usage(now);
            SubnetUsage {
                cidr: pool.spec().cidr,
                capacity: u64::try_from(usage.capacity).unwrap_or(u64::MAX),
                held: usage.held,
                cooling: usage.cooling,
            }
        };
        NetworkView {
            network: Arc::clone(&self.network),
            origin: self.origin,
            attachments,
            subnets: self.pools.iter().map(usage).collect(),
            gateway: None,
        }
    }
}

impl Claim<'_> {
    const fn at(&self) -> &DomainAddress {
        match self {
            Self::Held(_, at) => at,
            Self::Cooling(cooling) => &cooling.of.at,
        }
    }

    /// Restores the claim in the pool that contains it, if it is in one of the `reached` domains.
    fn restore_among(&self, pools: &mut [Pool<AttachmentId>], reached: &[Layer2Domain]) {
        let DomainAddress { domain, address } = self.at();
        let mut pools = pools.iter_mut();
        if reached.contains(domain)
            && let Some(pool) = pools.find(|pool| pool.spec().cidr.contains(*address))
        {
            self.restore(pool);
        }
    }

    fn restore(&self, pool: &mut Pool<AttachmentId>) {
        let address = self.at().address;
        match self {
            Self::Held(id, _) => match pool.restore(*id, address) {
                Ok(()) => {}
                // Two subnets became one, and the attachment holds an address of each: the pool leases one and never
                // frees the other.
                Err(RestoreError::KeyHoldsAnother { .. }) => pool.rest(address, u64::MAX),
                // The other holder is in a domain that a trunk has joined: see `joined_holders`.
                Err(RestoreError::InUse { .. }) => {}
                Err(error) => tracing::error!(%error, "cannot restore a lease in its subnet"),
            },
            Self::Cooling(cooling) => pool.rest(address, cooling.until),
        }
    }
}
