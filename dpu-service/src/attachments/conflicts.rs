//! Detects machines beyond the uplinks that use an attachment's address.
//!
//! Probes run after attaches are answered, a few each second: no ADD waits and many ADDs cause no storm. The registry
//! keeps the result with the attachment; nothing else changes. Results are not recorded: a restarted service probes all
//! attachments again at the same rate.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use bootstrap::Chain;
use netlink::{Error, Link, MacAddress, Probe, Rtnl, who_has_beyond};
use offload_proto::{ConditionReason, FindingCode, log_event, v1::Finding};

use super::{
    engine::Engine,
    operators::Operators,
    registry::{Conflicts, Entry, Registry, Users},
};
use crate::{
    conditions::Fault,
    events::EventKind,
    tasks::{blocking, ticks},
};
use drivers::programmer::Programmer;
use model::Record;

const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of attachments probed at a time.
const AT_A_TIME: usize = 32;

/// How long a probe collects answers.
const ANSWER_TIME: Duration = Duration::from_millis(600);

/// How many conflicts of a network a warning names.
const FIRST_SHOWN: usize = 2;

/// Probes the addresses of each new attachment, and again those with a known conflict. Never returns.
pub(crate) async fn watch_for_conflicts(engine: Arc<Engine>) {
    let mut ticks = ticks(PERIOD);
    loop {
        ticks.tick().await;
        probe_due(&engine).await;
    }
}

async fn probe_due(engine: &Engine) {
    let due = due(engine);
    if due.is_empty() {
        return;
    }
    let (programmer, asked) = (engine.programmer().clone(), due.clone());
    let found = blocking(move || users_of(&programmer, &asked)).await;
    let found = found.unwrap_or_else(|error| {
        tracing::warn!(reason = %Chain(&error), "cannot probe pods' addresses for other users");
        vec![None; due.len()]
    });
    for (record, users) in due.iter().zip(found) {
        note(engine, record, users);
    }
}

/// New attachments come first, the most recent before the others.
fn due(engine: &Engine) -> Vec<Arc<Record>> {
    let has_uplinks =
        |record: &Record| !engine.programmer().uplinks(record.network.bridge.as_deref()).is_empty();
    let registry = engine.registry();
    let of_entry = |entry: &Entry| {
        let (record, conflicts) = (entry.record(), entry.conflicts()?);
        let is_due = conflicts.are_due() && !record.leases.is_empty() && has_uplinks(record);
        is_due.then(|| ((!conflicts.are_new(), Reverse(record.created_at)), Arc::clone(record)))
    };
    let mut due: Vec<_> = registry.entries().iter().filter_map(of_entry).collect();
    drop(registry);
    // After the registry is unlocked: attaches wait for that lock.
    due.sort_by_key(|(order, _)| *order);
    due.into_iter().take(AT_A_TIME).map(|(_, record)| record).collect()
}

/// Returns the other users of each record's addresses. `None`: no uplink is running, so nothing was probed.
fn users_of(programmer: &Programmer, records: &[Arc<Record>]) -> Result<Vec<Option<Users>>, Error> {
    let mut rtnl = Rtnl::open()?;
    let mut probes = Vec::new();
    for record in records {
        let names = programmer.uplinks(record.network.bridge.as_deref());
        probes.push(probes_of(record, &running(&mut rtnl, names)?));
    }
    let answers = who_has_beyond(&probes.concat(), ANSWER_TIME)?;
    let users = |(record, probes): (&Arc<Record>, &Vec<Probe>)| {
        let is_foreign =
            |(probe, mac): &&(Probe, MacAddress)| *mac != record.mac && probes.contains(probe);
        let mut users = Users::new();
        for (probe, mac) in answers.iter().filter(is_foreign) {
            users.entry(probe.address).or_default().insert(*mac);
        }
        (!probes.is_empty()).then_some(users)
    };
    Ok(records.iter().zip(&probes).map(users).collect())
}

fn running(rtnl: &mut Rtnl, names: &[String]) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for name in names {
        // A probe on a link without carrier would look like an unused address.
        links.extend(rtnl.link_by_name(name)?.filter(|link| link.is_up && link.is_running));
    }
    Ok(links)
}

/// One probe for each address and uplink.
fn probes_of(record: &Record, uplinks: &[Link]) -> Vec<Probe> {
    let vlan = record.network.vlan;
    let by = |link: &Link| {
        let (link, mac) = (link.index, link.mac?);
        let addresses = record.leases.iter().map(|lease| lease.address.ip());
        Some(addresses.map(move |address| Probe { link, mac, vlan, address }))
    };
    uplinks.iter().filter_map(by).flatten().collect()
}

/// Stores the result of probes and reports what changed.
fn note(engine: &Engine, record: &Record, users: Option<Users>) {
    // `None`: the attachment has ended during the probe.
    let news = engine.registry().change(record.id).map(|entry| entry.note_probed(users));
    for (address, users) in news.into_iter().flatten() {
        if users.is_empty() {
            let message = format!("{address} is no longer used by another machine");
            engine.events.record(EventKind::AddressConflictCleared, record.id, message);
        } else {
            Conflict { record, address, users: &users }.report(engine);
        }
    }
}

struct Conflict<'a> {
    record: &'a Record,
    address: IpAddr,
    users: &'a BTreeSet<MacAddress>,
}

impl Conflict<'_> {
    fn report(&self, engine: &Engine) {
        let Record { id, network, .. } = self.record;
        tracing::warn!(
            event = log_event::ADDRESS_CONFLICT,
            attachment = %id,
            network = network.name,
            address = %self.address,
            users = self.users(),
            "another machine uses an address of an attachment"
        );
        engine.events.record(EventKind::AddressConflict, id, self.sentence());
    }

    fn sentence(&self) -> String {
        let Record { id, key, network, .. } = self.record;
        format!(
            "{} beyond the uplinks uses {} of network {}, which attachment {id} ({key}) has",
            self.users(),
            self.address,
            network.name
        )
    }

    fn users(&self) -> String {
        let names: Vec<_> = self.users.iter().map(ToString::to_string).collect();
        names.join(", ")
    }
}

fn all(registry: &Registry) -> Vec<Conflict<'_>> {
    let mut all: Vec<_> = registry.entries().iter().flat_map(conflicts_of).collect();
    all.sort_by_key(|conflict| (conflict.address, conflict.record.id));
    all
}

fn conflicts_of(entry: &Entry) -> impl Iterator<Item = Conflict<'_>> {
    let users = entry.conflicts().into_iter().flat_map(Conflicts::users);
    let record = entry.record();
    users.map(move |(address, users)| Conflict { record, address: *address, users })
}

/// One fault for each network with conflicts.
pub(super) fn faults(registry: &Registry) -> Vec<Fault> {
    let mut by_network = BTreeMap::<_, Vec<_>>::new();
    for conflict in all(registry) {
        by_network.entry(conflict.record.network.name.clone()).or_default().push(conflict);
    }
    let fault = |(network, conflicts): (String, Vec<_>)| {
        let message = message(&network, &conflicts);
        Fault::of_network(ConditionReason::AddressConflict, network, message)
    };
    by_network.into_iter().map(fault).collect()
}

fn message(network: &str, conflicts: &[Conflict<'_>]) -> String {
    let name = |Conflict { address, record, .. }: &Conflict<'_>| {
        format!("{address} of attachment {}", record.id)
    };
    let first: Vec<_> = conflicts.iter().take(FIRST_SHOWN).map(name).collect();
    format!(
        "network {network}: machines beyond the uplinks use {} of its pods' addresses, among them {}: `dpuctl doctor` names \
         all of them, and what to do",
        conflicts.len(),
        first.join(" and ")
    )
}

/// One finding for each conflict, for `dpuctl doctor`.
pub(super) fn findings(registry: &Registry) -> Vec<Finding> {
    let finding = |conflict: Conflict<'_>| {
        FindingCode::AddressConflict.of(conflict.address, conflict.sentence())
    };
    all(registry).into_iter().map(finding).collect()
}

impl Operators<'_> {
    /// Number of conflicts of each network, including networks without any.
    pub(crate) fn conflicts_by_network(self) -> BTreeMap<String, u64> {
        let registry = self.0.registry();
        let networks = registry.networks().iter().map(|entry| entry.network().name.clone());
        let mut numbers: BTreeMap<_, _> = networks.map(|name| (name, 0)).collect();
        for conflict in all(&registry) {
            *numbers.entry(conflict.record.network.name.clone()).or_default() += 1;
        }
        numbers
    }
}
