//! Pods as neighbours of their gateways.
//!
//! The kernel has one table of neighbours for each version of IP, for all links and network namespaces, and refuses new
//! entries beyond a threshold. So what one pod has it ask for could leave no room for others. Therefore:
//!
//! - Pods of this DPU have permanent entries on their gateways' links. The kernel counts none of these. They are made
//!   before a pod's port is programmed, and deleted once it is unprogrammed.
//! - How often gateways ask for neighbours that are not known is limited, for each sender and for each link: see
//!   [`limiting`]. A physical server, a router and a pod of another DPU are such neighbours.
//! - From how many addresses that are not of such pods a sender may speak to its gateway is limited in the same way: the
//!   kernel makes an entry for each, to answer. See [`limiting_sources`] and [`limiting_arp`].
//! - The thresholds are raised: see `thresholds`.
//!
//! Entries are marked with our protocol number; those of others stay. A flow that changes the entries of one pod holds
//! the turn as a reader, and a comparison of all as its writer, from before it lists them until it has changed them. A
//! pod is in the registry before its entries are made, and as given back before they are deleted. So a comparison
//! neither deletes the entries of a pod that comes nor makes those of one that goes.

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

/// How many neighbours that are not known one sender may have its gateway ask for, and from how many addresses that
/// are not known it may speak to it.
const OF_SENDER: PacketRate = PacketRate { per_second: 16, burst: 64 };

/// The same of all senders of one link.
const OF_LINK: PacketRate = PacketRate { per_second: 512, burst: 4096 };

/// An address of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodAddress {
    /// The pod's network.
    pub(crate) network: Arc<Network>,
    /// The address.
    pub(crate) address: IpAddr,
    /// The pod's Ethernet address.
    pub(crate) mac: MacAddress,
}

/// The names of the sets of one family.
struct Names {
    family: Family,
    /// The addresses of this DPU's pods.
    known: &'static CStr,
    /// Who has asked lately for which neighbour.
    asked: &'static CStr,
    /// Who has spoken lately from which address.
    heard: &'static CStr,
}

const V4: Names =
    Names { family: Family::V4, known: c"known-v4", asked: c"asked-v4", heard: c"heard-v4" };
const V6: Names =
    Names { family: Family::V6, known: c"known-v6", asked: c"asked-v6", heard: c"heard-v6" };
const FAMILIES: [Names; 2] = [V4, V6];

/// What is counted of senders that ask, and of their links.
const SENDERS: &CStr = c"asking-senders";
const LINKS: &CStr = c"asking-links";

/// What is counted of senders that speak from addresses that are not known, and of their links.
const SPEAKERS: &CStr = c"speaking-senders";
const LINKS_OF_SPEAKERS: &CStr = c"speaking-links";

/// The sets that change as pods come and go. Rules about ARP have one of their own.
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

/// For what is forwarded and belongs to no known connection. What would have a sender's gateway ask for one more
/// neighbour than the sender may is dropped. Packets to a neighbour that the sender has asked for within the last 15 s
/// pass, and count for nothing.
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

/// For what comes in by a gateway's link: packets from known pods pass, and of what others send as much as the limits
/// of [`limiting`] say, each address of a sender counting once within 15 s. This is before routing, because the kernel
/// also answers packets that it does not forward, such as those whose hop limit has run out.
pub(super) fn limiting_sources() -> Vec<Rule> {
    FAMILIES.iter().flat_map(|names| limiting_of(names, Source::Ip(names.family))).collect()
}

/// The same for requests of ARP: the kernel makes an entry for the sender of each that it answers.
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

/// What flows share.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    turns: Arc<RwLock<()>>,
    /// The gateways' links, by network, that have all their entries.
    settled: Mutex<BTreeMap<String, u32>>,
    /// Pods that the rules do not know yet, or still know.
    due: Mutex<Vec<PodAddress>>,
    are_due: Notify,
}

impl Neighbours {
    fn settled(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> MutexGuard<'_, Vec<PodAddress>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateways {
    /// Makes permanent entries for a pod whose port is about to be programmed. Those that fail, the next comparison
    /// makes.
    pub(crate) async fn add_neighbours(&self, pods: Vec<PodAddress>) {
        self.change_neighbours(pods, |neighbour| Request::set_neighbour(neighbour, PROTOCOL)).await;
    }

    /// Deletes those of a pod whose port was unprogrammed.
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
        // Even without a link, as while the gateway is being made: its rules may know earlier pods.
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
            // The next comparison looks at all entries, also if nothing asks for a thorough one.
            self.neighbours.settled().clear();
        }
        log_failure(changed);
        drop(turn);
    }

    /// Makes permanent entries agree with the pods that are `wanted` once it is asked. Looks at them if it is to be
    /// thorough, or if there are links that it has not looked at. Returns how many entries it repaired on links that had
    /// all of theirs.
    pub(crate) async fn reconcile_neighbours(
        &self,
        wanted: impl FnOnce() -> Vec<PodAddress>,
        is_thorough: bool,
    ) -> usize {
        let links = self.shown().links.clone();
        if links.is_empty() || !is_thorough && *self.neighbours.settled() == links {
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
            let before = std::mem::replace(&mut *self.neighbours.settled(), links.clone());
            before == links
        };
        log_failure(changed);
        if is_repair { count } else { 0 }
    }

    /// The entries of pods whose gateway is there.
    fn entries(&self, pods: &[PodAddress]) -> BTreeSet<Neighbour> {
        let shown = self.shown();
        let entry = |pod: &PodAddress| {
            let link = *shown.links.get(&pod.network.name)?;
            Some(Neighbour { link, address: pod.address, mac: pod.mac })
        };
        pods.iter().filter_map(entry).collect()
    }

    /// Waits until there are pods that the rules do not know yet, or still know.
    pub(crate) async fn pods_due(&self) -> Vec<PodAddress> {
        loop {
            let due = std::mem::take(&mut *self.neighbours.due());
            if !due.is_empty() {
                return due;
            }
            self.neighbours.are_due.notified().await;
        }
    }

    /// Has the rules know those of these pods that `wanted` names, and no longer the others. No attach waits for it: a
    /// pod that the rules do not know yet is reached within the limits.
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
            tracing::debug!(reason = %Chain(&refused), "the next pass has the rules know its pods");
        }
    }
}

/// Deletes come first.
fn differences(found: &BTreeSet<Neighbour>, wanted: &BTreeSet<Neighbour>) -> Vec<Request<'static>> {
    let places: BTreeSet<_> = wanted.iter().map(|one| (one.link, one.address)).collect();
    let surplus = found.iter().filter(|one| !places.contains(&(one.link, one.address)));
    let deletes = surplus.map(|one| Request::delete_neighbour(one.link, one.address));
    let missing = wanted.difference(found).map(|one| Request::set_neighbour(one, PROTOCOL));
    deletes.chain(missing).collect()
}

/// An entry that is gone already, or whose link is, is no error.
fn change(requests: &[Request<'_>]) -> Result<(), Error> {
    match Rtnl::open()?.batch(requests) {
        Err(error) if error.is_not_found() => Ok(()),
        changed => changed,
    }
}

fn log_failure(changed: Result<(), Error>) {
    if let Err(error) = changed {
        let reason = Chain(&error).to_string();
        tracing::warn!(reason, "permanent neighbours of gateways are set later");
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
