//! What VFs are like while nobody uses them: learned when they are seen first, and kept in a file.
//! It is apart from the attachments' records, so that a VF gets its name back even when those are
//! lost.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use netlink::Link;
use serde::{Deserialize, Serialize};
use sriov::PciAddress;

use super::{OwnState, PciError, locked};
use crate::whole_file;

/// Where udev says which links it has named.
const UDEV: &str = "/run/udev";

/// What the VFs are like while nobody uses them.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    kept: Mutex<Kept>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The boot that it was learned in. The next one names VFs anew.
    boot_id: String,
    vfs: BTreeMap<PciAddress, OwnState>,
}

impl Memory {
    /// Reads the file, if there is one.
    pub(super) fn open(path: PathBuf, boot_id: String) -> Result<Self, PciError> {
        let read = read(&path).map_err(|source| PciError::Memory { path: path.clone(), source })?;
        let of_this_boot = read.filter(|kept| kept.boot_id == boot_id);
        let kept = of_this_boot.unwrap_or_else(|| Kept { boot_id, ..Kept::default() });
        Ok(Self { path, kept: Mutex::new(kept), writing: Mutex::default() })
    }

    pub(super) fn get(&self, vf: PciAddress) -> Option<OwnState> {
        locked(&self.kept).vfs.get(&vf).cloned()
    }

    /// Learns of the VFs that were not seen before, and forgets those that are gone.
    pub(super) fn learn<'a>(
        &self,
        unused: impl Iterator<Item = (PciAddress, &'a Link)>,
        exists: impl Fn(PciAddress) -> bool,
    ) {
        let mut kept = locked(&self.kept);
        let before = kept.vfs.len();
        kept.vfs.retain(|vf, _| exists(*vf));
        let mut is_changed = kept.vfs.len() != before;
        for (vf, link) in unused {
            if !kept.vfs.contains_key(&vf) && is_named(Path::new(UDEV), link.index) {
                kept.vfs.insert(vf, state_of(link));
                is_changed = true;
            }
        }
        drop(kept);
        if is_changed {
            self.write();
        }
    }

    pub(super) fn forget(&self, vfs: impl Iterator<Item = PciAddress>) {
        let mut kept = locked(&self.kept);
        for vf in vfs {
            kept.vfs.remove(&vf);
        }
        drop(kept);
        self.write();
    }

    /// Where the disk refuses, it is known until the agent ends.
    fn write(&self) {
        let _writing = locked(&self.writing);
        let kept = locked(&self.kept).clone();
        if let Err(error) = write(&self.path, &kept) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "what VFs are like can't be remembered");
        }
    }
}

fn state_of(link: &Link) -> OwnState {
    OwnState { name: link.name.clone(), mac: link.permanent_mac.or(link.mac), mtu: link.mtu }
}

/// Whether a link has the name that it will keep: a new one has the kernel's until udev gives it
/// another. Without udev that is its name.
fn is_named(udev: &Path, index: u32) -> bool {
    !udev.join("control").exists() || udev.join(format!("data/n{index}")).exists()
}

fn read(path: &Path) -> io::Result<Option<Kept>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    whole_file::replace(path, &serde_json::to_vec_pretty(kept)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VF: &str = "0000:03:00.2";

    fn link(name: &str) -> Link {
        let mut link = Link::default();
        (link.name, link.mtu) = (name.into(), 1500);
        link.mac = Some("02:00:00:00:00:07".parse().unwrap());
        link
    }

    fn learn(memory: &Memory, link: &Link) {
        memory.learn([(VF.parse().unwrap(), link)].into_iter(), |_| true);
    }

    fn name_in(memory: &Memory) -> Option<String> {
        memory.get(VF.parse().unwrap()).map(|own| own.name)
    }

    #[test]
    fn the_first_sight_counts_for_a_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let open = |boot: &str| Memory::open(path.clone(), boot.into()).unwrap();
        let memory = open("boot-1");
        assert_eq!(name_in(&memory), None);
        learn(&memory, &link("enp3s0v0"));
        learn(&memory, &link("eth0"));
        assert_eq!(name_in(&memory).unwrap(), "enp3s0v0");
        assert_eq!(name_in(&open("boot-1")).unwrap(), "enp3s0v0");
        assert_eq!(name_in(&open("boot-2")), None);
    }

    #[test]
    fn vfs_that_are_gone_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let memory = Memory::open(path.clone(), "boot".into()).unwrap();
        learn(&memory, &link("v0"));
        memory.learn(std::iter::empty(), |_| false);
        assert_eq!(name_in(&memory), None);
        learn(&memory, &link("v1"));
        memory.forget([VF.parse().unwrap()].into_iter());
        assert_eq!(name_in(&Memory::open(path, "boot".into()).unwrap()), None);
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        fs::write(&path, "{").unwrap();
        let error = Memory::open(path.clone(), "boot".into()).unwrap_err();
        assert!(error.to_string().ends_with("vfs.json"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{");
    }

    #[test]
    fn a_link_has_its_name_once_udev_is_done_with_it() {
        let udev = tempfile::tempdir().unwrap();
        assert!(is_named(udev.path(), 7), "there is no udev");
        fs::write(udev.path().join("control"), "").unwrap();
        assert!(!is_named(udev.path(), 7));
        fs::create_dir(udev.path().join("data")).unwrap();
        fs::write(udev.path().join("data/n7"), "").unwrap();
        assert!(is_named(udev.path(), 7));
    }
}
