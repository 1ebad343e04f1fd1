//! Which VFs are kept for ADDs that are under way.
//!
//! An ADD has its VFs to itself from before the DPU is asked for them until they are recorded, or given back: the DPU
//! programs them as soon as it answers, and one that lay in another pod by then, having been guessed for that, would
//! speak there in the name of this one. So each ADD claims the VFs that it wishes for. One that has none to wish for tells
//! the DPU which are kept for others. A VF that is claimed while such a one is under way is not moved before the DPU has
//! given it: the DPU might be about to give it to that one.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use tokio::sync::watch;
use vf_alloc::{Device, Policy};

use super::{cleanliness::Cleanliness, host::Host, renewal::Renewer};
use crate::agent::defect::locked;

/// The VFs of a pool that anybody may get.
#[derive(Clone, Debug)]
pub(in crate::agent) struct OpenPool {
    /// Which PF comes first.
    pub policy: Policy,
    pub by_pf: Vec<Vec<Device>>,
}

impl Default for OpenPool {
    fn default() -> Self {
        Self { policy: Policy::Spread, by_pf: Vec::new() }
    }
}

/// What keeps VFs for ADDs.
#[derive(Debug)]
pub(in crate::agent) struct Claims {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    ledger: Arc<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    entries: Mutex<Entries>,
    /// Counts the claims that have ended.
    ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Entries {
    claimed: HashSet<Device>,
    /// The one of a PF that was claimed last, by the first one: the next is one behind it, so that each rests for long.
    last: HashMap<Device, Device>,
    /// How many attaches are under way that name no VF.
    unnamed: usize,
}

impl Entries {
    /// The VFs of a PF, in turn.
    fn in_turn<'a>(&self, vfs: &'a [Device]) -> impl Iterator<Item = &'a Device> {
        let last = vfs.first().and_then(|first| self.last.get(first));
        let after_last = last.and_then(|last| vfs.iter().position(|device| device == last));
        let (before, behind) = vfs.split_at(after_last.map_or(0, |at| at + 1));
        behind.iter().chain(before)
    }
}

/// A VF that is kept for an ADD until this is dropped.
#[derive(Debug)]
pub(in crate::agent) struct Claimed {
    device: Device,
    is_unrivalled: bool,
    ledger: Arc<Ledger>,
}

impl Claimed {
    /// The VF.
    pub(in crate::agent) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether no attach that is under way may be given it that has named none.
    pub(in crate::agent) fn is_unrivalled(&self) -> bool {
        self.is_unrivalled
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        locked(&self.ledger.entries).claimed.remove(&self.device);
        self.ledger.ended.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Whatever is claimed until this is dropped has a rival: an attach is under way that names no VF.
#[derive(Debug)]
pub(in crate::agent) struct Unnamed {
    ledger: Arc<Ledger>,
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        locked(&self.ledger.entries).unnamed -= 1;
    }
}

impl Claims {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewer: Arc::clone(renewer),
            ledger: Arc::default(),
        }
    }

    /// One of a pool's VFs that nobody has, that the DPU has not `kept`, and that was clean when it was looked at last.
    pub(in crate::agent) fn claim(
        &self,
        pool: &OpenPool,
        is_kept: impl Fn(&Device) -> bool,
    ) -> Option<Claimed> {
        let mut entries = locked(&self.ledger.entries);
        let is_to_be_had = |device: &&Device| {
            !entries.claimed.contains(*device)
                && !is_kept(device)
                && self.host.records().by_device(device).is_none()
                && !self.renewer.is_under_way(device)
                && self.cleanliness.proofs().was_proven(device)
        };
        let vfs = match &pool.by_pf[..] {
            [only] => only,
            several => {
                // As the DPU chooses.
                let free = several.iter().map(|vfs| (vfs, vfs.iter().filter(is_to_be_had).count()));
                let having = free.filter(|(_, free)| *free > 0);
                match pool.policy {
                    Policy::Spread => having.min_by_key(|(_, free)| Reverse(*free)),
                    Policy::Pack => having.min_by_key(|(_, free)| *free),
                }?
                .0
            }
        };
        let device = entries.in_turn(vfs).find(is_to_be_had)?.clone();
        entries.last.insert(vfs[0].clone(), device.clone());
        entries.claimed.insert(device.clone());
        Some(self.claimed(device, &entries))
    }

    /// That very VF, once nobody else's ADD that is under way has it.
    pub(in crate::agent) async fn claim_named(&self, device: &Device) -> Claimed {
        let mut ended = self.ledger.ended.subscribe();
        loop {
            if let Some(claimed) = self.try_claim(device) {
                return claimed;
            }
            // The sender lives as long as the ledger.
            let _ = ended.changed().await;
        }
    }

    fn try_claim(&self, device: &Device) -> Option<Claimed> {
        let mut entries = locked(&self.ledger.entries);
        let is_new = entries.claimed.insert(device.clone());
        is_new.then(|| self.claimed(device.clone(), &entries))
    }

    fn claimed(&self, device: Device, entries: &Entries) -> Claimed {
        let is_unrivalled = entries.unnamed == 0;
        Claimed { device, is_unrivalled, ledger: Arc::clone(&self.ledger) }
    }

    /// An attach begins that names no VF. Tells which ones are kept for others, or are still away from home for one that
    /// was not given them.
    pub(in crate::agent) fn begin_unnamed(&self) -> (Unnamed, Vec<Device>) {
        let mut entries = locked(&self.ledger.entries);
        entries.unnamed += 1;
        let guessed = self.host.records().guesses().into_iter();
        let guessed = guessed.map(|record| record.device().clone());
        let others: HashSet<_> = entries.claimed.iter().cloned().chain(guessed).collect();
        (Unnamed { ledger: Arc::clone(&self.ledger) }, others.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::{task::yield_now, time::timeout};
    use vf_alloc::FunctionId;

    use super::*;
    use crate::{
        agent::vfs::{
            proofs::Seen,
            records::{
                Record,
                tests::{keep, record},
            },
            room::{Vfs, tests::vfs},
        },
        vf_source::VfIdentity,
    };

    fn pool(by_pf: &[&[&str]], policy: Policy) -> OpenPool {
        let of_pf = |names: &&[&str]| names.iter().map(|name| Device::from(*name)).collect();
        OpenPool { policy, by_pf: by_pf.iter().map(of_pf).collect() }
    }

    /// Has the VFs count as clean.
    fn prove(vfs: &Vfs, pool: &OpenPool) {
        for device in pool.by_pf.iter().flatten() {
            let vf = VfIdentity { id: FunctionId::local(0, 1), device: device.clone() };
            let seen = Seen::new(vf, 7, Instant::now(), Vec::new()).made_just_now();
            assert!(vfs.cleanliness().proofs().conclude(seen, &Arc::default()).is_empty());
        }
    }

    #[tokio::test]
    async fn a_vf_is_claimed_by_one_at_a_time_and_each_has_its_turn() {
        let (vfs, _folder) = vfs();
        let pool = pool(&[&["pci-a", "pci-b", "pci-c"]], Policy::Spread);
        assert!(vfs.claims().claim(&pool, |_| false).is_none(), "none was looked at");
        prove(&vfs, &pool);
        let claim = || {
            let claimed = vfs.claims().claim(&pool, |_| false);
            claimed.map(|claimed| claimed.device().to_string())
        };
        let in_turn = [claim(), claim(), claim(), claim()].map(Option::unwrap);
        assert_eq!(in_turn, ["pci-a", "pci-b", "pci-c", "pci-a"]);
        let held = vfs.claims().claim(&pool, |_| false).unwrap();
        assert_eq!(held.device().as_str(), "pci-b");
        keep(vfs.records(), record("c", "holder"));
        assert_eq!([claim(), claim()].map(Option::unwrap), ["pci-a", "pci-a"], "one is left");
        drop(held);
        assert_eq!(claim().unwrap(), "pci-b");
        let kept = vfs.claims().claim(&pool, |device| device.as_str() != "pci-a");
        assert_eq!(kept.unwrap().device().as_str(), "pci-a", "the DPU keeps the other");
        assert!(vfs.claims().claim(&OpenPool::default(), |_| false).is_none());
    }

    #[tokio::test]
    async fn of_several_pfs_the_one_is_claimed_of_that_the_pool_prefers() {
        for (policy, chosen) in [(Policy::Spread, "pci-c"), (Policy::Pack, "pci-a")] {
            let (vfs, _folder) = vfs();
            let pool = pool(&[&["pci-a", "pci-b"], &["pci-c", "pci-d", "pci-e"], &[]], policy);
            prove(&vfs, &pool);
            let claimed = vfs.claims().claim(&pool, |_| false);
            assert_eq!(claimed.unwrap().device().as_str(), chosen);
        }
    }

    /// The DPU may be about to give it to the one that names none.
    #[tokio::test]
    async fn beside_an_attach_that_names_no_vf_who_claims_one_has_a_rival() {
        let (vfs, _folder) = vfs();
        let pool = pool(&[&["pci-a", "pci-b"]], Policy::Spread);
        prove(&vfs, &pool);
        let claimed = vfs.claims().claim(&pool, |_| false).unwrap();
        assert!(claimed.is_unrivalled());
        keep(vfs.records(), Record { is_guess: true, ..record("away", "c") });
        let (unnamed, mut others) = vfs.claims().begin_unnamed();
        others.sort();
        assert_eq!(others, [claimed.device().clone(), "pci-away".into()]);
        assert!(claimed.is_unrivalled(), "the DPU is told of that one");
        let is_unrivalled = || vfs.claims().claim(&pool, |_| false).unwrap().is_unrivalled();
        let named = "pci-c".into();
        assert!(!is_unrivalled() && !vfs.claims().claim_named(&named).await.is_unrivalled());
        drop(unnamed);
        assert!(is_unrivalled() && vfs.claims().claim_named(&named).await.is_unrivalled());
    }

    #[tokio::test]
    async fn whoever_names_a_vf_waits_until_another_add_has_done_with_it() {
        let (vfs, _folder) = vfs();
        let device = Device::from("pci-a");
        let claimed = vfs.claims().claim_named(&device).await;
        let waiting = vfs.claims().claim_named(&device);
        let ends = async {
            yield_now().await;
            drop(claimed);
        };
        let both = async { tokio::join!(waiting, ends) };
        let (again, ()) = timeout(Duration::from_secs(10), both).await.expect("it has ended");
        assert_eq!(*again.device(), device);
    }
}
