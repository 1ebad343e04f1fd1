//! VFs that are handed over to programs (vfio): whether a container can open them, and by which device nodes.
//!
//! A program opens a whole IOMMU group. So a container needs all VFs of a group, and a VF is healthy only if its pool
//! could give all of the group.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
};

use offload_proto::kubelet::deviceplugin::DeviceSpec;
use sriov::IommuGroup;
use vf_alloc::Device;

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
    #[error(
        "VF {vf} is in IOMMU group {group} with {other}, which this request does not include: a program that opens the \
         group has both. Have the container ask for all VFs of the group, or use a slot that separates them (ACS)"
    )]
    NotRequested { vf: Device, group: u32, other: String },
    #[error(
        "VF {vf} is in IOMMU group {group} with {other}, which is no healthy VF of the same pool: put the whole group \
         into the pool, or use a slot that separates the devices (ACS)"
    )]
    NotInPool { vf: Device, group: u32, other: String },
    #[error("the driver or the IOMMU group of VF {vf} can't be read: {}", bootstrap::Chain(source))]
    Unknown { vf: Device, source: sriov::Error },
}

/// The nodes for those of a container's VFs that are handed over. None of the others has one.
///
/// # Errors
/// A program would reach more than the container's VFs by them, or they are not known.
pub(super) fn device_nodes(
    cards: Cards<'_>,
    given: &[Device],
) -> Result<Vec<DeviceSpec>, VfioError> {
    let mut groups = BTreeSet::new();
    for vf in given {
        let Some(IommuGroup { number, devices, .. }) = group_of(cards, vf)? else { continue };
        if let Some(other) = outsider(&devices, given) {
            return Err(VfioError::NotRequested { vf: vf.clone(), group: number, other });
        }
        groups.insert(number);
    }
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let files = groups.iter().map(|group| format!("/dev/vfio/{group}"));
    Ok(files.chain([VFIO.to_owned()]).map(node).collect())
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

/// The first device of a group that is none of these VFs.
fn outsider(group: &[String], vfs: &[Device]) -> Option<String> {
    group.iter().find(|device| vfs.iter().all(|vf| vf.as_str() != *device)).cloned()
}

fn node(path: String) -> DeviceSpec {
    DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".into() }
}

/// The VFs that no container can open, each with the reason that was logged.
#[derive(Debug, Default)]
pub(super) struct VfioProblems(Mutex<HashMap<Device, String>>);

impl VfioProblems {
    /// Whether containers can open a VF, as far as it is handed over to programs. `healthy`: the VFs that its pool gives
    /// otherwise.
    pub(super) fn can_be_opened(&self, cards: Cards<'_>, vf: &Device, healthy: &[Device]) -> bool {
        let mut logged = locked(&self.0);
        let Some(problem) = problem_of(cards, vf, healthy) else {
            logged.remove(vf);
            return true;
        };
        let reason = problem.to_string();
        if logged.get(vf) != Some(&reason) {
            tracing::warn!(%vf, reason, "VF is reported to the kubelet as unhealthy");
            logged.insert(vf.clone(), reason);
        }
        false
    }
}

fn problem_of(cards: Cards<'_>, vf: &Device, healthy: &[Device]) -> Option<VfioError> {
    let group = match group_of(cards, vf) {
        Ok(group) => group?,
        Err(problem) => return Some(problem),
    };
    let other = outsider(&group.devices, healthy)?;
    Some(VfioError::NotInPool { vf: vf.clone(), group: group.number, other })
}
