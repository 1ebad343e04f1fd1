//! All attachments, indexed by what no two of them share.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    ptr,
    sync::Arc,
};

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{Failure, Reason};

use super::Entry;
use crate::{attachments::unknown, records::OpenError};
use model::{
    AttachmentId, AttachmentKey, CooledAddress, DomainAddress, HostName, HostRights, Layer2Domain,
    Layer2Domains, Network, Record,
};

/// Minimum length of an id's prefix.
const SHORTEST_ID: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Entries {
    by_id: HashMap<AttachmentId, Entry>,
    by_key: HashMap<AttachmentKey, AttachmentId>,
    by_mac: HashMap<MacAddress, AttachmentId>,
    /// Members of a group by their group key.
    by_group: HashMap<AttachmentKey, Vec<AttachmentId>>,
    by_address: HashMap<DomainAddress, AttachmentId>,
    /// Attachments in their hosts' own namespaces.
    host_ports: HashSet<AttachmentId>,
    /// Number of attachments that use an address without holding it: see [`Record::used_addresses`].
    users_of_address: BTreeMap<DomainAddress, usize>,
    domains: Layer2Domains,
}

impl Entries {
    /// Creates an empty index. `domains` maps networks to layer-2 domains.
    pub(super) fn new(domains: Layer2Domains) -> Self {
        Self { domains, ..Self::default() }
    }

    pub(crate) fn get(&self, id: AttachmentId) -> Option<&Entry> {
        self.by_id.get(&id)
    }

    pub(crate) fn by_key(&self, key: &AttachmentKey) -> Option<&Entry> {
        self.get(*self.by_key.get(key)?)
    }

    pub(crate) fn by_mac(&self, mac: MacAddress) -> Option<&Entry> {
        self.get(*self.by_mac.get(&mac)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_id.values()
    }

    pub(crate) fn of_host<'a>(&'a self, host: &'a HostName) -> impl Iterator<Item = &'a Entry> {
        self.iter().filter(move |entry| entry.record().key.host == *host)
    }

    /// The keys of the other members of the group that this key leads.
    pub(crate) fn group_members(&self, key: &AttachmentKey) -> Vec<AttachmentKey> {
        let members = self.by_group.get(key).into_iter().flatten().filter_map(|id| self.get(*id));
        members.map(|entry| entry.record().key.clone()).collect()
    }

    /// The records that are held and in the journal. Read them before surveying the kernel: an attachment made in
    /// between would look missing.
    pub(crate) fn held(&self) -> Vec<Arc<Record>> {
        let held = self.iter().filter(|entry| entry.is_recorded() && entry.is_held());
        held.map(|entry| Arc::clone(entry.record())).collect()
    }

    /// Number of attachments that use the network.
    pub(crate) fn users_of(&self, network: &str) -> usize {
        let uses = |entry: &&Entry| entry.record().networks().any(|one| one.name == network);
        self.iter().filter(uses).count()
    }

    /// Number of attachments that use each network.
    pub(crate) fn users(&self) -> HashMap<&str, usize> {
        let mut users = HashMap::<_, usize>::new();
        for network in self.iter().flat_map(|entry| entry.record().networks()) {
            *users.entry(network.name.as_str()).or_default() += 1;
        }
        users
    }

    /// Whether attachments to the network are reserved and not recorded yet.
    pub(crate) fn has_unrecorded(&self, network: &str) -> bool {
        let uses = |entry: &Entry| entry.record().networks().any(|one| one.name == network);
        self.iter().any(|entry| !entry.is_recorded() && uses(entry))
    }

    pub(super) fn rename_network(&mut self, from: &str, to: &str) {
        self.by_id.values_mut().for_each(|entry| entry.rename_network(from, to));
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the id with that prefix.
    ///
    /// # Errors
    /// No id or several have the prefix, or the prefix is too short.
    pub(crate) fn find_id(&self, beginning: &str) -> Result<AttachmentId, Failure> {
        if beginning.len() < SHORTEST_ID {
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("{beginning:?} is too short: give at least {SHORTEST_ID} characters"),
            ));
        }
        let beginning = beginning.to_ascii_lowercase();
        let matches = |id: &&AttachmentId| id.to_string().starts_with(&beginning);
        let mut found = self.by_id.keys().filter(matches);
        match (found.next(), found.next()) {
            (Some(id), None) => Ok(*id),
            (None, _) => Err(unknown(&format_args!("{beginning:?}"))),
            (Some(first), Some(second)) => Err(Failure::new(
                Reason::InvalidRequest,
                format!("several ids begin with {beginning:?}, such as {first} and {second}"),
            )),
        }
    }

    pub(super) fn holder(&self, at: &DomainAddress) -> Option<&Entry> {
        self.get(*self.by_address.get(at)?)
    }

    /// The attachment that holds the address in the network's layer-2 domain.
    pub(super) fn holder_in(&self, network: &Network, address: IpAddr) -> Option<&Entry> {
        self.holder(&DomainAddress { domain: self.domains.of(network), address })
    }

    /// Whether an attachment uses the address as a gateway, next hop or broadcast address.
    pub(super) fn is_used(&self, at: &DomainAddress) -> bool {
        self.users_of_address.contains_key(at)
    }

    /// Addresses of a subnet that attachments use without holding them, sorted.
    pub(super) fn used_in(
        &self,
        domain: &Layer2Domain,
        cidr: IpNetwork,
    ) -> impl Iterator<Item = IpAddr> {
        let at = |address| DomainAddress { domain: domain.clone(), address };
        let used = self.users_of_address.range(at(cidr.network())..=at(cidr.broadcast()));
        used.map(|(at, _)| at.address)
    }

    /// All addresses that attachments hold, as cool-down entries.
    pub(super) fn held_addresses(&self) -> HashSet<CooledAddress> {
        let held = self.iter().flat_map(|entry| entry.record().held());
        held.map(|(network, lease)| self.domains.cooled(network, lease)).collect()
    }

    /// One sentence if the network shares a subnet with a host port's network in another layer-2 domain: the host has
    /// one routing table for both.
    pub(crate) fn conflict_with_host_port(&self, network: &Network) -> Option<String> {
        let ports = self.host_ports.iter().filter_map(|id| self.get(*id)).map(Entry::record);
        let mut theirs = ports.flat_map(|port| port.networks().map(move |its| (&port.key, its)));
        theirs.find_map(|(key, theirs)| {
            let (cidr, their_cidr) = self.domains.shared_subnet(network, theirs)?;
            Some(format!(
                "subnet {cidr} of network {:?} in {} overlaps {their_cidr} of network {:?} in {}, to which host {} has \
                 host port {}, and a host has one route to a subnet. Use another subnet, or delete the host port first",
                network.name,
                self.domains.of(network),
                theirs.name,
                self.domains.of(theirs),
                key.host,
                key.interface_name
            ))
        })
    }

    /// Checks that no network in force and no running attachment conflicts with a host port in `network`.
    pub(super) fn check_host_port<'a>(
        &'a self,
        network: &Network,
        in_force: impl Iterator<Item = &'a Network>,
        rights: &HostRights,
    ) -> Result<(), Failure> {
        let used = self.iter().flat_map(|entry| entry.record().networks()).map(|used| &**used);
        let shared =
            |other: &'a Network| Some((other, self.domains.shared_subnet(network, other)?));
        let Some((other, (cidr, _))) = in_force.chain(used).find_map(shared) else {
            return Ok(());
        };
        let other = match rights.allows(&other.name) {
            true => format!("network {} in {}", other.name, self.domains.of(other)),
            false => "another network in another layer-2 domain".to_owned(),
        };
        let message = format!(
            "network {} can have no host port: {other} overlaps its subnet {cidr}, and a host has one route to a \
             subnet. Use a network whose subnet no other network has",
            network.name
        );
        Err(Failure::new(Reason::SubnetConflict, message))
    }

    pub(super) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let record = entry.record();
        self.by_mac.insert(record.mac, record.id);
        self.by_key.insert(record.key.clone(), record.id);
        if let Some(group_key) = record.group_key() {
            self.by_group.entry(group_key).or_default().push(record.id);
        }
        if record.key.is_host_port() {
            self.host_ports.insert(record.id);
        }
        for at in self.domains.held_by(record) {
            self.by_address.insert(at, record.id);
        }
        for at in self.domains.used_by(record) {
            *self.users_of_address.entry(at).or_default() += 1;
        }
        self.by_id.insert(record.id, entry);
    }

    pub(super) fn remove(&mut self, id: AttachmentId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.by_mac.remove(&entry.record().mac);
        self.by_key.remove(&entry.record().key);
        self.host_ports.remove(&id);
        self.leave_group(entry.record());
        let held: Vec<_> = self.domains.held_by(entry.record()).collect();
        for at in &held {
            self.by_address.remove(at);
        }
        let used: Vec<_> = self.domains.used_by(entry.record()).collect();
        used.iter().for_each(|at| self.forget_use(at));
        Some(entry)
    }

    fn forget_use(&mut self, at: &DomainAddress) {
        let Some(users) = self.users_of_address.get_mut(at) else { return };
        *users -= 1;
        if *users == 0 {
            self.users_of_address.remove(at);
        }
    }

    fn leave_group(&mut self, record: &Record) {
        let Some(group_key) = record.group_key() else { return };
        if let Some(members) = self.by_group.get_mut(&group_key) {
            members.retain(|id| *id != record.id);
            if members.is_empty() {
                self.by_group.remove(&group_key);
            }
        }
    }
}

/// Refuses a journal in which two records hold the same thing. Only a damaged journal has such records. Keeping either
/// one would cut off the other's pod.
pub(super) fn check_unshared(records: &[Record], domains: &Layer2Domains) -> Result<(), OpenError> {
    let mut holders = HashMap::<String, &Record>::new();
    for record in records {
        for what in held_alone(record, domains) {
            let other = holders.get(&what).filter(|other| !ptr::eq(**other, record));
            if let Some(other) = other {
                return Err(shared(&what, other, record));
            }
            holders.insert(what, record);
        }
    }
    Ok(())
}

/// What no two attachments may hold, as text for messages.
fn held_alone(record: &Record, domains: &Layer2Domains) -> impl Iterator<Item = String> {
    let Record { key, vf, mac, .. } = record;
    let addresses =
        domains.held_by(record).map(|at| format!("address {} in {}", at.address, at.domain));
    [format!("key {key}"), format!("VF {vf}"), format!("MAC address {mac}")]
        .into_iter()
        .chain(addresses)
}

fn shared(what: &str, one: &Record, other: &Record) -> OpenError {
    OpenError::Contradiction(format!(
        "attachments {} ({}) and {} ({}) both hold {what}: restore an earlier copy of the journal, \
        or empty the hosts of these pods and move the journal away",
        one.id, one.key, other.id, other.key
    ))
}

#[cfg(test)]
mod tests {
    use super::{super::examples::record, *};

    #[test]
    fn removed_attachments_leave_nothing() {
        let mut entries = Entries::default();
        let first = record(1);
        let members = [2, 3].map(|number| {
            let member = record(number);
            let key = AttachmentKey {
                interface_name: format!("net{number}").into(),
                ..first.key.clone()
            };
            Record { key, group_interface: Some("eth0".into()), ..member }
        });
        for one in [first.clone()].iter().chain(&members) {
            entries.insert(Entry::restored(one.clone()));
        }
        assert_eq!(entries.group_members(&first.key).len(), 2);
        let domains = Layer2Domains::default();
        let held = entries.held_addresses();
        assert_eq!(held.len(), 3);
        assert!(held.contains(&domains.cooled(&members[0].network, &members[0].leases[0])));
        let domain = domains.of(&first.network);
        let gateway = DomainAddress { domain, address: "10.1.0.254".parse().unwrap() };
        for one in &members {
            assert!(entries.is_used(&gateway));
            entries.remove(one.id).unwrap();
        }
        assert!(entries.by_group.is_empty() && entries.is_used(&gateway));
        entries.remove(first.id).unwrap();
        assert!(entries.users_of_address.is_empty() && entries.by_mac.is_empty());
        assert!(entries.by_address.is_empty());
    }

    #[test]
    fn journal_may_have_an_address_in_two_domains() {
        let domains = Layer2Domains::default();
        let [one, mut other] = [1, 2].map(record);
        other.leases = one.leases.clone();
        let shown =
            check_unshared(&[one.clone(), other.clone()], &domains).unwrap_err().to_string();
        assert!(shown.contains("address 10.1.0.1 in the untagged VLAN"), "{shown}");
        Arc::make_mut(&mut other.network).vlan = Some(7);
        assert!(check_unshared(&[one.clone(), other.clone()], &domains).is_ok());
        // The pod's trunk includes the other one's VLAN, so both are in one domain.
        Arc::make_mut(&mut other.network).vlan = Some(8);
        Arc::make_mut(&mut other.network).trunk = [7].into();
        let mut third = record(3);
        Arc::make_mut(&mut third.network).vlan = Some(7);
        third.leases = one.leases;
        assert!(check_unshared(&[other, third], &domains).is_err());
    }
}
