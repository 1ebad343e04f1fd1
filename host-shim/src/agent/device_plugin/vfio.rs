//! VFs that are handed over to programs by vfio: whether a container can open them, and their device nodes.
//!
//! A program that opens one VF has its whole IOMMU group. A VF is therefore healthy only if its whole group is in its
//! pool and no other pod has a VF of the group.

use std::collections::{BTreeSet, HashMap};

use offload_proto::kubelet::deviceplugin::DeviceSpec;
use parking_lot::Mutex;
use sriov::IommuGroup;
use vf_alloc::Device;

use super::holders::{GroupInUse, Holders};
use crate::agent::vfs::Cards;

/// The vfio container device, which a program needs in addition to the groups' nodes.
const VFIO: &str = "/dev/vfio/vfio";

/// Why a container cannot open a VF.
#[derive(Debug, thiserror::Error)]
pub(super) enum VfioError {
    #[error(
        "VF {0} is bound to a driver for programs, and no IOMMU confines it to a program's memory: enable the IOMMU in \
         the firmware and in the kernel's command line"
    )]
    Unconfined(Device),
    #[error(transparent)]
    InUse(#[from] GroupInUse),
    #[error(
        "VF {vf} is in IOMMU group {group} with {other}, which is not a healthy VF of the same pool: put the whole group \
         into the pool, or use a slot that separates the devices (ACS)"
    )]
    NotInPool { vf: Device, group: u32, other: String },
    #[error("cannot read the driver or the IOMMU group of VF {vf}: {}", bootstrap::Chain(source))]
    Unknown { vf: Device, source: sriov::Error },
}

/// The device nodes that a container needs for these groups.
pub(super) fn device_nodes(groups: &[(Device, IommuGroup)]) -> Vec<DeviceSpec> {
    let groups: BTreeSet<_> = groups.iter().map(|(_, group)| group.number).collect();
    let files = groups.iter().map(|group| format!("/dev/vfio/{group}"));
    files.chain([VFIO.to_owned()]).map(node).collect()
}

/// The groups of those VFs that are handed over to programs.
///
/// # Errors
/// See [`group_of`].
pub(super) fn groups_of(
    cards: Cards<'_>,
    vfs: Vec<Device>,
) -> Result<Vec<(Device, IommuGroup)>, VfioError> {
    let mut groups = Vec::new();
    for vf in vfs {
        if let Some(group) = group_of(cards, &vf)? {
            groups.push((vf, group));
        }
    }
    Ok(groups)
}

/// VFs that a pod can only have together: a single VF, or the handed-over VFs of one IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The VF that is attached.
    pub vf: Device,
    /// The other VFs of its group.
    pub others: Vec<Device>,
}

impl From<Device> for Choice {
    fn from(vf: Device) -> Self {
        Self { vf, others: Vec::new() }
    }
}

impl Choice {
    pub(super) fn vfs(&self) -> impl Iterator<Item = &Device> {
        [&self.vf].into_iter().chain(&self.others)
    }
}

/// Groups a pod's VFs into choices, in their order.
pub(super) fn choices(cards: Cards<'_>, vfs: Vec<Device>) -> Vec<Choice> {
    let mut choices: Vec<(Option<u32>, Choice)> = Vec::new();
    for vf in vfs {
        // A VF with an unreadable group is a choice by itself.
        let group = group_of(cards, &vf).ok().flatten().map(|group| group.number);
        let is_its = |(other, _): &&mut (Option<u32>, Choice)| group.is_some() && *other == group;
        match choices.iter_mut().find(is_its) {
            Some((_, choice)) => choice.others.push(vf),
            None => choices.push((group, vf.into())),
        }
    }
    choices.into_iter().map(|(_, choice)| choice).collect()
}

/// The IOMMU group of a handed-over VF. `None`: the VF is not handed over.
///
/// # Errors
/// No IOMMU confines the VF, or sysfs cannot be read.
pub(super) fn group_of(cards: Cards<'_>, vf: &Device) -> Result<Option<IommuGroup>, VfioError> {
    let unknown = |source| VfioError::Unknown { vf: vf.clone(), source };
    if cards.handover(vf).map_err(unknown)?.is_none() {
        return Ok(None);
    }
    let group = cards.iommu_group(vf).map_err(unknown)?;
    group.map(Some).ok_or_else(|| VfioError::Unconfined(vf.clone()))
}

fn node(path: String) -> DeviceSpec {
    DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".into() }
}

/// The VFs that no container can open, each with the logged reason.
#[derive(Debug, Default)]
pub(super) struct VfioProblems(Mutex<HashMap<Device, String>>);

impl VfioProblems {
    /// Records why no container can open the VF now. Logs each reason once.
    pub(super) fn note(&self, vf: &Device, problem: Option<&VfioError>) {
        let mut logged = self.0.lock();
        let Some(problem) = problem else {
            logged.remove(vf);
            return;
        };
        let reason = problem.to_string();
        if logged.get(vf) == Some(&reason) {
            return;
        }
        match problem {
            // Normal until the other pod ends.
            VfioError::InUse(_) => {
                tracing::info!(%vf, reason, "the VF is reported to the kubelet as unhealthy");
            }
            _ => tracing::warn!(%vf, reason, "the VF is reported to the kubelet as unhealthy"),
        }
        logged.insert(vf.clone(), reason);
    }
}

/// Why no container can open a VF of this group now. `healthy`: the VFs that the pool can allocate.
pub(super) fn problem_of(
    vf: &Device,
    group: &IommuGroup,
    healthy: &[Device],
    holders: &Holders,
) -> Option<VfioError> {
    let check = || -> Result<(), VfioError> {
        check_pool(vf, group, healthy)?;
        Ok(holders.check(vf, group, std::slice::from_ref(vf))?)
    };
    check().err()
}

/// Checks that all devices of a VF's group are among `vfs`.
///
/// # Errors
/// A device of the group is missing.
pub(super) fn check_pool(vf: &Device, group: &IommuGroup, vfs: &[Device]) -> Result<(), VfioError> {
    match group.devices.iter().find(|device| vfs.iter().all(|vf| vf.as_str() != *device)) {
        None => Ok(()),
        Some(other) => {
            let (vf, other) = (vf.clone(), other.clone());
            Err(VfioError::NotInPool { vf, group: group.number, other })
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::agent::logged::logged;

    #[test]
    fn reason_of_an_unhealthy_vf_is_logged_once() {
        let (problems, vf) = (VfioProblems::default(), Device::from("d000:00:00.1"));
        let in_pool =
            |other: &str| VfioError::NotInPool { vf: vf.clone(), group: 7, other: other.into() };
        let note = |problem: Option<VfioError>| logged(|| problems.note(&vf, problem.as_ref()));
        assert_eq!(note(Some(in_pool("d000:00:00.2"))), 1);
        assert_eq!(note(Some(in_pool("d000:00:00.2"))), 0, "the same");
        assert_eq!(note(Some(VfioError::Unconfined(vf.clone()))), 1, "another one");
        assert_eq!(note(None), 0);
        assert_eq!(note(Some(VfioError::Unconfined(vf.clone()))), 1, "again after recovery");
    }
}
