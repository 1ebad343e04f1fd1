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

use std::{collections::BTreeMap, ffi::CStr, sync::Arc};

use netlink::{
    Family,
    nftables::{PacketRate, Rule, Set, Source, Term},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};

use super::{names::GATEWAYS, redirections::ENTRANCES, wanted::PodAddress};

/// The limit of one sender, for unknown neighbours to resolve and for unknown source addresses.
const OF_SENDER: PacketRate = PacketRate { per_second: 16, burst: 64 };

/// The same limit for all senders of one link.
const OF_LINK: PacketRate = PacketRate { per_second: 512, burst: 4096 };

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
    sets.extend([Set::of_senders(SENDERS), Set::of_ingress_links(LINKS)]);
    sets.extend(FAMILIES.iter().map(|names| Set::of_sources(names.heard, names.family)));
    let counts = || [Set::of_senders(SPEAKERS), Set::of_ingress_links(LINKS_OF_SPEAKERS)];
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
            drops(Term::SenderRateExceeded(SENDERS, OF_SENDER)),
            drops(Term::LinkRateExceeded(LINKS, OF_LINK)),
            [&is_unknown[..], &[Term::RecordResolution(names.family, names.asked)]].concat(),
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
    let is_new = Term::SourceNotRecorded(source, names.heard);
    let (sender, link) = (
        Term::SenderRateExceeded(SPEAKERS, OF_SENDER),
        Term::LinkRateExceeded(LINKS_OF_SPEAKERS, OF_LINK),
    );
    [
        of_pods(&[Term::SourceIn(source, names.known), Term::Accept]),
        of_pods(&[is_new, sender, Term::Drop]),
        of_pods(&[is_new, link, Term::Drop]),
        of_pods(&[Term::RecordSource(source, names.heard)]),
    ]
}

/// Shared state of the calls that change entries.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pub(super) turns: Arc<RwLock<()>>,
    /// The gateways' links that have all entries, by network.
    pub(super) complete: Mutex<BTreeMap<String, u32>>,
    /// Pods whose addresses the rules have to learn or forget.
    pub(super) due: Mutex<Vec<PodAddress>>,
    pub(super) are_due: Notify,
}
