//! The networks that there are, and their address pools. In memory only.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipam::{Pool, ResizeError, RestoreError, SubnetSpec};
use offload_proto::{Failure, Reason};

use super::views::{NetworkView, Origin, SubnetUsage};
use crate::{
    model::{AttachmentId, Network, Subnet},
    records::Cooling,
};

/// All networks, by name.
#[derive(Debug, Default)]
pub(super) struct Networks {
    by_name: BTreeMap<String, Entry>,
    /// Seconds.
    cool_down: u64,
}

/// A network and its address pools, one for each subnet, in the subnets' order.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) network: Arc<Network>,
    pub(super) origin: Origin,
    pub(super) pools: Vec<Pool<AttachmentId>>,
    /// Being deleted: takes no new attachments.
    pub(super) closing: bool,
}

/// A network of the API that can't be in force beside the others. The journal keeps it.
#[derive(Debug)]
pub(super) struct Suspended {
    pub(super) network: Network,
    /// Why, in one sentence.
    pub(super) why: String,
}

/// A lease in force, or an address that rests, whichever network it was made for.
pub(super) enum Claim<'a> {
    Held(AttachmentId, IpAddr),
    Cooling(&'a Cooling),
}

impl Networks {
    pub(super) fn new(cool_down: u64) -> Self {
        Self { by_name: BTreeMap::new(), cool_down }
    }

    /// The network of that name or, without one, the default network.
    pub(super) fn find(&self, name: Option<&str>) -> Result<&Entry, Failure> {
        let found = match name {
            Some(name) => self.by_name.get(name),
            None => self.by_name.values().find(|entry| entry.network.default),
        };
        found.filter(|entry| !entry.closing).ok_or_else(|| unknown(name))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.by_name.get_mut(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_name.values()
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// The pools that `address` lies in, whichever network it was leased for: at most one, as subnets
    /// are apart.
    pub(super) fn pools_with(
        &mut self,
        address: IpAddr,
    ) -> impl Iterator<Item = &mut Pool<AttachmentId>> {
        let pools = self.by_name.values_mut().flat_map(|entry| &mut entry.pools);
        pools.filter(move |pool| pool.spec().cidr.contains(address))
    }

    /// Whether `network` can be put in the place of the one of its name.
    pub(super) fn check(&self, network: &Network) -> Result<(), Failure> {
        let Some(entry) = self.by_name.get(&network.name) else {
            return make_pools(network, self.cool_down).map(drop);
        };
        let (resized, removed) = pair(network, &entry.pools);
        for (subnet, old) in resized {
            match old {
                Some(old) => check_resize(network, &entry.pools[old], subnet, self.cool_down)?,
                None => drop(make_pool(network, subnet, self.cool_down)?),
            }
        }
        let removed = removed.into_iter().map(|old| &entry.pools[old]);
        match removed.flat_map(Pool::leases).next() {
            Some((key, address)) => Err(in_the_way(network, address, key)),
            None => Ok(()),
        }
    }

    /// Puts `network` in the place of the one of its name. Of `claims`, its pools take note of those
    /// that lie in its subnets.
    pub(super) fn put<'a>(
        &mut self,
        network: Network,
        origin: Origin,
        claims: impl Iterator<Item = Claim<'a>>,
    ) -> Result<(), Failure> {
        self.check(&network)?;
        let mut pools = match self.by_name.remove(&network.name) {
            Some(entry) => change_pools(&network, entry.pools, self.cool_down)?,
            None => make_pools(&network, self.cool_down)?,
        };
        claims.for_each(|claim| restore(&mut pools, &claim));
        let name = network.name.clone();
        let entry = Entry { network: Arc::new(network), origin, pools, closing: false };
        self.by_name.insert(name, entry);
        Ok(())
    }
}

impl Entry {
    pub(super) fn view(&self, attachments: usize, now: u64) -> NetworkView {
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
        }
    }
}

/// Puts a lease or a resting address back into the pool that it lies in, if any does.
fn restore(pools: &mut [Pool<AttachmentId>], claim: &Claim<'_>) {
    let address = match claim {
        Claim::Held(_, address) => *address,
        Claim::Cooling(cooling) => cooling.address,
    };
    let Some(pool) = pools.iter_mut().find(|pool| pool.spec().cidr.contains(address)) else {
        return;
    };
    match claim {
        Claim::Held(id, _) => match pool.restore(*id, address) {
            Ok(()) => {}
            // A subnet that was two has two addresses of one attachment, and keeps one for it.
            Err(RestoreError::KeyHoldsAnother { .. }) => pool.rest(address, u64::MAX),
            Err(error) => tracing::error!(%error, "the journal contradicts itself"),
        },
        Claim::Cooling(cooling) => pool.rest(address, cooling.until),
    }
}

/// For each subnet of `network` the position of the pool that it takes over, and the positions of
/// those that none takes over. A subnet takes over a pool that lies in it, or that it lies in.
fn pair<'a>(
    network: &'a Network,
    pools: &[Pool<AttachmentId>],
) -> (Vec<(&'a Subnet, Option<usize>)>, Vec<usize>) {
    let mut left: Vec<usize> = (0..pools.len()).collect();
    let mut take = |subnet: &'a Subnet| {
        let overlaps = |&old: &usize| {
            let old = pools[old].spec().cidr;
            old.contains(subnet.cidr.ip()) || subnet.cidr.contains(old.ip())
        };
        let found = left.iter().position(overlaps).map(|position| left.remove(position));
        (subnet, found)
    };
    let paired = network.subnets.iter().map(&mut take).collect();
    (paired, left)
}

fn change_pools(
    network: &Network,
    old: Vec<Pool<AttachmentId>>,
    cool_down: u64,
) -> Result<Vec<Pool<AttachmentId>>, Failure> {
    let (paired, _) = pair(network, &old);
    let mut old: Vec<_> = old.into_iter().map(Some).collect();
    let mut change = |(subnet, position): (&Subnet, Option<usize>)| match position
        .and_then(|position| old[position].take())
    {
        Some(mut pool) => {
            pool.resize(spec_of(subnet)).map_err(|error| resize_failure(network, &error))?;
            Ok(pool)
        }
        None => make_pool(network, subnet, cool_down),
    };
    paired.into_iter().map(&mut change).collect()
}

/// Tries a change on a copy of the pool.
fn check_resize(
    network: &Network,
    pool: &Pool<AttachmentId>,
    subnet: &Subnet,
    cool_down: u64,
) -> Result<(), Failure> {
    let defect = |error: &dyn std::error::Error| Failure::new(Reason::Internal, error.to_string());
    let mut copy = Pool::new(pool.spec().clone(), cool_down).map_err(|error| defect(&error))?;
    for (key, address) in pool.leases() {
        copy.restore(*key, address).map_err(|error| defect(&error))?;
    }
    copy.resize(spec_of(subnet)).map_err(|error| resize_failure(network, &error))
}

fn make_pools(network: &Network, cool_down: u64) -> Result<Vec<Pool<AttachmentId>>, Failure> {
    network.subnets.iter().map(|subnet| make_pool(network, subnet, cool_down)).collect()
}

fn make_pool(
    network: &Network,
    subnet: &Subnet,
    cool_down: u64,
) -> Result<Pool<AttachmentId>, Failure> {
    Pool::new(spec_of(subnet), cool_down).map_err(|error| {
        Failure::new(Reason::InvalidRequest, format!("network {}: {error}", network.name))
    })
}

fn spec_of(subnet: &Subnet) -> SubnetSpec {
    SubnetSpec {
        cidr: subnet.cidr,
        gateway: subnet.gateway,
        ranges: subnet.ranges.iter().map(|range| (range.start, range.end)).collect(),
        exclude: subnet.exclude.clone(),
    }
}

fn resize_failure(network: &Network, error: &ResizeError<AttachmentId>) -> Failure {
    match error {
        ResizeError::LeaseInTheWay { key, address } => in_the_way(network, *address, key),
        ResizeError::Spec(error) => {
            Failure::new(Reason::InvalidRequest, format!("network {}: {error}", network.name))
        }
    }
}

fn in_the_way(network: &Network, address: IpAddr, holder: &AttachmentId) -> Failure {
    Failure::new(
        Reason::LeaseInTheWay,
        format!(
            "network {}: address {address} is held by attachment {holder} and has no place in the \
             changed subnets",
            network.name
        ),
    )
}

fn unknown(name: Option<&str>) -> Failure {
    let message = match name {
        Some(name) => format!("there is no network {name:?}"),
        None => "the request names no network, and none is the default".into(),
    };
    Failure::new(Reason::NetworkUnknown, message)
}
