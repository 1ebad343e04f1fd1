//! The device nodes by which a container opens VFs that are handed over to programs.

use std::collections::BTreeSet;

use offload_proto::kubelet::deviceplugin::DeviceSpec;
use vf_alloc::Device;

use crate::agent::vfs::Cards;

/// The file in which a program gathers the groups that it opens.
const VFIO: &str = "/dev/vfio/vfio";

/// Why a container can't open a VF that it was given.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unopenable {
    #[error(
        "VF {0} is bound to a driver for programs, and no IOMMU confines it to a program's memory: enable the IOMMU in \
         the firmware and in the kernel's command line"
    )]
    Unconfined(Device),
    #[error(
        "VF {vf} is in IOMMU group {group} with {other}, which the container was not given: a program that opens the \
         group has both. Have the container ask for all VFs of the group, or use a slot that separates them (ACS)"
    )]
    Shared { vf: Device, group: u32, other: String },
    #[error("the IOMMU group of VF {vf} is not known: {}", bootstrap::Chain(source))]
    Unknown { vf: Device, source: sriov::Error },
}

/// The nodes for those of a container's VFs that are handed over. None of the others has one.
///
/// # Errors
/// A program would reach more than the container's VFs by them, or they are not known.
pub(super) fn device_nodes(
    cards: Cards<'_>,
    given: &[Device],
) -> Result<Vec<DeviceSpec>, Unopenable> {
    let mut groups = BTreeSet::new();
    for vf in given.iter().filter(|vf| cards.handover(vf).is_some()) {
        groups.insert(group_of(cards, vf, given)?);
    }
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let files = groups.iter().map(|group| format!("/dev/vfio/{group}"));
    Ok(files.chain([VFIO.to_owned()]).map(node).collect())
}

/// The number of a VF's IOMMU group, if the container was given all of that.
fn group_of(cards: Cards<'_>, vf: &Device, given: &[Device]) -> Result<u32, Unopenable> {
    let group = cards
        .iommu_group(vf)
        .map_err(|source| Unopenable::Unknown { vf: vf.clone(), source })?
        .ok_or_else(|| Unopenable::Unconfined(vf.clone()))?;
    let is_given = |device: &str| given.iter().any(|vf| vf.as_str() == device);
    match group.devices.iter().find(|device| !is_given(device)) {
        None => Ok(group.number),
        Some(other) => {
            Err(Unopenable::Shared { vf: vf.clone(), group: group.number, other: other.clone() })
        }
    }
}

fn node(path: String) -> DeviceSpec {
    DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".into() }
}
