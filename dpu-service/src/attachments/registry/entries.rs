//! The attachments, found by what no two of them share.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    ptr,
    sync::Arc,
};

use ipnetwork::IpNetwork;
use netlink::MacAddress;
use offload_proto::{Failure, Reason};

use super::{Entry, networks::PooledNetworks};
use crate::{
    attachments::unknown,
    model::{AttachSpec, AttachmentId, AttachmentKey, HostName, HostRights, Record},
    records::OpenError,
};

/// The shortest beginning of an id that names an attachment.
const SHORTEST_ID: usize = 4;

/// All attachments.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    by_id: HashMap<AttachmentId, Entry>,
    by_key: HashMap<AttachmentKey, AttachmentId>,
    by_mac: HashMap<MacAddress, AttachmentId>,
    /// By the key of the one that leads them.
    by_lead: HashMap<AttachmentKey, Vec<AttachmentId>>,
    /// How many attachments use an address without holding it: see [`Record::used_addresses`].
    users_of_address: BTreeMap<IpAddr, usize>,
}

impl Entries {
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

    /// The keys of those that the attachment of that key leads, or has led.
    pub(crate) fn led_by(&self, key: &AttachmentKey) -> Vec<AttachmentKey> {
        let led = self.by_lead.get(key).into_iter().flatten().filter_map(|id| self.get(*id));
        led.map(|entry| entry.record().key.clone()).collect()
    }

    /// The records of what is held and in the journal. Whoever compares them with the kernel asks
    /// for them before looking there, so that what is attached meanwhile is not taken for missing.
    pub(crate) fn held(&self) -> Vec<Arc<Record>> {
        let held = self.iter().filter(|entry| entry.is_recorded() && entry.is_held());
        held.map(|entry| Arc::clone(entry.record())).collect()
    }

    /// How many attachments use the network.
    pub(crate) fn users_of(&self, network: &str) -> usize {
        let uses = |entry: &&Entry| entry.record().networks().any(|one| one.name == network);
        self.iter().filter(uses).count()
    }

    /// Likewise, of all networks that are used.
    pub(crate) fn users(&self) -> HashMap<&str, usize> {
        let mut users = HashMap::<_, usize>::new();
        for network in self.iter().flat_map(|entry| entry.record().networks()) {
            *users.entry(network.name.as_str()).or_default() += 1;
        }
        users
    }

    /// Whether attachments to the network are on their way into the journal.
    pub(crate) fn has_unrecorded(&self, network: &str) -> bool {
        let uses = |entry: &Entry| entry.record().networks().any(|one| one.name == network);
        self.iter().any(|entry| !entry.is_recorded() && uses(entry))
    }

    /// Gives a network another name in all records.
    pub(super) fn rename_network(&mut self, from: &str, to: &str) {
        self.by_id.values_mut().for_each(|entry| entry.rename_network(from, to));
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The id that begins so.
    ///
    /// # Errors
    /// None does, or several do, or the beginning is too short to tell.
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

    /// Whether an attachment uses the address as a gateway, next hop or broadcast address.
    pub(super) fn is_used(&self, address: IpAddr) -> bool {
        self.users_of_address.contains_key(&address)
    }

    /// The addresses of a subnet that attachments use, in order.
    pub(super) fn used_in(&self, cidr: IpNetwork) -> impl Iterator<Item = IpAddr> {
        self.users_of_address.range(cidr.network()..=cidr.broadcast()).map(|(address, _)| *address)
    }

    /// Whether an attachment holds the address. Looks at every attachment.
    pub(super) fn is_held(&self, address: IpAddr) -> bool {
        let mut held = self.iter().flat_map(|entry| entry.record().held());
        held.any(|(_, lease)| lease.address.ip() == address)
    }

    /// All addresses that attachments hold, each with its network's name.
    pub(super) fn held_addresses(&self) -> HashSet<(String, IpAddr)> {
        let held = self.iter().flat_map(|entry| entry.record().held());
        held.map(|(network, lease)| (network.name.clone(), lease.address.ip())).collect()
    }

    pub(super) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut Entry> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let record = entry.record();
        self.by_mac.insert(record.mac, record.id);
        self.by_key.insert(record.key.clone(), record.id);
        if let Some(lead) = record.lead_key() {
            self.by_lead.entry(lead).or_default().push(record.id);
        }
        for address in record.used_addresses() {
            *self.users_of_address.entry(address).or_default() += 1;
        }
        self.by_id.insert(record.id, entry);
    }

    pub(super) fn remove(&mut self, id: AttachmentId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.by_mac.remove(&entry.record().mac);
        self.by_key.remove(&entry.record().key);
        self.forget_lead(entry.record());
        entry.record().used_addresses().for_each(|address| self.forget_use(address));
        Some(entry)
    }

    fn forget_use(&mut self, address: IpAddr) {
        let Some(users) = self.users_of_address.get_mut(&address) else { return };
        *users -= 1;
        if *users == 0 {
            self.users_of_address.remove(&address);
        }
    }

    fn forget_lead(&mut self, record: &Record) {
        let Some(lead) = record.lead_key() else { return };
        if let Some(led) = self.by_lead.get_mut(&lead) {
            led.retain(|id| *id != record.id);
            if led.is_empty() {
                self.by_lead.remove(&lead);
            }
        }
    }

    /// The MAC address asked for, or a free one of the prefix. Never a gateway's: whoever had it would
    /// get what is meant for the gateway.
    pub(super) fn choose_mac(
        &self,
        spec: &AttachSpec,
        rights: &HostRights,
        prefix: &[u8],
        networks: &PooledNetworks,
    ) -> Result<MacAddress, Failure> {
        let Some(mac) = spec.mac else { return self.new_mac(prefix, networks) };
        if !mac.is_unicast() {
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("{mac} is not the address of one interface: it is multicast or zero"),
            ));
        }
        if let Some(network) = networks.with_gateway_mac(mac) {
            let gateway = match rights.allows(network) {
                true => format!("the gateway of network {network}"),
                false => "a network's gateway".to_owned(),
            };
            return Err(Failure::new(
                Reason::MacInUse,
                format!("MAC address {mac} is kept for {gateway}: ask for another"),
            ));
        }
        match self.by_mac(mac) {
            Some(holder) => Err(Failure::new(
                Reason::MacInUse,
                format!(
                    "MAC address {mac} is held by {}",
                    holder.record().named_to(&spec.key.host)
                ),
            )),
            None => Ok(mac),
        }
    }

    /// The first free one from a random one on.
    fn new_mac(&self, prefix: &[u8], networks: &PooledNetworks) -> Result<MacAddress, Failure> {
        let start: u64 = rand::random();
        let mac = |number: u64| {
            let [_, _, bytes @ ..] = number.to_be_bytes();
            let mut bytes: [u8; 6] = bytes;
            let length = prefix.len().min(bytes.len());
            bytes[..length].copy_from_slice(&prefix[..length]);
            MacAddress(bytes)
        };
        let is_free = |mac: &MacAddress| {
            self.by_mac(*mac).is_none() && networks.with_gateway_mac(*mac).is_none()
        };
        // Among one more than are held there is a free one, unless the prefix leaves fewer.
        (0..=(self.len() + networks.len()) as u64)
            .map(|offset| mac(start.wrapping_add(offset)))
            .find(is_free)
            .ok_or_else(|| {
                Failure::new(Reason::Overloaded, "all MAC addresses of the prefix are held")
            })
    }
}

/// Refuses records of which two hold the same. Only a damaged journal has such, and whichever of the
/// two were believed, the other one's pod would lose what it uses.
pub(super) fn check_unshared(records: &[Record]) -> Result<(), OpenError> {
    let mut holders = HashMap::<String, &Record>::new();
    for record in records {
        for what in held_alone(record) {
            let other = holders.get(&what).filter(|other| !ptr::eq(**other, record));
            if let Some(other) = other {
                return Err(shared(&what, other, record));
            }
            holders.insert(what, record);
        }
    }
    Ok(())
}

/// What no other attachment may hold, as people call it.
fn held_alone(record: &Record) -> impl Iterator<Item = String> {
    let Record { key, vf, mac, .. } = record;
    let addresses = record.held().map(|(_, lease)| format!("address {}", lease.address.ip()));
    [format!("key {key}"), format!("VF {vf}"), format!("MAC address {mac}")]
        .into_iter()
        .chain(addresses)
}

fn shared(what: &str, one: &Record, other: &Record) -> OpenError {
    OpenError::Contradiction(format!(
        "attachments {} ({}) and {} ({}) both hold {what}: put back a copy of the journal from \
         before, or empty the hosts of these pods and move the journal away",
        one.id, one.key, other.id, other.key
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        super::examples::{entry, record},
        *,
    };

    #[test]
    fn removed_attachments_leave_nothing() {
        let mut entries = Entries::default();
        let lead = record(1);
        let members = [2, 3].map(|number| {
            let member = record(number);
            let key =
                AttachmentKey { interface_name: format!("net{number}").into(), ..lead.key.clone() };
            Record { key, lead: Some("eth0".into()), ..member }
        });
        for one in [lead.clone()].iter().chain(&members) {
            entries.insert(entry(one.clone()));
        }
        assert_eq!(entries.led_by(&lead.key).len(), 2);
        let held = entries.held_addresses();
        assert_eq!(held.len(), 3);
        assert!(held.contains(&("red".into(), "10.1.0.2".parse().unwrap())));
        let gateway = "10.1.0.254".parse().unwrap();
        for one in &members {
            assert!(entries.is_used(gateway));
            entries.remove(one.id).unwrap();
        }
        assert!(entries.by_lead.is_empty() && entries.is_used(gateway));
        entries.remove(lead.id).unwrap();
        assert!(entries.users_of_address.is_empty() && entries.by_mac.is_empty());
    }
}
