//! VFs in network namespaces that no record names: which of them are brought home.

use std::{collections::HashSet, sync::Arc};

use netlink::Error;
use vf_alloc::Device;

use crate::agent::{defect::done_or_nothing, repairs::Obstacles, vfs::Vfs};

/// Brings the VFs home that are in namespaces that no record names. Those that the DPU `held` and
/// nobody here has a record of stay: a pod may run on them.
pub(super) async fn fetch_vfs_abroad(vfs: &Arc<Vfs>, held: HashSet<Device>) -> Obstacles {
    let room = Arc::clone(vfs);
    let done = vfs.host().look(move || fetch_now(&room, &held)).await;
    done_or_nothing(done, "bring home the VFs that no record names")
}

fn fetch_now(vfs: &Vfs, held: &HashSet<Device>) -> Result<Obstacles, Error> {
    let mut obstacles = Obstacles::new();
    for abroad in vfs.abroad().find(&vfs.host().links()?.links) {
        let (device, subject) = (&abroad.vf.device, vfs.host().subject_of(&abroad.vf));
        if held.contains(device) && vfs.records().by_device(device).is_none() {
            let why = "an attachment of the DPU holds it: a pod may run on it";
            obstacles.insert(subject, why.into());
            continue;
        }
        let from = abroad.path.display();
        match vfs.abroad().fetch(&abroad) {
            Ok(true) => vfs.repairs().note(&subject, format!("brought home from {from}")),
            Ok(false) => tracing::info!(vf = device.as_str(), "it is not in {from} any more"),
            Err(error) => drop(obstacles.insert(subject, error.to_string())),
        }
    }
    Ok(obstacles)
}
