//! VFs that are handed over to programs (vfio): whether a container can open them, and by which device nodes.
//!
//! A program that opens one VF has its whole IOMMU group. So a VF is healthy only if all of its group is in its pool, and
//! no other pod has one of them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
};

use offload_proto::kubelet::deviceplugin::DeviceSpec;
use sriov::IommuGroup;
use vf_alloc::Device;

use super::holders::{GroupInUse, Holders};
use crate::agent::{defect::locked, vfs::Cards};

/// The file in which a program gathers the groups that it opens.
const VFIO: &str = "/dev/vfio/vfio";

/// Why a container can't open a VF.
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
        "VF {vf} is in IOMMU group {group} with {other}, which is no healthy VF of the same pool: put the whole group \
         into the pool, or use a slot that separates the devices (ACS)"
    )]
    NotInPool { vf: Device, group: u32, other: String },
    #[error("the driver or the IOMMU group of VF {vf} can't be read: {}", bootstrap::Chain(source))]
    Unknown { vf: Device, source: sriov::Error },
}

/// The nodes by which a container opens these groups.
pub(super) fn device_nodes(groups: &[(Device, IommuGroup)]) -> Vec<DeviceSpec> {
    let groups: BTreeSet<_> = groups.iter().map(|(_, group)| group.number).collect();
    let files = groups.iter().map(|group| format!("/dev/vfio/{group}"));
    files.chain([VFIO.to_owned()]).map(node).collect()
}

/// The groups of those of these VFs that are handed over to programs.
///
/// # Errors
/// As [`group_of`].
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

/// VFs among which a pod has no choice: one, or those of one IOMMU group that are handed over to programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The one that is attached.
    pub vf: Device,
    /// What a program has with it.
    pub others: Vec<Device>,
}

impl From<Device> for Choice {
    fn from(vf: Device) -> Self {
        Self { vf, others: Vec::new() }
    }
}

impl Choice {
    /// All of its VFs.
    pub(super) fn vfs(&self) -> impl Iterator<Item = &Device> {
        [&self.vf].into_iter().chain(&self.others)
    }
}

/// The choices among VFs of a pod, in the order of these.
pub(super) fn choices(cards: Cards<'_>, vfs: Vec<Device>) -> Vec<Choice> {
    let mut choices: Vec<(Option<u32>, Choice)> = Vec::new();
    for vf in vfs {
        // Of one whose group is not known nothing else is known either.
        let group = group_of(cards, &vf).ok().flatten().map(|group| group.number);
        let is_its = |(other, _): &&mut (Option<u32>, Choice)| group.is_some() && *other == group;
        match choices.iter_mut().find(is_its) {
            Some((_, choice)) => choice.others.push(vf),
            None => choices.push((group, vf.into())),
        }
    }
    choices.into_iter().map(|(_, choice)| choice).collect()
}

/// The IOMMU group of a VF that is handed over to programs. `None`: it is not handed over.
///
/// # Errors
/// No IOMMU confines the VF, or sysfs can't be read.
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

/// The VFs that no container can open, each with the reason that was logged.
#[derive(Debug, Default)]
pub(super) struct VfioProblems(Mutex<HashMap<Device, String>>);

impl VfioProblems {
    /// Notes why no container can open a VF now. Logs each reason once.
    pub(super) fn note(&self, vf: &Device, problem: Option<&VfioError>) {
        let mut logged = locked(&self.0);
        let Some(problem) = problem else {
            logged.remove(vf);
            return;
        };
        let reason = problem.to_string();
        if logged.get(vf) == Some(&reason) {
            return;
        }
        match problem {
            // As it should be, until that pod ends.
            VfioError::InUse(_) => {
                tracing::info!(%vf, reason, "VF is reported to the kubelet as unhealthy");
            }
            _ => tracing::warn!(%vf, reason, "VF is reported to the kubelet as unhealthy"),
        }
        logged.insert(vf.clone(), reason);
    }
}

/// Why no container can open a VF of this group now, if so. `healthy`: the VFs that its pool gives otherwise.
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

/// That all devices of a VF's group are among these VFs.
///
/// # Errors
/// One is not.
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
        let note =
            |problem: Option<VfioError>| logged(|| problems.note(&vf, problem.as_ref())).len();
        assert_eq!(note(Some(in_pool("d000:00:00.2"))), 1);
        assert_eq!(note(Some(in_pool("d000:00:00.2"))), 0, "the same");
        assert_eq!(note(Some(VfioError::Unconfined(vf.clone()))), 1, "another one");
        assert_eq!(note(None), 0);
        assert_eq!(note(Some(VfioError::Unconfined(vf.clone()))), 1, "once more");
    }
}
