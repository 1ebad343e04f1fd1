//! What the host tells its DPU that it has.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
};

use netlink::{IpNetwork, Link, Rtnl};
use offload_proto::{
    Failure, Reason, capability,
    v1::{
        Hello, Inventory, LiveAttachment, PhysicalFunction, VfCondition, VirtualFunction,
        host_message,
    },
};
use sriov::Handover;

use super::{calls::nanoseconds_since_boot, session::protocol_versions};
use crate::agent::{
    Agent,
    milestones::Milestone,
    vfs::place,
    vfs::records::{Phase, Record},
};
use crate::{
    protocol::Key,
    vf_source::{self, VfIdentity, VfSource, Whereabouts},
};

/// What the DPU was told last.
#[derive(Debug, Default)]
pub(in crate::agent) struct SentInventory {
    pub pfs: Vec<PhysicalFunction>,
    /// It is to be told once more, even if nothing changed.
    pub is_wanted_again: bool,
}

impl SentInventory {
    /// Whether it is wanted again. Whoever wants it from here on wants one that is listed later.
    fn begin(&mut self) -> bool {
        mem::take(&mut self.is_wanted_again)
    }
}

impl Agent {
    /// The first message of a session. What is under way is listed before what is recorded, so that
    /// an attach in between is in one of the lists at least.
    ///
    /// # Errors
    /// When the host's links can't be listed.
    pub(in crate::agent) async fn hello(self: &Arc<Self>) -> Result<Hello, Failure> {
        // What is in its pod by now is listed as such.
        self.untold().clear();
        let mut pending: HashSet<Key> = self.pending.keys().into_iter().collect();
        let (as_of_ns, present) = self.links_with_proofs().await?;
        let agent = Arc::clone(self);
        let list = move || {
            let records = agent.records.all();
            let vfs: Vec<_> = vf_source::vfs(&*agent.source, &present.links).collect();
            let pfs = agent.physical_functions(&vfs, &present, &records);
            let inventory = Inventory { pfs, as_of_ns };
            let live = live(&*agent.source, &vfs, &records);
            // Between the ADD that began it and the one that goes on with it no call is under way.
            let attaching = records.iter().filter(|record| record.phase == Phase::Attaching);
            let attaching: Vec<_> = attaching.map(|record| record.key()).collect();
            (inventory, live, attaching, uses_by_host(&vfs, &present))
        };
        let (inventory, live, attaching, uses) = self.look(list).await?;
        pending.extend(attaching);
        log_uses(&uses);
        self.sent_inventory().pfs.clone_from(&inventory.pfs);
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
    pub(in crate::agent) async fn send_inventory(self: &Arc<Self>) -> Result<(), Failure> {
        let is_wanted_again = self.sent_inventory().begin();
        let has_it = self.tell_inventory(is_wanted_again).await;
        self.sent_inventory().is_wanted_again |= is_wanted_again && !matches!(has_it, Ok(true));
        has_it.map(drop)
    }

    /// Lists the inventory and sends it, unless it is as it was. Returns whether the DPU has it.
    async fn tell_inventory(self: &Arc<Self>, is_wanted_again: bool) -> Result<bool, Failure> {
        let (as_of_ns, present) = self.links_with_proofs().await?;
        let agent = Arc::clone(self);
        let list = move || {
            let vfs: Vec<_> = vf_source::vfs(&*agent.source, &present.links).collect();
            let pfs = agent.physical_functions(&vfs, &present, &agent.records.all());
            (Inventory { pfs, as_of_ns }, uses_by_host(&vfs, &present))
        };
        let (inventory, uses) = self.look(list).await?;
        let mut sent = self.sent_inventory();
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

    /// The links of the host's namespace. Records are to be listed after them:
    /// a VF that leaves has one.
    pub(in crate::agent) fn host_links(&self) -> Result<HostLinks, netlink::Error> {
        let mut host = Rtnl::open_in(&self.host)?;
        Ok(HostLinks { links: host.links()?, addresses: host.all_addresses()? })
    }

    /// Lists what the host has.
    ///
    /// # Errors
    /// When it can't be listed.
    pub(in crate::agent) async fn listed<T: Send + 'static>(
        &self,
        list: impl FnOnce() -> Result<T, netlink::Error> + Send + 'static,
    ) -> Result<T, Failure> {
        let listed = self.look(list).await?;
        listed.map_err(|error| Failure::new(Reason::Internal, error.to_string()))
    }

    /// The links of the host's namespace, and when they were listed. Of the free VFs among them it is known
    /// by now whether they are as they were.
    async fn links_with_proofs(self: &Arc<Self>) -> Result<(u64, HostLinks), Failure> {
        let agent = Arc::clone(self);
        let list = move || {
            let as_of_ns = nanoseconds_since_boot();
            let present = agent.host_links()?;
            agent.learn_originals(&present);
            let seen = agent.see(&agent.free_without_proof(&present))?;
            Ok((as_of_ns, present, seen))
        };
        let (as_of_ns, present, seen) = self.listed(list).await?;
        let found = self.prove(seen).await?;
        if found.values().any(|differences| !differences.is_empty()) {
            // The next pass begins to make it anew.
            self.poke.notify_one();
        }
        Ok((as_of_ns, present))
    }

    /// The free VFs that look clean at first sight, and were not looked at any closer, with their links'
    /// indices.
    fn free_without_proof(&self, present: &HostLinks) -> Vec<(VfIdentity, u32)> {
        let unproven = vf_source::vfs(&*self.source, &present.links).filter(|(vf, link)| {
            self.is_free(vf, link, present)
                && self.looks_clean(vf, link)
                && self.proofs.of(vf, link).is_none()
        });
        unproven.map(|(vf, link)| (vf, link.index)).collect()
    }

    /// All VFs, by PF.
    fn physical_functions(
        &self,
        vfs: &[(VfIdentity, &Link)],
        present: &HostLinks,
        records: &[Arc<Record>],
    ) -> Vec<PhysicalFunction> {
        let is_clean = |(vf, link): &&(VfIdentity, &Link)| {
            self.looks_clean(vf, link) && self.proofs.is_proven(vf, link)
        };
        let clean = vfs.iter().filter(is_clean).map(|(vf, _)| vf.pci_address.clone()).collect();
        physical_functions(&*self.source, vfs, present, records, &clean)
    }
}

/// The VFs that records hold, by PCI address. The DPU may have given one that is back to another pod by
/// now, and hear this after that.
fn holders(records: &[Arc<Record>]) -> impl Iterator<Item = &str> {
    records.iter().filter(|record| !record.is_returned).map(|record| record.pci_address())
}

/// What is in the host's namespace.
pub(in crate::agent) struct HostLinks {
    pub links: Vec<Link>,
    /// Each with its link's index.
    pub addresses: Vec<(u32, IpNetwork)>,
}

/// All VFs, by PF: those in the host's namespace, of which some are known to be clean, and those that
/// records hold elsewhere.
fn physical_functions(
    source: &dyn VfSource,
    host_vfs: &[(VfIdentity, &Link)],
    HostLinks { links, addresses }: &HostLinks,
    records: &[Arc<Record>],
    clean: &HashSet<String>,
) -> Vec<PhysicalFunction> {
    let mut vfs = BTreeMap::new();
    for record in records {
        let identity = record.vf();
        vfs.insert(order(&identity), (identity, VfCondition::InUse, String::new()));
    }
    let mut known: HashSet<_> = holders(records).map(str::to_owned).collect();
    for (identity, link) in host_vfs {
        let condition = if known.contains(&identity.pci_address)
            || vf_source::use_by_host(link, links, addresses).is_some()
        {
            VfCondition::InUse
        } else if clean.contains(&identity.pci_address) {
            VfCondition::Clean
        } else {
            // Until it is restored, or made anew.
            VfCondition::Missing
        };
        vfs.insert(order(identity), (identity.clone(), condition, link.name.clone()));
    }
    known.extend(host_vfs.iter().map(|(identity, _)| identity.pci_address.clone()));
    for vf in source.other_vfs(&|address| known.contains(address)) {
        let condition = match vf.whereabouts {
            Whereabouts::HandedOver(Handover::Idle) => VfCondition::Clean,
            Whereabouts::HandedOver(Handover::Open) => VfCondition::InUse,
            Whereabouts::Elsewhere | Whereabouts::Unbound => VfCondition::Missing,
        };
        vfs.insert(order(&vf.identity), (vf.identity, condition, String::new()));
    }
    let mut pfs: Vec<PhysicalFunction> = Vec::new();
    for (identity, condition, netdev) in vfs.into_values() {
        let vf = VirtualFunction {
            vf: identity.vf,
            pci_address: identity.pci_address.clone(),
            condition: condition.into(),
            netdev,
        };
        match pfs.last_mut() {
            Some(pf) if (pf.controller, pf.pf) == (identity.controller, identity.pf) => {
                pf.vfs.push(vf);
            }
            _ => pfs.push(physical_function(source, &identity, vf)),
        }
    }
    pfs
}

/// The VFs that the host uses itself, by PCI address, and what for.
fn uses_by_host(
    host_vfs: &[(VfIdentity, &Link)],
    HostLinks { links, addresses }: &HostLinks,
) -> Vec<(String, String)> {
    let used = |(vf, link): &(VfIdentity, &Link)| {
        Some((vf.pci_address.clone(), vf_source::use_by_host(link, links, addresses)?))
    };
    host_vfs.iter().filter_map(used).collect()
}

fn log_uses(uses: &[(String, String)]) {
    for (vf, used) in uses {
        tracing::info!(vf, "not offered, for the host uses it itself: {used}");
    }
}

fn order(identity: &VfIdentity) -> (u32, u32, u32) {
    (identity.controller, identity.pf, identity.vf)
}

fn physical_function(
    source: &dyn VfSource,
    identity: &VfIdentity,
    first: VirtualFunction,
) -> PhysicalFunction {
    let facts = source.pf_of(identity);
    PhysicalFunction {
        controller: identity.controller,
        pf: identity.pf,
        pci_address: facts.pci_address,
        vendor_id: facts.vendor_id,
        device_id: facts.device_id,
        vfs: vec![first],
    }
}

/// The attachments that are being kept, and whether their VFs are in their pods.
fn live(
    source: &dyn VfSource,
    present: &[(VfIdentity, &Link)],
    records: &[Arc<Record>],
) -> Vec<LiveAttachment> {
    let in_host: HashSet<_> = present.iter().map(|(vf, _)| vf.pci_address.as_str()).collect();
    let kept = records.iter().filter(|record| record.phase == Phase::Live);
    kept.map(|record| LiveAttachment {
        attachment_id: record.id().to_owned(),
        key: record.attachment.key.clone(),
        in_pod: !in_host.contains(record.pci_address()) && place::is_in_pod(source, record),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use offload_proto::v1;

    use super::*;
    use crate::{
        agent::{tests::agent, vfs::records::tests::record},
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
        held.attachment.vf =
            Some(v1::Vf { pci_address: "d000:00:00.1".into(), ..Default::default() });
        links[4].index = 5;
        links[5].is_up = true;
        let addresses = vec![(5, "10.0.0.1/24".parse().unwrap())];
        let present = HostLinks { links: links.into(), addresses };
        let vfs: Vec<_> = vf_source::vfs(&VirtualCard::default(), &present.links).collect();
        let clean = HashSet::from(["d000:00:00.2".to_owned(), "d001:00:00.1".to_owned()]);
        let pfs =
            physical_functions(&VirtualCard::default(), &vfs, &present, &[Arc::new(held)], &clean);
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
        assert_eq!(pfs[1].pci_address, "d001:00:00.0");
    }

    #[tokio::test]
    async fn an_inventory_that_nobody_hears_is_wanted_still() {
        let (agent, _folder) = agent();
        agent.inventory_wanted();
        agent.send_inventory().await.unwrap();
        assert!(agent.sent_inventory().is_wanted_again, "there is no session yet");
    }

    #[test]
    fn a_vf_of_which_the_dpu_is_told_that_it_is_back_is_clean() {
        let links = vec![link("p0v0", "virtual-nic d000:00:00.1 pf0vf0")];
        let present = HostLinks { links, addresses: Vec::new() };
        let vfs: Vec<_> = vf_source::vfs(&VirtualCard::default(), &present.links).collect();
        let clean = HashSet::from(["d000:00:00.1".to_owned()]);
        let told = |is_returned, vfs: &[(VfIdentity, &Link)]| {
            let mut held = Record { is_returned, ..record("a", "c") };
            held.attachment.vf =
                Some(v1::Vf { pci_address: "d000:00:00.1".into(), ..Default::default() });
            let pfs = physical_functions(
                &VirtualCard::default(),
                vfs,
                &present,
                &[Arc::new(held)],
                &clean,
            );
            pfs[0].vfs[0].condition()
        };
        assert_eq!(told(false, &vfs), VfCondition::InUse);
        assert_eq!(told(true, &vfs), VfCondition::Clean);
        assert_eq!(told(true, &[]), VfCondition::InUse, "listed before it came back");
    }
}
