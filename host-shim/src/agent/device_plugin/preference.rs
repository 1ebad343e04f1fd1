//! Which of a pool's VFs the kubelet should give to a container: whole IOMMU groups, of one NUMA node, spread over the
//! PFs.

use std::cmp::Reverse;

use offload_proto::kubelet::deviceplugin::ContainerPreferredAllocationRequest;
use vf_alloc::Device;

use super::{holders::Holders, vfio};
use crate::{agent::vfs::Cards, vf_source::VfPlacement};

/// A VF that the kubelet could give.
struct Candidate {
    id: String,
    placement: VfPlacement,
    /// The devices of the VF's IOMMU group, if the VF is handed over to programs.
    group: Vec<String>,
    /// Whether another pod has the group, which the kubelet does not know yet.
    is_taken: bool,
}

/// The VFs to give: as many as requested, if enough are available.
pub(super) fn preferred(
    cards: Cards<'_>,
    holders: &Holders,
    asked: ContainerPreferredAllocationRequest,
) -> Vec<String> {
    let candidate = |id: String| {
        let vf = Device::from(id.as_str());
        // A VF with an unreadable group is unhealthy: see `vfio`.
        let group = vfio::group_of(cards, &vf).ok().flatten();
        let own = std::slice::from_ref(&vf);
        let is_taken = group.as_ref().is_some_and(|it| holders.check(&vf, it, own).is_err());
        let group = group.map(|group| group.devices).unwrap_or_default();
        Candidate { id, placement: cards.placement(&vf), group, is_taken }
    };
    let available = asked.available_device_i_ds.into_iter().map(candidate).collect();
    let size = usize::try_from(asked.allocation_size).unwrap_or(0);
    choose(available, &asked.must_include_device_i_ds, size)
}

fn choose(available: Vec<Candidate>, must_include: &[String], size: usize) -> Vec<String> {
    let (mut chosen, mut left): (Vec<_>, Vec<_>) =
        available.into_iter().partition(|one| must_include.contains(&one.id));
    let node = node_of(&chosen, &left);
    while chosen.len() < size {
        let of_pf = |those: &[Candidate], one: &Candidate| {
            those.iter().filter(|other| other.placement.pf == one.placement.pf).count()
        };
        let room = size - chosen.len();
        // In this order: a VF whose group no other pod has; a VF of a group that is begun; one of a group that fits as
        // a whole; one on the chosen NUMA node; the PF that serves this container least; the PF with the most VFs left.
        let rank = |one: &Candidate| {
            let is_elsewhere = one.placement.numa_node != node;
            let spread = (of_pf(&chosen, one), Reverse(of_pf(&left, one)));
            let of_group = (!has_any(&chosen, one), !has_room(room, &chosen, &left, one));
            (one.is_taken, of_group, is_elsewhere, spread)
        };
        let Some(best) = (0..left.len()).min_by_key(|index| rank(&left[*index])) else { break };
        chosen.push(left.remove(best));
    }
    chosen.into_iter().map(|one| one.id).collect()
}

/// Whether any VF of the candidate's group is in `chosen`.
fn has_any(chosen: &[Candidate], one: &Candidate) -> bool {
    chosen.iter().any(|other| one.group.contains(&other.id))
}

/// Whether the rest of the candidate's group is available and has at most `room` VFs.
fn has_room(room: usize, chosen: &[Candidate], left: &[Candidate], one: &Candidate) -> bool {
    let is_among = |those: &[Candidate], id: &String| those.iter().any(|other| other.id == *id);
    let mut lacking = one.group.iter().filter(|id| !is_among(chosen, id));
    lacking.clone().count() <= room && lacking.all(|id| is_among(left, id))
}

/// The NUMA node of the chosen VFs, or else the one with the most VFs left.
fn node_of(chosen: &[Candidate], left: &[Candidate]) -> Option<u32> {
    if let Some(first) = chosen.first() {
        return first.placement.numa_node;
    }
    let nodes = || left.iter().map(|one| one.placement.numa_node);
    let count = |node| nodes().filter(|other| *other == node).count();
    nodes().max_by_key(|node| (count(*node), Reverse(*node))).flatten()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    /// VFs named by number, each with its PF and NUMA node.
    fn available(vfs: &[(&str, Option<u32>)]) -> Vec<Candidate> {
        let candidate = |(number, (pf, numa_node)): (usize, &(&str, Option<u32>))| Candidate {
            id: number.to_string(),
            placement: VfPlacement { pf: (*pf).into(), numa_node: *numa_node },
            group: Vec::new(),
            is_taken: false,
        };
        vfs.iter().enumerate().map(candidate).collect()
    }

    fn chosen(vfs: &[(&str, Option<u32>)], must: &[&str], size: usize) -> Vec<String> {
        let must: Vec<_> = must.iter().map(ToString::to_string).collect();
        choose(available(vfs), &must, size)
    }

    #[test]
    fn containers_vfs_share_a_numa_node() {
        let vfs = [("a", Some(0)), ("a", Some(0)), ("b", Some(1)), ("b", Some(1)), ("c", Some(1))];
        assert_eq!(chosen(&vfs, &[], 3), ["2", "4", "3"]);
        assert_eq!(chosen(&vfs, &["0"], 2), ["0", "1"], "as the one that it has in any case");
        assert_eq!(chosen(&vfs, &["0"], 3), ["0", "1", "2"], "the node has no more");
    }

    #[test]
    fn preferred_vfs_are_spread_over_pfs() {
        let vfs = [("a", None), ("b", None), ("b", None), ("a", None), ("b", None)];
        assert_eq!(chosen(&vfs, &[], 1), ["1"], "of the PF with the most left");
        assert_eq!(chosen(&vfs, &[], 4), ["1", "0", "2", "3"]);
        assert_eq!(chosen(&vfs, &["4"], 2), ["4", "0"]);
    }

    #[test]
    fn whole_iommu_groups_are_preferred() {
        let groups: [(&str, &[&str]); 5] = [
            ("a", &["0", "3"]),
            ("b", &["1", "4"]),
            ("c", &["2"]),
            ("a", &["0", "3"]),
            ("b", &["1", "4"]),
        ];
        let chosen = |must: &[&str], size| {
            let vfs = groups.map(|(pf, _)| (pf, None));
            let mut available = available(&vfs);
            for (one, (_, group)) in available.iter_mut().zip(groups) {
                one.group = group.iter().map(ToString::to_string).collect();
            }
            let must: Vec<_> = must.iter().map(ToString::to_string).collect();
            choose(available, &must, size)
        };
        assert_eq!(chosen(&[], 1), ["2"], "the others have two devices");
        assert_eq!(chosen(&[], 2), ["0", "3"]);
        assert_eq!(chosen(&["4"], 2), ["4", "1"]);
        assert_eq!(chosen(&[], 3), ["0", "3", "2"]);
    }

    #[test]
    fn group_held_by_other_pod_comes_last() {
        let mut available = available(&[("a", None), ("b", None), ("b", None)]);
        for (one, group) in available.iter_mut().zip([["0", "3"], ["1", "4"], ["2", "5"]]) {
            one.group = group.map(Into::into).into();
            one.is_taken = one.id == "1";
        }
        assert_eq!(choose(available, &[], 3), ["2", "0", "1"]);
    }

    #[test]
    fn preference_is_limited_to_available_vfs() {
        assert_eq!(chosen(&[("a", None)], &[], 3), ["0"]);
        assert_eq!(chosen(&[], &[], 1), [""; 0]);
    }
}
