//! What VFs are like while nobody uses them: learned when they are seen first, and kept in a file for
//! as long as the host's boot lasts. It is apart from the attachments' records, so that a VF becomes
//! what it was even when those are lost. It is never learned of a VF that a pod has had.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use netlink::Link;
use serde::{Deserialize, Serialize};

use crate::agent::{Agent, dpu::inventory::HostLinks, locked};
use crate::{
    vf_source::{self, OwnState, VfIdentity},
    whole_file,
};

/// Where udev says which links it has named.
const UDEV: &str = "/run/udev";

/// What is remembered of VFs can't be read.
#[derive(Debug, thiserror::Error)]
#[error("can't read what is remembered of VFs in {}", path.display())]
pub struct OriginalsError {
    /// The file.
    path: PathBuf,
    /// Why.
    source: io::Error,
}

/// What the VFs are like while nobody uses them.
#[derive(Debug)]
pub(in crate::agent) struct Originals {
    path: PathBuf,
    kept: Mutex<Kept>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The boot that it was learned in. The next one names VFs anew.
    boot_id: String,
    /// By PCI address.
    vfs: BTreeMap<String, Arc<OwnState>>,
    /// The VFs that are being made anew: one without a driver is to get one.
    #[serde(default)]
    renewed: BTreeSet<String>,
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

    pub(in crate::agent) fn get(&self, pci_address: &str) -> Option<Arc<OwnState>> {
        locked(&self.kept).vfs.get(pci_address).cloned()
    }

    /// Learns what VFs are like.
    pub(in crate::agent) fn learn(&self, vfs: impl IntoIterator<Item = (String, OwnState)>) {
        let learned = vfs.into_iter().map(|(pci_address, own)| (pci_address, Arc::new(own)));
        self.change(|kept| kept.vfs.extend(learned));
    }

    /// Forgets the VFs that are not to be kept.
    pub(in crate::agent) fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let is_gone = |pci_address: &String| !is_kept(pci_address);
        if locked(&self.kept).vfs.keys().any(is_gone) {
            self.change(|kept| kept.vfs.retain(|pci_address, _| is_kept(pci_address)));
        }
    }

    /// Says that a VF is about to be made anew, or that it was.
    pub(in crate::agent) fn note_renewal(&self, pci_address: &str, is_begun: bool) {
        self.change(|kept| {
            if is_begun {
                kept.renewed.insert(pci_address.to_owned());
            } else {
                kept.renewed.remove(pci_address);
            }
        });
    }

    /// The VFs that were being made anew when the agent's predecessor died.
    pub(in crate::agent) fn unfinished_renewals(&self) -> Vec<String> {
        locked(&self.kept).renewed.iter().cloned().collect()
    }

    /// Where the disk refuses, it is known until the agent ends.
    fn change(&self, change: impl FnOnce(&mut Kept)) {
        let _writing = locked(&self.writing);
        let kept = {
            let mut kept = locked(&self.kept);
            change(&mut kept);
            kept.clone()
        };
        if let Err(error) = write(&self.path, &kept) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "what VFs are like can't be remembered");
        }
    }
}

impl Agent {
    /// What a VF is like while nobody uses it. `None`: that is not known yet.
    pub(in crate::agent) fn own_state(&self, vf: &VfIdentity) -> Option<Arc<OwnState>> {
        let learned = self.originals.get(&vf.pci_address);
        learned.or_else(|| self.source.usual_state(vf).map(Arc::new))
    }

    /// Learns what the VFs are like that nobody has and that were not seen before, and forgets those that
    /// are gone. One of which an earlier version has learned less is made anew first: pods may have had it.
    pub(in crate::agent) fn learn_originals(&self, present: &HostLinks) {
        self.originals.retain(|pci_address| self.source.exists(pci_address));
        let vfs = vf_source::vfs(&*self.source, &present.links);
        let unknown = vfs.filter(|(vf, link)| {
            self.is_free(vf, link, present)
                && self.originals.get(&vf.pci_address).is_none()
                && !self.proofs.is_refuted(vf, link)
                && is_named(link.index)
        });
        let unknown: Vec<_> = unknown.map(|(vf, link)| (vf, link.index)).collect();
        if unknown.is_empty() {
            return;
        }
        match self.originals_of(&unknown) {
            Ok(learned) => self.originals.learn(learned),
            Err(error) => tracing::warn!(%error, "what VFs are like can't be learned"),
        }
    }

    /// Learns what a VF is like that was made just now, unless that is known.
    pub(in crate::agent) fn learn_of_new(
        &self,
        vf: &VfIdentity,
        link: &Link,
    ) -> Result<(), netlink::Error> {
        if !self.is_original_known(vf) {
            self.originals.learn(self.originals_of(&[(vf.clone(), link.index)])?);
        }
        Ok(())
    }

    /// What VFs are like that nobody has used, by PCI address.
    fn originals_of(
        &self,
        vfs: &[(VfIdentity, u32)],
    ) -> Result<Vec<(String, OwnState)>, netlink::Error> {
        let mut painter = self.painter()?;
        let mut learned = Vec::new();
        for (vf, index) in vfs {
            let Some((link, portrait)) = painter.portrait(*index)? else { continue };
            // An earlier version has learned less.
            let known = self.originals.get(&vf.pci_address).map(|own| (*own).clone());
            let own = known.unwrap_or_else(|| self.source.first_state(vf, &link));
            let portrait = Some(portrait.as_unused(&own.name, own.mac, own.mtu));
            learned.push((vf.pci_address.clone(), OwnState { portrait, ..own }));
        }
        Ok(learned)
    }

    fn is_original_known(&self, vf: &VfIdentity) -> bool {
        self.originals.get(&vf.pci_address).is_some_and(|own| own.portrait.is_some())
    }
}

/// Whether a link has the name that it will keep: a new one has the kernel's until udev gives it
/// another. Without udev that is its name.
pub(in crate::agent) fn is_named(index: u32) -> bool {
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
        OwnState { name: name.into(), mac: None, mtu: 1500, portrait: None }
    }

    fn name_in(originals: &Originals) -> Option<String> {
        originals.get(VF).map(|own| own.name.clone())
    }

    #[test]
    fn what_is_learned_holds_for_a_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let open = |boot: &str| Originals::open(path.clone(), boot.into()).unwrap();
        let originals = open("boot-1");
        assert_eq!(name_in(&originals), None);
        originals.learn([(VF.to_owned(), own("enp3s0v0"))]);
        originals.note_renewal(VF, true);
        assert_eq!(name_in(&open("boot-1")).unwrap(), "enp3s0v0");
        assert_eq!(open("boot-1").unfinished_renewals(), [VF]);
        originals.note_renewal(VF, false);
        assert!(open("boot-1").unfinished_renewals().is_empty());
        assert_eq!(name_in(&open("boot-2")), None);
    }

    #[test]
    fn vfs_that_are_gone_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let originals = Originals::open(path.clone(), "boot".into()).unwrap();
        originals.learn([(VF.to_owned(), own("v0"))]);
        originals.retain(|_| true);
        assert!(name_in(&originals).is_some());
        originals.retain(|_| false);
        assert_eq!(name_in(&Originals::open(path, "boot".into()).unwrap()), None);
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        let text = format!(
            r#"{{"boot_id":"boot","vfs":{{"{VF}":{{"name":"v0","mac":null,"mtu":1500}}}}}}"#
        );
        fs::write(&path, text).unwrap();
        let originals = Originals::open(path, "boot".into()).unwrap();
        assert_eq!(*originals.get(VF).unwrap(), own("v0"));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vfs.json");
        fs::write(&path, "{").unwrap();
        let error = Originals::open(path.clone(), "boot".into()).unwrap_err();
        assert!(error.to_string().ends_with("vfs.json"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{");
    }

    #[test]
    fn a_link_has_its_name_once_udev_is_done_with_it() {
        let udev = tempfile::tempdir().unwrap();
        assert!(is_named_by(udev.path(), 7), "there is no udev");
        fs::write(udev.path().join("control"), "").unwrap();
        assert!(!is_named_by(udev.path(), 7));
        fs::create_dir(udev.path().join("data")).unwrap();
        fs::write(udev.path().join("data/n7"), "").unwrap();
        assert!(is_named_by(udev.path(), 7));
    }
}
