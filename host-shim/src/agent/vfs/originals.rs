//! The VFs' baselines: learned when a VF is first seen, and kept in a file for the host's boot. They are separate from
//! the records, so that a VF can be restored even if those are lost. Nothing is learned from a VF that a pod has had.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use vf_alloc::Device;

use crate::{vf_source::OwnState, whole_file};

/// Where udev says which links it has named.
const UDEV: &str = "/run/udev";

/// What is remembered of VFs can't be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the VFs' baselines in {}", path.display())]
pub struct OriginalsError {
    /// The file.
    path: PathBuf,
    /// Why.
    source: io::Error,
}

/// The VFs' baselines.
#[derive(Debug)]
pub(in crate::agent) struct Originals {
    path: PathBuf,
    kept: Mutex<Kept>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The boot in which they were learned. The next boot names VFs again.
    boot_id: String,
    /// By device.
    vfs: BTreeMap<Device, Arc<OwnState>>,
    /// The VFs that are being reset: one without a driver must get its driver back.
    #[serde(default)]
    renewed: BTreeSet<Device>,
}

impl Originals {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// When it can't be read, or is damaged.
    pub(in crate::agent) fn open(path: PathBuf, boot_id: String) -> Result<Self, OriginalsError> {
        let read = read(&path).map_err(|source| OriginalsError { path: path.clone(), source })?;
        let of_this_boot = read.filter(|kept| kept.boot_id == boot_id);
        let kept = of_this_boot.unwrap_or_else(|| Kept { boot_id, ..Kept::default() });
        Ok(Self { path, kept: Mutex::new(kept), writing: Mutex::default() })
    }

    pub(super) fn get(&self, device: &Device) -> Option<Arc<OwnState>> {
        self.kept.lock().vfs.get(device).cloned()
    }

    /// Learns what VFs are like.
    pub(super) fn learn(&self, vfs: impl IntoIterator<Item = (Device, OwnState)>) {
        let learned = vfs.into_iter().map(|(device, own)| (device, Arc::new(own)));
        self.change(|kept| kept.vfs.extend(learned));
    }

    /// Forgets the VFs that are not to be kept.
    pub(super) fn retain(&self, is_kept: impl Fn(&Device) -> bool) {
        let is_gone = |device: &Device| !is_kept(device);
        if self.kept.lock().vfs.keys().any(is_gone) {
            self.change(|kept| kept.vfs.retain(|device, _| is_kept(device)));
        }
    }

    /// Stores whether a VF is being reset.
    pub(super) fn note_renewal(&self, device: &Device, is_begun: bool) {
        self.change(|kept| {
            if is_begun {
                kept.renewed.insert(device.clone());
            } else {
                kept.renewed.remove(device);
            }
        });
    }

    /// The VFs that were being reset when the previous agent died.
    pub(super) fn unfinished_renewals(&self) -> Vec<Device> {
        self.kept.lock().renewed.iter().cloned().collect()
    }

    /// Where the disk refuses, it is known until the agent ends.
    fn change(&self, change: impl FnOnce(&mut Kept)) {
        let _writing = self.writing.lock();
        let kept = {
            let mut kept = self.kept.lock();
            change(&mut kept);
            kept.clone()
        };
        if let Err(error) = write(&self.path, &kept) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot store the VFs' baselines");
        }
    }
}

/// Whether a link has the name that it will keep: a new one has the kernel's until udev gives it
/// another. Without udev that is its name.
pub(super) fn is_named(index: u32) -> bool {
    is_named_by(Path::new(UDEV), index)
}

fn is_named_by(udev: &Path, index: u32) -> bool {
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
    whole_file::replace(path, &serde_json::to_vec(kept)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VF: &str = "0000:03:00.2";

    fn own(name: &str) -> OwnState {
        OwnState { name: name.into(), mac: None, mtu: 1500, link_state: None }
    }

    fn name_in(originals: &Originals) -> Option<String> {
        originals.get(&VF.into()).map(|own| own.name.clone())
    }

    #[test]
    fn baselines_hold_for_one_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let open = |boot: &str| Originals::open(path.clone(), boot.into()).unwrap();
        let originals = open("boot-1");
        assert_eq!(name_in(&originals), None);
        originals.learn([(VF.into(), own("enp3s0v0"))]);
        originals.note_renewal(&VF.into(), true);
        assert_eq!(name_in(&open("boot-1")).unwrap(), "enp3s0v0");
        assert_eq!(open("boot-1").unfinished_renewals(), [Device::from(VF)]);
        originals.note_renewal(&VF.into(), false);
        assert!(open("boot-1").unfinished_renewals().is_empty());
        assert_eq!(name_in(&open("boot-2")), None);
    }

    #[test]
    fn vfs_that_are_gone_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let originals = Originals::open(path.clone(), "boot".into()).unwrap();
        originals.learn([(VF.into(), own("v0"))]);
        originals.retain(|_| true);
        assert!(name_in(&originals).is_some());
        originals.retain(|_| false);
        assert_eq!(name_in(&Originals::open(path, "boot".into()).unwrap()), None);
    }

    #[test]
    fn earlier_baseline_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let text = format!(
            r#"{{"boot_id":"boot","vfs":{{"{VF}":{{"name":"v0","mac":null,"mtu":1500}}}}}}"#
        );
        fs::write(&path, text).unwrap();
        let originals = Originals::open(path, "boot".into()).unwrap();
        assert_eq!(*originals.get(&VF.into()).unwrap(), own("v0"));
    }

    #[test]
    fn damaged_baseline_file_is_named_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        fs::write(&path, "{").unwrap();
        let error = Originals::open(path.clone(), "boot".into()).unwrap_err();
        assert!(error.to_string().ends_with("vfs.json"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{");
    }

    #[test]
    fn link_name_is_final_after_udev() {
        let udev = tempfile::tempdir().unwrap();
        assert!(is_named_by(udev.path(), 7), "there is no udev");
        fs::write(udev.path().join("control"), "").unwrap();
        assert!(!is_named_by(udev.path(), 7));
        fs::create_dir(udev.path().join("data")).unwrap();
        fs::write(udev.path().join("data/n7"), "").unwrap();
        assert!(is_named_by(udev.path(), 7));
    }
}
