//! How many VFs the DPU wants the host to have.

use std::{collections::BTreeMap, sync::Arc};

use netlink::Rtnl;
use offload_proto::v1::WantedVfs;

use crate::agent::Agent;
use crate::vf_source::{self, ProvideError};

/// What the DPU wants, by controller and PF.
#[derive(Debug, Default)]
pub(in crate::agent) struct Wanted(BTreeMap<(u32, u32), Wish>);

#[derive(Clone, Debug)]
struct Wish {
    count: u32,
    /// Why it is not fulfilled, as it was told last. `None`: it is, or was not tried yet.
    obstacle: Option<String>,
}

impl Agent {
    /// The DPU wants a PF to have so many VFs.
    pub(in crate::agent) fn want_vfs(&self, wanted: &WantedVfs) {
        let wish = Wish { count: wanted.count, obstacle: None };
        self.wanted_vfs().0.insert((wanted.controller, wanted.pf), wish);
        self.poke.notify_one();
    }

    /// The DPU may no longer want what it wanted.
    pub(in crate::agent) fn forget_wanted_vfs(&self) {
        self.wanted_vfs().0.clear();
    }

    /// A VF is free again: perhaps it was the last obstacle.
    pub(in crate::agent) fn vf_became_free(&self) {
        if self.wanted_vfs().0.values().any(|wish| wish.obstacle.is_some()) {
            self.poke.notify_one();
        }
    }

    /// Gives the PFs as many VFs as the DPU wants, where no VF is in use.
    pub(in crate::agent) async fn provide_vfs(self: &Arc<Self>) {
        // Whoever waits for the lock holds up all attaches.
        if self.wanted_vfs().0.is_empty() || !self.on_a_thread(Self::is_change_due).await {
            return;
        }
        // Meanwhile no attach takes a VF.
        let _no_attach = self.vfs_stay.write().await;
        self.on_a_thread(Self::provide_vfs_now).await;
    }

    async fn on_a_thread(self: &Arc<Self>, work: fn(&Self) -> bool) -> bool {
        let agent = Arc::clone(self);
        self.look(move || work(&agent)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "changing the number of VFs failed");
            false
        })
    }

    /// Whether a PF has another number of VFs than wanted, and nothing is in the way of a change.
    fn is_change_due(&self) -> bool {
        self.is_any_due(|controller, pf, count| {
            self.source.is_change_due(controller, pf, count, &self.vfs_in_use()?)
        })
    }

    fn provide_vfs_now(&self) -> bool {
        self.is_any_due(|controller, pf, vfs| {
            let provided = self.source.provide(controller, pf, vfs, &self.vfs_in_use()?);
            if is_changed(&provided) {
                // They came anew, under names and with MAC addresses of their own.
                let renewed = self.source.vfs_of(controller, pf);
                self.originals.retain(|pci_address| !renewed.iter().any(|vf| vf == pci_address));
            }
            if provided? {
                tracing::info!(controller, pf, vfs, "the PF has as many VFs now");
            }
            Ok(false)
        })
    }

    /// Whether the answer to any wish is that a change is due. Any other answer tells what is in the
    /// way of the wish, which is logged when it is new.
    fn is_any_due(&self, is_due: impl Fn(u32, u32, u32) -> Result<bool, ProvideError>) -> bool {
        let wishes = self.wanted_vfs().0.clone();
        let mut is_any_due = false;
        for ((controller, pf), wish) in wishes {
            let error = match is_due(controller, pf, wish.count) {
                Ok(true) => {
                    is_any_due = true;
                    continue;
                }
                Ok(false) => None,
                Err(error) => Some(error),
            };
            let obstacle = error.as_ref().map(|error| bootstrap::Chain(error).to_string());
            if let Some(error) = error
                && obstacle != wish.obstacle
            {
                tell(controller, pf, wish.count, &error);
            }
            if let Some(wish) = self.wanted_vfs().0.get_mut(&(controller, pf)) {
                wish.obstacle = obstacle;
            }
        }
        is_any_due
    }

    /// The VFs that a record holds, that the host itself uses, or that serves somebody elsewhere,
    /// by PCI address.
    fn vfs_in_use(&self) -> Result<Vec<String>, netlink::Error> {
        let mut host = Rtnl::open_in(&self.host)?;
        let (links, addresses) = (host.links()?, host.all_addresses()?);
        let present: Vec<_> = vf_source::vfs(&*self.source, &links).collect();
        let is_present = |address: &str| present.iter().any(|(vf, _)| vf.pci_address == address);
        let elsewhere = self.source.other_vfs(&is_present).into_iter();
        let elsewhere = elsewhere.filter(|vf| vf.whereabouts.is_in_use());
        let used = present
            .iter()
            .filter(|(_, link)| vf_source::use_by_host(link, &links, &addresses).is_some());
        let records = self.records.all();
        Ok(records
            .iter()
            .map(|record| record.pci_address().to_owned())
            .chain(used.map(|(vf, _)| vf.pci_address.clone()))
            .chain(elsewhere.map(|vf| vf.identity.pci_address))
            .collect())
    }
}

/// Whether the VFs of a PF may have been made anew by an attempt to have another number of them.
fn is_changed(provided: &Result<bool, ProvideError>) -> bool {
    use sriov::Error::{InUse, TooMany};
    match provided {
        Ok(is_changed) => *is_changed,
        Err(ProvideError::Card(error)) => !matches!(error, InUse { .. } | TooMany { .. }),
        Err(_) => false,
    }
}

/// A card whose VFs are fixed does what it can.
fn tell(controller: u32, pf: u32, wanted: u32, error: &ProvideError) {
    let why = bootstrap::Chain(error);
    match error {
        ProvideError::Fixed => tracing::info!(controller, pf, wanted, "{why}"),
        _ => tracing::warn!(controller, pf, wanted, "the number of VFs is not as wanted: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::agent;

    #[tokio::test]
    async fn a_card_whose_vfs_are_fixed_says_so_and_waits_for_no_attach() {
        let (agent, _folder) = agent();
        agent.want_vfs(&WantedVfs { controller: 0, pf: 1, count: 16 });
        let _attach_under_way = agent.vfs_stay.read().await;
        agent.provide_vfs().await;
        let told = agent.wanted_vfs().0[&(0, 1)].obstacle.clone();
        assert_eq!(told.as_deref(), Some("this card's number of VFs can't be changed"));
        assert!(agent.is_healthy(std::time::Instant::now()));
    }

    #[tokio::test]
    async fn what_the_dpu_wanted_holds_for_a_session() {
        let (agent, _folder) = agent();
        agent.want_vfs(&WantedVfs { controller: 0, pf: 1, count: 16 });
        agent.session_began();
        assert!(agent.wanted_vfs().0.is_empty());
    }
}
