//! Pods as neighbours of their gateways.
//!
//! The kernel has one neighbour table per IP version, for all links and network namespaces, and refuses new entries
//! above a threshold. One pod could otherwise fill it and leave no room for others. Therefore:
//!
//! - Pods of this DPU have permanent entries on their gateways' links. The kernel does not count permanent entries.
//!   An entry is made before the pod's port is programmed, and deleted after the port is unprogrammed.
//! - Resolution of unknown neighbours is limited per sender and per link: see [`limiting`]. Unknown neighbours are
//!   physical servers, routers and pods of other DPUs.
//! - The number of unknown source addresses per sender is limited in the same way, because the kernel makes an
//!   entry for each address that it answers: see [`limiting_sources`] and [`limiting_arp`].
//! - The thresholds are raised: see `thresholds`.
//!
//! Our entries carry our protocol number; others stay. A call that changes one pod's entries holds `turns` for
//! reading. A comparison of all holds it for writing, from listing to change. A pod is in the registry before its
//! entries are made, and marked as released before they are deleted. So a comparison neither deletes entries of a
//! pod that comes nor makes entries of one that goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CStr,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bootstrap::Chain;
use netlink::{
    Error, Family, MacAddress, Neighbour, Request, Rtnl,
    nftables::{PacketRate, Rule, Set, Source, Term},
};
use tokio::sync::{Notify, RwLock};

use super::{
    Gateways, Plan, Scope, Wanted, blocking, plan::GATEWAYS, redirections::ENTRANCES,
    routes::PROTOCOL,
};
use crate::model::Network;

/// The limit of one sender, for unknown neighbours to resolve and for unknown source addresses.
const OF_SENDER: PacketRate = PacketRate { per_second: 16, burst: 64 };

/// The same limit for all senders of one link.
const OF_LINK: PacketRate = PacketRate { per_second: 512, burst: 4096 };

/// An address of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodAddress {
    /// The pod's network.
    pub(crate) network: Arc<Network>,
    /// The address.
    pub(crate) address: IpAddr,
    /// The pod's MAC address.
    pub(crate) mac: MacAddress,
}

/// The names of one family's sets.
struct Names {
    family: Family,
    /// The addresses of this DPU's pods.
    known: &'static CStr,
    /// Recent pairs of sender and unknown neighbour.
    asked: &'static CStr,
    /// Recent pairs of sender and unknown source address.
    heard: &'static CStr,
}

const V4: Names =
    Names { family: Family::V4, known: c"known-v4", asked: c"asked-v4", heard: c"heard-v4" };
const V6: Names =
    Names { family: Family::V6, known: c"known-v6", asked: c"asked-v6", heard: c"heard-v6" };
const FAMILIES: [Names; 2] = [V4, V6];

/// The rate meters of resolution, by sender and by link.
const SENDERS: &CStr = c"asking-senders";
const LINKS: &CStr = c"asking-links";

/// The rate meters of unknown source addresses, by sender and by link.
const SPEAKERS: &CStr = c"speaking-senders";
const LINKS_OF_SPEAKERS: &CStr = c"speaking-links";

/// The sets that change as pods come and go. Rules for ARP have a set of their own.
pub(super) fn known(pods: &[PodAddress]) -> Vec<Set> {
    let set = |names: &Names| {
        let is_v4 = names.family == Family::V4;
        let addresses = pods.iter().map(|pod| pod.address);
        let of_family = addresses.filter(|address| address.is_ipv4() == is_v4);
        Set::of_addresses(names.known, names.family, of_family)
    };
    [set(&V4), set(&V6), set(&V4).for_arp()].into()
}

/// All sets of [`limiting`], [`limiting_sources`] and [`limiting_arp`].
pub(super) fn sets(pods: &[PodAddress]) -> Vec<Set> {
    let mut sets = known(pods);
    sets.extend(FAMILIES.iter().map(|names| Set::of_resolutions(names.asked, names.family)));
    sets.extend([Set::of_senders(SENDERS), Set::of_entrances(LINKS)]);
    sets.extend(FAMILIES.iter().map(|names| Set::of_sources(names.heard, names.family)));
    let counts = || [Set::of_senders(SPEAKERS), Set::of_entrances(LINKS_OF_SPEAKERS)];
    sets.extend(counts());
    sets.push(Set::of_sources(V4.heard, V4.family).for_arp());
    sets.extend(counts().map(Set::for_arp));
    sets
}

/// Rules for forwarded packets outside known connections. Drops a packet that would exceed the sender's limit of
/// resolutions. Packets to a neighbour that the sender has resolved within the last 15 s pass uncounted.
pub(super) fn limiting() -> Vec<Rule> {
    let of_family = |names: &Names| {
        let is_unknown = [Term::From(ENTRANCES), Term::NextHopNotIn(names.family, names.known)];
        let is_new =
            [&is_unknown[..], &[Term::ResolutionNotIn(names.family, names.asked)]].concat();
        let drops = |too_many| [&is_new[..], &[too_many, Term::Drop]].concat();
        [
            drops(Term::TooManyOfSender(SENDERS, OF_SENDER)),
            drops(Term::TooManyOfEntrance(LINKS, OF_LINK)),
            [&is_unknown[..], &[Term::NoteResolution(names.family, names.asked)]].concat(),
        ]
    };
    FAMILIES.iter().flat_map(of_family).collect()
}

/// Rules for packets from a gateway's link. Packets from known pods pass. Unknown sources pass within the limits of
/// [`limiting`]; each address of a sender counts once in 15 s. The rules run before routing, because the kernel
/// also answers packets that it does not forward, such as those with an expired hop limit.
pub(super) fn limiting_sources() -> Vec<Rule> {
    FAMILIES.iter().flat_map(|names| limiting_of(names, Source::Ip(names.family))).collect()
}

/// The same for ARP requests: the kernel makes an entry for the sender of each request that it answers.
pub(super) fn limiting_arp() -> Vec<Rule> {
    limiting_of(&V4, Source::ArpRequest).into()
}

fn limiting_of(names: &Names, source: Source) -> [Rule; 4] {
    let of_pods = |terms: &[Term]| [&[Term::From(GATEWAYS)], terms].concat();
    let is_new = Term::SourceNotNoted(source, names.heard);
    let (sender, link) = (
        Term::TooManyOfSender(SPEAKERS, OF_SENDER),
        Term::TooManyOfEntrance(LINKS_OF_SPEAKERS, OF_LINK),
    );
    [
        of_pods(&[Term::SourceIn(source, names.known), Term::Accept]),
        of_pods(&[is_new, sender, Term::Drop]),
        of_pods(&[is_new, link, Term::Drop]),
        of_pods(&[Term::NoteSource(source, names.heard)]),
    ]
}

/// Shared state of the calls that change entries.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    turns: Arc<RwLock<()>>,
    /// The gateways' links that have all entries, by network.
    complete: Mutex<BTreeMap<String, u32>>,
    /// Pods whose addresses the rules have to learn or forget.
    due: Mutex<Vec<PodAddress>>,
    are_due: Notify,
}

impl Neighbours {
    fn complete(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> MutexGuard<'_, Vec<PodAddress>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
            self.neighbours.due().extend(pods);
            self.neighbours.are_due.notify_one();
        }
        // The next comparison makes the entries of pods whose gateway is not there yet.
        if requests.is_empty() {
            return;
        }
        let changed = blocking(move || change(&requests)).await;
        if changed.is_err() {
            // Makes the next comparison read all entries, even if it is not thorough.
            self.neighbours.complete().clear();
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
        let links = self.shown().links.clone();
        if links.is_empty() || !is_thorough && *self.neighbours.complete() == links {
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
        let wanted = self.entries(&wanted());
        let requests = differences(&found, &wanted);
        let count = requests.len();
        let changed = blocking(move || change(&requests)).await;
        drop(turn);
        let is_repair = changed.is_ok() && {
            let before = std::mem::replace(&mut *self.neighbours.complete(), links.clone());
            before == links
        };
        log_failure(changed);
        if is_repair { count } else { 0 }
    }

    /// The entries of the pods whose gateway exists.
    fn entries(&self, pods: &[PodAddress]) -> BTreeSet<Neighbour> {
        let shown = self.shown();
        let entry = |pod: &PodAddress| {
            let link = *shown.links.get(&pod.network.name)?;
            Some(Neighbour { link, address: pod.address, mac: pod.mac })
        };
        pods.iter().filter_map(entry).collect()
    }

    /// Waits for pods whose addresses the rules have to learn or forget.
    pub(crate) async fn pods_due(&self) -> Vec<PodAddress> {
        loop {
            let due = std::mem::take(&mut *self.neighbours.due());
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
        let mut work = Arc::clone(&self.work).lock_owned().await;
        let beside = Plan::of(wanted(Scope::BesidePods(pods)));
        if beside.is_empty() {
            return;
        }
        let sets = (known(pods), known(beside.pods()));
        let amend = move || (work.amend_sets(&sets.0, &sets.1), work);
        let (is_amended, mut work) = blocking(amend).await;
        let put = match is_amended {
            Ok(true) => return,
            Ok(false) => {
                let plan = Plan::of(wanted(Scope::All));
                blocking(move || work.put_table(&plan).map(drop)).await
            }
            Err(refused) => Err(refused),
        };
        if let Err(refused) = put {
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
