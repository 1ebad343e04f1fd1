//! Builds the inventory: the host's VFs and live attachments.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use netlink::Link;
use offload_proto::v1::{LiveAttachment, PhysicalFunction, VfCondition, VirtualFunction};
use sriov::Handover;
use vf_alloc::{Device, PfId};

use crate::{
    agent::vfs::{Cards, Host, HostLinks, Phase, Record, Vfs},
    vf_source::{self, OtherVf, VfIdentity, Whereabouts},
};

/// All VFs, by PF. `held`: VFs of ADDs in progress and of records.
pub(super) fn functions_of(
    vfs: &Vfs,
    at_home: &[(VfIdentity, &Link)],
    present: &HostLinks,
    held: &Held,
) -> Vec<PhysicalFunction> {
    let is_clean = |(vf, link): &&(VfIdentity, &Link)| vfs.cleanliness().is_clean(vf, link);
    let clean = at_home.iter().filter(is_clean).map(|(vf, _)| vf.device.clone()).collect();
    physical_functions(vfs.host().cards(), at_home, present, held, &clean)
}

/// The VFs that ADDs or records hold.
pub(super) struct Held {
    claimed: HashSet<Device>,
    pub records: Vec<Arc<Record>>,
    /// The condition to report for held VFs that were offered in the session.
    taken: VfCondition,
}

impl Held {
    /// For an inventory in a session. Claims are read before records: a VF whose claim ends in between has a record.
    pub(super) fn in_session(vfs: &Vfs) -> Self {
        let claimed = vfs.claims().devices();
        Self { claimed, records: vfs.records().all(), taken: VfCondition::Held }
    }

    /// For a hello: a new session knows no earlier offers.
    pub(super) fn at_hello(vfs: &Vfs) -> Self {
        Self { taken: VfCondition::InUse, ..Self::in_session(vfs) }
    }

    fn condition(&self, record: &Record) -> VfCondition {
        if record.offer.is_some() { self.taken } else { VfCondition::InUse }
    }
}

/// The VFs that records hold, by device. A returned VF may belong to another pod already when the DPU gets this report.
fn holders(held: &Held) -> impl Iterator<Item = (Device, VfCondition)> {
    let records = held.records.iter().filter(|record| !record.is_returned);
    records.map(|record| (record.device().clone(), held.condition(record)))
}

fn virtual_function(identity: &VfIdentity, condition: VfCondition) -> VirtualFunction {
    VirtualFunction {
        vf: identity.id.vf.into(),
        device: identity.device.to_string(),
        condition: condition.into(),
        ..VirtualFunction::default()
    }
}

/// All VFs, by PF: those in the host's namespace, of which `clean` are verified, and those that records hold elsewhere.
fn physical_functions(
    cards: Cards<'_>,
    host_vfs: &[(VfIdentity, &Link)],
    HostLinks { links, addresses }: &HostLinks,
    held: &Held,
    clean: &HashSet<Device>,
) -> Vec<PhysicalFunction> {
    let mut vfs = BTreeMap::new();
    // The agent refuses answers of the DPU with impossible VFs, so that every record has a valid one.
    for record in &held.records {
        if let Ok(identity) = record.vf() {
            let vf = virtual_function(&identity, held.condition(record));
            vfs.insert(identity.id, (identity, vf));
        }
    }
    let claimed = held.claimed.iter().map(|device| (device.clone(), held.taken));
    // A record overrides a claim of the same VF.
    let mut known: HashMap<_, _> = claimed.chain(holders(held)).collect();
    for (identity, link) in host_vfs {
        let (condition, use_by_host) = if let Some(condition) = known.get(&identity.device) {
            (*condition, String::new())
        } else if let Some(used) = vf_source::use_by_host(link, links, addresses) {
            (VfCondition::InUse, used)
        } else if clean.contains(&identity.device) {
            (VfCondition::Clean, String::new())
        } else {
            // Unavailable until it is restored or reset.
            (VfCondition::Missing, String::new())
        };
        let netdev = link.name.clone();
        let vf = VirtualFunction { netdev, use_by_host, ..virtual_function(identity, condition) };
        vfs.insert(identity.id, (identity.clone(), vf));
    }
    let at_home =
        host_vfs.iter().map(|(identity, _)| (identity.device.clone(), VfCondition::Clean));
    // The cards list all their VFs; these were handled above.
    known.extend(at_home);
    for OtherVf { identity, whereabouts } in cards.others(&|device| known.contains_key(device)) {
        let (condition, use_by_host) = match whereabouts {
            Whereabouts::HandedOver(Handover::Idle) => (VfCondition::Clean, String::new()),
            Whereabouts::HandedOver(Handover::Open) => {
                (VfCondition::InUse, vf_source::OPEN.to_owned())
            }
            Whereabouts::Elsewhere | Whereabouts::Unbound => (VfCondition::Missing, String::new()),
        };
        let vf = VirtualFunction { use_by_host, ..virtual_function(&identity, condition) };
        vfs.insert(identity.id, (identity, vf));
    }
    let mut pfs: Vec<PhysicalFunction> = Vec::new();
    for (identity, vf) in vfs.into_values() {
        let PfId { controller, pf: number } = identity.id.pf;
        match pfs.last_mut() {
            Some(pf) if (pf.controller, pf.pf) == (controller, number.into()) => pf.vfs.push(vf),
            _ => pfs.push(physical_function(cards, &identity, vf)),
        }
    }
    pfs
}

pub(super) fn log_uses(pfs: &[PhysicalFunction]) {
    for vf in pfs.iter().flat_map(|pf| &pf.vfs).filter(|vf| !vf.use_by_host.is_empty()) {
        tracing::info!(vf = vf.device, used_as = vf.use_by_host, "the host itself uses the VF");
    }
}

fn physical_function(
    cards: Cards<'_>,
    identity: &VfIdentity,
    first: VirtualFunction,
) -> PhysicalFunction {
    let facts = cards.pf_of(identity);
    PhysicalFunction {
        controller: identity.id.pf.controller,
        pf: identity.id.pf.pf.into(),
        device: facts.device.to_string(),
        vendor_id: facts.vendor_id,
        device_id: facts.device_id,
        vfs: vec![first],
    }
}

/// The live attachments, and whether their VFs are in their pods.
pub(super) fn live(
    host: &Host,
    present: &[(VfIdentity, &Link)],
    records: &[Arc<Record>],
) -> Vec<LiveAttachment> {
    let in_host: HashSet<_> = present.iter().map(|(vf, _)| &vf.device).collect();
    let kept = records.iter().filter(|record| record.phase == Phase::Live);
    kept.map(|record| LiveAttachment {
        attachment_id: record.id().to_owned(),
        key: record.attachment.key.clone(),
        in_pod: (record.key().is_of_host_port() || !in_host.contains(record.device()))
            && host.is_in_pod(record),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use offload_proto::v1;

    use super::*;
    use crate::{agent::vfs::record, vf_source::VirtualCard};

    fn link(name: &str, alias: &str) -> Link {
        let mut link = Link::default();
        (link.name, link.alias) = (name.into(), Some(alias.into()));
        link.mtu = vf_source::OWN_MTU;
        link
    }

    #[test]
    fn vfs_are_clean_in_use_or_missing() {
        let mut links = [
            link("p0v1", "virtual-nic d000:00:00.2 pf0vf1"),
            link("eth0", "virtual-nic d000:00:00.3 pf0vf2"),
            link("p1v0", "virtual-nic d001:00:00.1 pf1vf0"),
            link("p1v1", "virtual-nic d001:00:00.2 pf1vf1"),
            link("p1v2", "virtual-nic d001:00:00.3 pf1vf2"),
            link("p1v3", "virtual-nic d001:00:00.4 pf1vf3"),
            link("lo", ""),
        ];
        let mut held = record("a", "c");
        held.attachment.vf = Some(v1::Vf { device: "d000:00:00.1".into(), ..Default::default() });
        links[4].index = 5;
        links[5].is_up = true;
        let addresses = vec![(5, "10.0.0.1/24".parse().unwrap())];
        let present = HostLinks { links: links.into(), addresses };
        let card = VirtualCard::default();
        let vfs: Vec<_> = Cards::of(&card).vfs(&present.links).collect();
        let clean = HashSet::from(["d000:00:00.2".into(), "d001:00:00.1".into()]);
        let pfs = physical_functions(Cards::of(&card), &vfs, &present, &by(held), &clean);
        let conditions: Vec<_> = pfs
            .iter()
            .flat_map(|pf| pf.vfs.iter().map(|vf| (pf.pf, vf.vf, vf.condition())))
            .collect();
        assert_eq!(
            conditions,
            [
                (0, 0, VfCondition::InUse),
                (0, 1, VfCondition::Clean),
                (0, 2, VfCondition::Missing),
                (1, 0, VfCondition::Clean),
                (1, 1, VfCondition::Missing),
                (1, 2, VfCondition::InUse),
                (1, 3, VfCondition::Missing),
            ]
        );
        assert_eq!(pfs[1].device, "d001:00:00.0");
        let used = pfs.iter().flat_map(|pf| pf.vfs.iter().map(|vf| vf.use_by_host.as_str()));
        let used: Vec<_> = used.collect();
        assert_eq!(used, ["", "", "", "", "", "it has the address 10.0.0.1/24", ""]);
    }

    fn by(record: Record) -> Held {
        Held { claimed: HashSet::new(), records: vec![Arc::new(record)], taken: VfCondition::Held }
    }

    #[test]
    fn returned_vf_is_reported_clean() {
        let links = vec![link("p0v0", "virtual-nic d000:00:00.1 pf0vf0")];
        let present = HostLinks { links, addresses: Vec::new() };
        let card = VirtualCard::default();
        let vfs: Vec<_> = Cards::of(&card).vfs(&present.links).collect();
        let clean = HashSet::from(["d000:00:00.1".into()]);
        let condition = |is_returned, vfs: &[(VfIdentity, &Link)]| {
            let mut held = Record { is_returned, ..record("a", "c") };
            held.attachment.vf =
                Some(v1::Vf { device: "d000:00:00.1".into(), ..Default::default() });
            let pfs = physical_functions(Cards::of(&card), vfs, &present, &by(held), &clean);
            pfs[0].vfs[0].condition()
        };
        assert_eq!(condition(false, &vfs), VfCondition::InUse);
        assert_eq!(condition(true, &vfs), VfCondition::Clean);
        assert_eq!(condition(true, &[]), VfCondition::InUse, "listed before it came back");
    }
}
