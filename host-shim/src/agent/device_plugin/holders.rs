//! Which pods have which VFs: an IOMMU group belongs to one pod at a time.
//!
//! A program that opens one VF of a group has all of them, so the others go to no other pod. There are three sources:
//! the kubelet's list, which includes pods whose ADD is still to come; the agent's records; and recent Allocates, which
//! the kubelet's list may lack.

use std::{collections::BTreeMap, time::Duration};

use netlink::NetnsId;
use parking_lot::Mutex;
use sriov::IommuGroup;
use tokio::{sync::watch, time::Instant};
use vf_alloc::Device;

use crate::agent::vfs::{Phase, Records};

/// How long the kubelet's list may lack an Allocate.
const UNLISTED: Duration = Duration::from_secs(10);
/// The age at which the list is requested again.
const FRESH: Duration = Duration::from_secs(5);

/// The VFs that the kubelet gave to pods.
#[derive(Debug, Default)]
pub(super) struct GivenVfs {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// When the kubelet was last asked.
    asked: Option<Instant>,
    /// The VFs of each pod in the kubelet's list.
    listed: Vec<Vec<Device>>,
    /// The VFs of each recent Allocate that the list may lack.
    allocated: Vec<(Instant, Vec<Device>)>,
    /// Why the kubelet did not list its pods.
    problem: Option<String>,
}

/// The VFs of each pod.
#[derive(Debug, Default)]
pub(super) struct Holders(Vec<Vec<Device>>);

/// Another pod has the IOMMU group.
#[derive(Debug, thiserror::Error)]
#[error(
    "VF {vf} is in IOMMU group {group} with VF {other}, which another pod has: a program that opens the group has both. \
     Have one container ask for all VFs of the group, or use a slot that separates them (ACS)"
)]
pub(super) struct GroupInUse {
    vf: Device,
    group: u32,
    other: Device,
}

impl Holders {
    /// Checks that no other pod has the VF's group. A pod with one of the `own` VFs is the same pod or has ended: the
    /// kubelet gives no VF twice.
    ///
    /// # Errors
    /// Another pod has the group.
    pub(super) fn check(
        &self,
        vf: &Device,
        IommuGroup { number, devices, .. }: &IommuGroup,
        own: &[Device],
    ) -> Result<(), GroupInUse> {
        let others = self.0.iter().filter(|vfs| !has_any(vfs, own));
        let is_in_group = |vf: &&Device| devices.iter().any(|device| device == vf.as_str());
        match others.flatten().find(is_in_group) {
            None => Ok(()),
            Some(other) => Err(GroupInUse { vf: vf.clone(), group: *number, other: other.clone() }),
        }
    }
}

fn has_any(vfs: &[Device], of: &[Device]) -> bool {
    vfs.iter().any(|vf| of.contains(vf))
}

/// The wanted VFs of attachments, grouped by pod.
fn attached(records: &Records, is_wanted: impl Fn(&Device) -> bool) -> Vec<Vec<Device>> {
    let mut pods: BTreeMap<NetnsId, Vec<Device>> = BTreeMap::new();
    for record in records.all() {
        if record.phase != Phase::Releasing && is_wanted(record.device()) {
            pods.entry(record.netns.id).or_default().push(record.device().clone());
        }
    }
    pods.into_values().collect()
}

impl State {
    fn holders(&self, records: &Records) -> Holders {
        let given = self.allocated.iter().map(|(_, vfs)| vfs).chain(&self.listed).cloned();
        let mut pods: Vec<_> = given.collect();
        // A pod may have more VFs from the kubelet than are attached.
        let others = attached(records, |vf| pods.iter().all(|vfs| !vfs.contains(vf)));
        pods.extend(others);
        Holders(pods)
    }
}

impl GivenVfs {
    pub(super) fn holders(&self, records: &Records) -> Holders {
        self.state.lock().holders(records)
    }

    /// Notifies of each Allocate.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Gives a container these VFs with their groups.
    ///
    /// # Errors
    /// Another pod has one of the groups.
    pub(super) fn give(
        &self,
        vfs: &[Device],
        groups: &[(Device, IommuGroup)],
        records: &Records,
        now: Instant,
    ) -> Result<(), GroupInUse> {
        let mut state = self.state.lock();
        let holders = state.holders(records);
        groups.iter().try_for_each(|(vf, group)| holders.check(vf, group, vfs))?;
        // The kubelet gives a VF again only after its previous pod has ended.
        state.listed.retain(|before| !has_any(before, vfs));
        state.allocated.retain(|(_, before)| !has_any(before, vfs));
        state.allocated.push((now, vfs.to_vec()));
        // Unlock first: receivers of the notification lock the state.
        drop(state);
        self.changed.send_replace(());
        Ok(())
    }

    pub(super) fn is_outdated(&self, now: Instant) -> bool {
        self.state.lock().asked.is_none_or(|asked| now >= asked + FRESH)
    }

    /// Stores the VFs of each pod in the kubelet's list, or why it did not answer. `asked` is when the kubelet was
    /// asked.
    pub(super) fn learn(&self, listed: Result<Vec<Vec<Device>>, String>, asked: Instant) {
        let mut state = self.state.lock();
        state.asked = Some(asked);
        let problem = match listed {
            Ok(listed) => {
                // An Allocate is kept until the list contains it, or is too recent for the list to lack it.
                let is_part =
                    |vfs: &[Device]| listed.iter().any(|pod| vfs.iter().all(|vf| pod.contains(vf)));
                state.allocated.retain(|(since, vfs)| asked < *since + UNLISTED && !is_part(vfs));
                state.listed = listed;
                None
            }
            Err(why) => Some(why),
        };
        if let Some(why) = problem.as_ref().filter(|_| problem != state.problem) {
            tracing::warn!(why, "the kubelet does not list the VFs of pods");
        }
        state.problem = problem;
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::agent::vfs::{
        Record, record,
        tests::{keep, vfs},
    };

    fn devices(vfs: &[&str]) -> Vec<Device> {
        vfs.iter().map(|vf| Device::from(*vf)).collect()
    }

    fn give(given: &GivenVfs, records: &Records, vf: &str, now: Instant) {
        given.give(&devices(&[vf]), &[], records, now).unwrap();
    }

    #[test]
    fn allocated_vfs_follow_the_kubelets_list() {
        let ((vfs, _folder), given, begin) = (vfs(), GivenVfs::default(), Instant::now());
        let records = vfs.records();
        give(&given, records, "a", begin);
        let listed = |vfs: &[&str], after| {
            given.learn(Ok(vec![devices(vfs)]), begin + after);
            let state = given.state.lock();
            (state.listed.concat(), state.allocated.len())
        };
        let soon = Duration::from_secs(1);
        assert_eq!(listed(&[], soon), (devices(&[]), 1), "its list lacks it");
        assert_eq!(listed(&["a"], soon), (devices(&["a"]), 0));
        assert_eq!(listed(&[], soon), (devices(&[]), 0), "its pod has ended");
        give(&given, records, "b", begin);
        assert_eq!(listed(&[], UNLISTED * 2), (devices(&[]), 0), "it was never the pod's");
    }

    #[test]
    fn attached_vfs_are_grouped_by_pod() {
        let (vfs, _folder) = vfs();
        let records = vfs.records();
        keep(records, record("a", "c"));
        keep(records, record("b", "c"));
        let mut other = record("c", "d");
        other.netns.id.inode += 1;
        keep(records, other.clone());
        let mut pods = attached(records, |_| true);
        pods.iter_mut().for_each(|vfs| vfs.sort());
        assert_eq!(pods, [devices(&["pci-a", "pci-b"]), devices(&["pci-c"])]);
        keep(records, Record { phase: Phase::Releasing, ..other });
        assert_eq!(attached(records, |_| true).len(), 1);
    }
}
