//! Permanent entries of pods in the kernel's neighbour table: see `neighbours`.
//!
//! Our entries carry our protocol number; others stay. A call that changes one pod's entries holds `turns` for
//! reading. A comparison of all holds it for writing, from listing to change. A pod is in the registry before its
//! entries are made, and marked as released before they are deleted. So a comparison neither deletes entries of a
//! pod that comes nor makes entries of one that goes.

use std::{collections::BTreeSet, sync::Arc};

use bootstrap::Chain;
use netlink::{Error, Neighbour, Request, Rtnl};

use super::{
    gateways::{Gateways, amend},
    names::PROTOCOL,
    neighbours::known,
    plan::Plan,
    wanted::{PodAddress, Scope, Wanted},
};
use crate::tasks::blocking;

impl Gateways {
    /// Makes permanent entries for a pod whose port is about to be programmed. The next comparison retries
    /// failures.
    pub(crate) async fn add_neighbours(&self, pods: Vec<PodAddress>) {
        self.change_neighbours(pods, |neighbour| Request::set_neighbour(neighbour, PROTOCOL)).await;
    }

    /// Deletes the entries of a pod whose port was unprogrammed.
    pub(crate) async fn delete_neighbours(&self, pods: Vec<PodAddress>) {
        let delete =
            |neighbour: &Neighbour| Request::delete_neighbour(neighbour.link, neighbour.address);
        self.change_neighbours(pods, delete).await;
    }

    async fn change_neighbours(
        &self,
        pods: Vec<PodAddress>,
        request: impl Fn(&Neighbour) -> Request<'static>,
    ) {
        let turn = Arc::clone(&self.neighbours.turns).read_owned().await;
        let requests: Vec<_> = self.entries(&pods).iter().map(request).collect();
        // Also without a gateway's link, as while it is being made: the rules may contain earlier pods.
        if !pods.is_empty() {
            self.neighbours.due.lock().extend(pods);
            self.neighbours.are_due.notify_one();
        }
        // The next comparison makes the entries of pods whose gateway is not there yet.
        if requests.is_empty() {
            return;
        }
        let changed = blocking(move || change(&requests)).await;
        if changed.is_err() {
            // Makes the next comparison read all entries, even if it is not thorough.
            self.neighbours.complete.lock().clear();
        }
        log_failure(changed);
        drop(turn);
    }

    /// Makes the permanent entries match the `wanted` pods. Reads the entries if `is_thorough`, or if a link is
    /// new. Returns the number of repaired entries on links that had all of theirs.
    pub(crate) async fn reconcile_neighbours(
        &self,
        wanted: impl FnOnce() -> Vec<PodAddress>,
        is_thorough: bool,
    ) -> usize {
        let links = self.shown.lock().links.clone();
        if links.is_empty() || !is_thorough && *self.neighbours.complete.lock() == links {
            return 0;
        }
        let turn = Arc::clone(&self.neighbours.turns).write_owned().await;
        let found = match blocking(|| Rtnl::open()?.neighbours_of(PROTOCOL)).await {
            Ok(found) => BTreeSet::from_iter(found),
            Err(error) => {
                log_failure(Err(error));
                return 0;
            }
        };
        // Evaluated during the turn, so that no pod comes or goes before the change.
        let wanted = self.entries(&wanted());
        let requests = differences(&found, &wanted);
        let count = requests.len();
        let changed = blocking(move || change(&requests)).await;
        drop(turn);
        let is_repair = changed.is_ok() && {
            let before = std::mem::replace(&mut *self.neighbours.complete.lock(), links.clone());
            before == links
        };
        log_failure(changed);
        if is_repair { count } else { 0 }
    }

    /// The entries of the pods whose gateway exists.
    fn entries(&self, pods: &[PodAddress]) -> BTreeSet<Neighbour> {
        let shown = self.shown.lock();
        let entry = |pod: &PodAddress| {
            let link = *shown.links.get(&pod.network.name)?;
            Some(Neighbour { link, address: pod.address, mac: pod.mac })
        };
        pods.iter().filter_map(entry).collect()
    }

    /// Waits for pods whose addresses the rules have to learn or forget.
    pub(crate) async fn pods_due(&self) -> Vec<PodAddress> {
        loop {
            let due = std::mem::take(&mut *self.neighbours.due.lock());
            if !due.is_empty() {
                return due;
            }
            self.neighbours.are_due.notified().await;
        }
    }

    /// Adds those of these pods that `wanted` returns to the rules' sets, and removes the others. Attaches do not
    /// wait for this: a pod outside the sets is reached within the limits.
    pub(crate) async fn amend_pods(
        &self,
        wanted: impl Fn(Scope<'_>) -> Wanted,
        pods: &[PodAddress],
    ) {
        let work = Arc::clone(&self.work).lock_owned().await;
        let beside = Plan::of(wanted(Scope::PodsOnly(pods)));
        let sets = (known(pods), known(&beside.pods));
        if let Err(refused) = amend(work, &beside, sets, wanted).await {
            tracing::debug!(reason = %Chain(&refused), "cannot amend the pods in the rules; the next pass does");
        }
    }
}

/// The deletions precede the additions.
fn differences(found: &BTreeSet<Neighbour>, wanted: &BTreeSet<Neighbour>) -> Vec<Request<'static>> {
    let places: BTreeSet<_> = wanted.iter().map(|one| (one.link, one.address)).collect();
    let surplus = found.iter().filter(|one| !places.contains(&(one.link, one.address)));
    let deletes = surplus.map(|one| Request::delete_neighbour(one.link, one.address));
    let missing = wanted.difference(found).map(|one| Request::set_neighbour(one, PROTOCOL));
    deletes.chain(missing).collect()
}

/// Applies the requests. A missing entry or link is no error.
fn change(requests: &[Request<'_>]) -> Result<(), Error> {
    match Rtnl::open()?.batch(requests) {
        Err(error) if error.is_not_found() => Ok(()),
        changed => changed,
    }
}

fn log_failure(changed: Result<(), Error>) {
    if let Err(error) = changed {
        let reason = Chain(&error).to_string();
        tracing::warn!(reason, "cannot set gateways' permanent neighbours; retrying");
    }
}

#[cfg(test)]
mod tests {
    use netlink::MacAddress;

    use super::*;

    fn neighbour(link: u32, last: u8) -> Neighbour {
        let (address, mac) = ([10, 1, 0, last].into(), MacAddress([2, 0, 0, 0, 0, last]));
        Neighbour { link, address, mac }
    }

    #[test]
    fn only_differing_entries_are_changed() {
        let moved = Neighbour { mac: MacAddress([4; 6]), ..neighbour(1, 3) };
        let found = [neighbour(1, 1), neighbour(1, 2), neighbour(1, 3)].into();
        let wanted = [neighbour(1, 2), moved, neighbour(2, 1)].into();
        assert_eq!(differences(&found, &wanted).len(), 3);
        assert!(differences(&wanted, &wanted).is_empty());
    }
}
