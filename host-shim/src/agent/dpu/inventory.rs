//! What the host tells its DPU that it has.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use netlink::Link;
use offload_proto::{
    Failure, capability,
    v1::{
        Hello, Inventory, LiveAttachment, PhysicalFunction, VfCondition, VirtualFunction,
        host_message,
    },
};
use sriov::Handover;
use tokio::time::timeout;
use vf_alloc::{Device, PfId};

use super::{room::Dpu, session::protocol_versions};
use crate::{
    agent::{
        defect::locked,
        milestones::Milestone,
        vfs::{Cards, Host, HostLinks, Phase, Record, Vfs},
    },
    protocol::Key,
    vf_source::{self, VfIdentity, Whereabouts},
};

/// Links change in swarms, and with every attach: the inventory is listed when none did for so long,
/// for that is in the way of the next attach.
const CALM: Duration = Duration::from_millis(100);
/// How long changes are gathered at most.
const GATHER: Duration = Duration::from_secs(1);

impl Dpu {
    /// The first message of a session. What is under way is listed before what is recorded, so that
    /// an attach in between is in one of the lists at least.
    ///
    /// # Errors
    /// When the host's links can't be listed.
    pub(in crate::agent) async fn hello(self: &Arc<Self>) -> Result<Hello, Failure> {
        // What is in its pod by now is listed as such. Cleared before the listing: what comes into its pod after
        // it is told once this session has begun.
        locked(&self.untold).clear();
        let mut pending: HashSet<Key> = self.pending.keys().into_iter().collect();
        let (as_of_ns, present) = self.proven_links().await?;
        let vfs = Arc::clone(&self.vfs);
        let list = move || {
            let records = vfs.records().all();
            let at_home: Vec<_> = vfs.host().cards().vfs(&present.links).collect();
            let pfs = functions_of(&vfs, &at_home, &present, &records);
            let inventory = Inventory { pfs, as_of_ns };
            let live = live(vfs.host(), &at_home, &records);
            // Between the ADD that began it and the one that goes on with it no call is under way.
            let attaching = records.iter().filter(|record| record.phase == Phase::Attaching);
            let attaching: Vec<_> = attaching.map(|record| record.key()).collect();
            (inventory, live, attaching, uses_by_host(&at_home, &present, &records))
        };
        let (inventory, live, attaching, uses) = self.vfs.host().look(list).await?;
        pending.extend(attaching);
        log_uses(&uses);
        locked(&self.sent_inventory).pfs.clone_from(&inventory.pfs);
        Ok(Hello {
            protocol: Some(protocol_versions()),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            boot_id: self.boot_id.clone(),
            capabilities: capability::ALL.iter().map(ToString::to_string).collect(),
            inventory: Some(inventory),
            live,
            pending: pending.into_iter().map(Into::into).collect(),
            renewed_session_id: String::new(),
        })
    }

    /// Sends the inventory, unless the DPU has it.
    ///
    /// # Errors
    /// When the host's links can't be listed.
    async fn send_inventory(self: &Arc<Self>) -> Result<(), Failure> {
        // Taken before the listing and put back if nothing was sent: who wants it meanwhile wants a later one.
        let is_wanted_again = locked(&self.sent_inventory).begin();
        let has_it = self.tell_inventory(is_wanted_again).await;
        locked(&self.sent_inventory).is_wanted_again |=
            is_wanted_again && !matches!(has_it, Ok(true));
        has_it.map(drop)
    }

    /// Lists the inventory and sends it, unless it is as it was. Returns whether the DPU has it.
    async fn tell_inventory(self: &Arc<Self>, is_wanted_again: bool) -> Result<bool, Failure> {
        let (as_of_ns, present) = self.proven_links().await?;
        let vfs = Arc::clone(&self.vfs);
        let list = move || {
            let at_home: Vec<_> = vfs.host().cards().vfs(&present.links).collect();
            let records = vfs.records().all();
            let pfs = functions_of(&vfs, &at_home, &present, &records);
            (Inventory { pfs, as_of_ns }, uses_by_host(&at_home, &present, &records))
        };
        let (inventory, uses) = self.vfs.host().look(list).await?;
        let mut sent = locked(&self.sent_inventory);
        if sent.pfs == inventory.pfs && !is_wanted_again {
            return Ok(true);
        }
        if !self.session.send(host_message::Message::Inventory(inventory.clone())) {
            return Ok(false);
        }
        Milestone::InventorySent.pass();
        log_uses(&uses);
        sent.pfs = inventory.pfs;
        Ok(true)
    }

    async fn proven_links(&self) -> Result<(u64, HostLinks), Failure> {
        let proven = self.vfs.cleanliness().proven_links().await?;
        if proven.is_any_refuted {
            // The next pass begins to make it anew.
            self.vfs.signals().ask_for_pass();
        }
        Ok((proven.as_of_ns, proven.present))
    }

    /// Sends the inventory whenever it changed, for ever.
    pub(in crate::agent) async fn keep_inventory(self: &Arc<Self>) -> Infallible {
        let signals = self.vfs.signals();
        loop {
            signals.changed_inventory().await;
            let calm = async { while timeout(CALM, signals.changed_inventory()).await.is_ok() {} };
            let _ = timeout(GATHER, calm).await;
            if let Err(failure) = self.send_inventory().await {
                tracing::warn!("the VFs can't be listed: {failure}");
            }
        }
    }
}

/// All VFs, by PF.
fn functions_of(
    vfs: &Vfs,
    at_home: &[(VfIdentity, &Link)],
    present: &HostLinks,
    records: &[Arc<Record>],
) -> Vec<PhysicalFunction> {
    let is_clean = |(vf, link): &&(VfIdentity, &Link)| vfs.cleanliness().is_clean(vf, link);
    let clean = at_home.iter().filter(is_clean).map(|(vf, _)| vf.device.clone()).collect();
    physical_functions(vfs.host().cards(), at_home, present, records, &clean)
}

/// The VFs that records hold, by device. The DPU may have given one that is back to another pod by
/// now, and hear this after that.
fn holders(records: &[Arc<Record>]) -> impl Iterator<Item = Device> {
    records.iter().filter(|record| !record.is_returned).map(|record| record.device().clone())
}

/// All VFs, by PF: those in the host's namespace, of which some are known to be clean, and those that
/// records hold elsewhere.
fn physical_functions(
    cards: Cards<'_>,
    host_vfs: &[(VfIdentity, &Link)],
    HostLinks { links, addresses }: &HostLinks,
    records: &[Arc<Record>],
    clean: &HashSet<Device>,
) -> Vec<PhysicalFunction> {
    let mut vfs = BTreeMap::new();
    // Answers of the DPU without a VF that can be are refused, so that no record holds one.
    for identity in records.iter().filter_map(|record| record.vf().ok()) {
        vfs.insert(identity.id, (identity, VfCondition::InUse, String::new()));
    }
    let mut known: HashSet<_> = holders(records).collect();
    for (identity, link) in host_vfs {
        let condition = if known.contains(&identity.device)
            || vf_source::use_by_host(link, links, addresses).is_some()
        {
            VfCondition::InUse
        } else if clean.contains(&identity.device) {
            VfCondition::Clean
        } else {
            // Until it is restored, or made anew.
            VfCondition::Missing
        };
        vfs.insert(identity.id, (identity.clone(), condition, link.name.clone()));
    }
    known.extend(host_vfs.iter().map(|(identity, _)| identity.device.clone()));
    for vf in cards.others(&|device| known.contains(device)) {
        let condition = match vf.whereabouts {
            Whereabouts::HandedOver(Handover::Idle) => VfCondition::Clean,
            Whereabouts::HandedOver(Handover::Open) => VfCondition::InUse,
            Whereabouts::Elsewhere | Whereabouts::Unbound => VfCondition::Missing,
        };
        vfs.insert(vf.identity.id, (vf.identity, condition, String::new()));
    }
    let mut pfs: Vec<PhysicalFunction> = Vec::new();
    for (identity, condition, netdev) in vfs.into_values() {
        let PfId { controller, pf: number } = identity.id.pf;
        let vf = VirtualFunction {
            vf: identity.id.vf.into(),
            device: identity.device.to_string(),
            condition: condition.into(),
            netdev,
        };
        match pfs.last_mut() {
            Some(pf) if (pf.controller, pf.pf) == (controller, number.into()) => pf.vfs.push(vf),
            _ => pfs.push(physical_function(cards, &identity, vf)),
        }
    }
    pfs
}

/// The VFs that the host uses itself, by device, and what for. Its host ports are no such.
fn uses_by_host(
    host_vfs: &[(VfIdentity, &Link)],
    HostLinks { links, addresses }: &HostLinks,
    records: &[Arc<Record>],
) -> Vec<(Device, String)> {
    let recorded: HashSet<_> = records.iter().map(|record| record.device()).collect();
    let used = |(vf, link): &&(VfIdentity, &Link)| {
        Some((vf.device.clone(), vf_source::use_by_host(link, links, addresses)?))
    };
    let unrecorded = host_vfs.iter().filter(|(vf, _)| !recorded.contains(&vf.device));
    unrecorded.filter_map(|at_home| used(&at_home)).collect()
}

fn log_uses(uses: &[(Device, String)]) {
    for (vf, used) in uses {
        tracing::info!(vf = vf.as_str(), "not offered, for the host uses it itself: {used}");
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

/// The attachments that are being kept, and whether their VFs are in their pods.
fn live(
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
    use crate::{
        agent::{dpu::tests::dpu, vfs::record},
        vf_source::VirtualCard,
    };

    fn link(name: &str, alias: &str) -> Link {
        let mut link = Link::default();
        (link.name, link.alias) = (name.into(), Some(alias.into()));
        link.mtu = vf_source::OWN_MTU;
        link
    }

    #[test]
    fn vfs_are_clean_or_in_use_or_missing() {
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
        let pfs = physical_functions(Cards::of(&card), &vfs, &present, &[Arc::new(held)], &clean);
        let told: Vec<_> = pfs
            .iter()
            .flat_map(|pf| pf.vfs.iter().map(|vf| (pf.pf, vf.vf, vf.condition())))
            .collect();
        assert_eq!(
            told,
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
    }

    #[tokio::test]
    async fn an_inventory_that_nobody_hears_is_wanted_still() {
        let (dpu, _folder) = dpu();
        dpu.inventory_wanted();
        dpu.send_inventory().await.unwrap();
        let is_wanted_again = locked(&dpu.sent_inventory).is_wanted_again;
        assert!(is_wanted_again, "there is no session yet");
    }

    #[test]
    fn a_vf_of_which_the_dpu_is_told_that_it_is_back_is_clean() {
        let links = vec![link("p0v0", "virtual-nic d000:00:00.1 pf0vf0")];
        let present = HostLinks { links, addresses: Vec::new() };
        let card = VirtualCard::default();
        let vfs: Vec<_> = Cards::of(&card).vfs(&present.links).collect();
        let clean = HashSet::from(["d000:00:00.1".into()]);
        let told = |is_returned, vfs: &[(VfIdentity, &Link)]| {
            let mut held = Record { is_returned, ..record("a", "c") };
            held.attachment.vf =
                Some(v1::Vf { device: "d000:00:00.1".into(), ..Default::default() });
            let pfs =
                physical_functions(Cards::of(&card), vfs, &present, &[Arc::new(held)], &clean);
            pfs[0].vfs[0].condition()
        };
        assert_eq!(told(false, &vfs), VfCondition::InUse);
        assert_eq!(told(true, &vfs), VfCondition::Clean);
        assert_eq!(told(true, &[]), VfCondition::InUse, "listed before it came back");
    }
}
