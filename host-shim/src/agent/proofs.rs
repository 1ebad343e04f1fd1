//! Whether free VFs are proven to be as they were: what a pod can change of one is more than anybody
//! can list, so all of a VF is compared with its original, and nothing may be stacked on it.
//!
//! To look at all of a VF takes a while. What was found is remembered for as long as the VF stays
//! where it is, and is found anew when it comes home, at the agent's start, and every now and then.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use netlink::{Error, Link, NetSysfs, Painter, Portrait};

use super::{Agent, locked};
use crate::vf_source::VfIdentity;

/// What was found of VFs in the host's namespace, by PCI address.
#[derive(Debug, Default)]
pub(super) struct Proofs(Mutex<HashMap<String, Proof>>);

#[derive(Clone, Debug)]
struct Proof {
    /// The link that was looked at. `None`: any, for the VF was in somebody's hands.
    index: Option<u32>,
    at: Instant,
    /// What was not as before.
    differences: Vec<String>,
}

impl Proof {
    fn is_of(&self, link: &Link) -> bool {
        self.index.is_none_or(|index| index == link.index)
    }
}

impl Proofs {
    /// What was not as before when a VF was looked at. `None`: it was not, or is another link now.
    pub(super) fn of(&self, vf: &VfIdentity, link: &Link) -> Option<Vec<String>> {
        let proofs = locked(&self.0);
        let proof = proofs.get(&vf.pci_address).filter(|proof| proof.is_of(link))?;
        Some(proof.differences.clone())
    }

    /// What was not as before of the VF at a PCI address, if that is known.
    pub(super) fn differences(&self, pci_address: &str) -> Vec<String> {
        locked(&self.0).get(pci_address).map(|proof| proof.differences.clone()).unwrap_or_default()
    }

    /// Whether a VF was found not to be as before.
    pub(super) fn is_refuted(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.of(vf, link).is_some_and(|differences| !differences.is_empty())
    }

    /// Whether a VF was found to be as before.
    pub(super) fn is_proven(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.of(vf, link).is_some_and(|differences| differences.is_empty())
    }

    fn note(&self, pci_address: &str, index: Option<u32>, differences: Vec<String>) {
        let proof = Proof { index, at: Instant::now(), differences };
        locked(&self.0).insert(pci_address.to_owned(), proof);
    }

    /// A VF was in somebody's hands of whom no record tells: it is not as before until it is found
    /// to be.
    pub(super) fn suspect(&self, pci_address: &str) {
        self.note(pci_address, None, vec!["a pod has had it".into()]);
    }

    /// A VF leaves.
    pub(super) fn forget(&self, pci_address: &str) {
        locked(&self.0).remove(pci_address);
    }

    /// Forgets what was found so long ago that it is to be found anew. What is suspected stays.
    pub(super) fn forget_older_than(&self, age: Duration) {
        locked(&self.0).retain(|_, proof| proof.index.is_none() || proof.at.elapsed() < age);
    }
}

impl Agent {
    /// What takes portraits of the host's links.
    pub(super) fn painter(&self) -> Result<Painter<'_>, Error> {
        Painter::open(&self.host, self.sysfs.as_ref())
    }

    /// Whether a VF looks as before at first sight: what its link alone tells.
    pub(super) fn looks_clean(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.own_state(vf).is_some_and(|own| {
            let original = own.portrait.as_ref();
            original.is_some_and(|original| superficial_differences(link, original).is_empty())
        })
    }

    /// Looks at all of the VFs, which are in the host's namespace, and at what is stacked on them.
    /// Tells and remembers of each what is not as before. One that has left meanwhile is left out.
    pub(super) fn prove(
        &self,
        vfs: &[(VfIdentity, u32)],
    ) -> Result<HashMap<String, Vec<String>>, Error> {
        if vfs.is_empty() {
            return Ok(HashMap::new());
        }
        let mut painter = self.painter()?;
        let mut found = HashMap::new();
        for (vf, index) in vfs {
            let Some((link, portrait)) = painter.portrait(*index)? else { continue };
            found.insert(vf.pci_address.clone(), self.differences(vf, &link, &portrait));
        }
        let indices: Vec<_> = vfs.iter().map(|(_, index)| *index).collect();
        let mut stacked = self.stacked_on(&indices);
        for (vf, index) in vfs {
            let Some(differences) = found.get_mut(&vf.pci_address) else { continue };
            differences.extend(stacked.remove(index).unwrap_or_default());
            self.proofs.note(&vf.pci_address, Some(*index), differences.clone());
        }
        Ok(found)
    }

    fn differences(&self, vf: &VfIdentity, link: &Link, portrait: &Portrait) -> Vec<String> {
        let own = self.own_state(vf);
        match own.as_ref().and_then(|own| own.portrait.as_ref()) {
            Some(original) => differences_from(original, link, portrait),
            None => vec!["what it was like before is not known".into()],
        }
    }
}

/// What is not as before of a VF at first sight.
pub(super) fn superficial_differences(link: &Link, original: &Portrait) -> Vec<String> {
    differences_from(original, link, &Portrait::of_link(link))
}

fn differences_from(original: &Portrait, link: &Link, portrait: &Portrait) -> Vec<String> {
    let up = link.is_up.then(|| "it is up".to_owned());
    up.into_iter().chain(portrait.differences_from(original)).collect()
}

/// Sysfs of the host's namespace. Where it can't be had, that is told, and settings of queues that only
/// sysfs has are not compared.
pub(super) fn sysfs_of(host: &netlink::Netns) -> Option<NetSysfs> {
    NetSysfs::mount(host)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "SETTINGS OF VFS' QUEUES ARE NOT COMPARED: what a pod sets of gro_flush_timeout, \
                 threaded, rps_cpus and the like can stay for the next pod"
            );
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vf() -> VfIdentity {
        VfIdentity { controller: 0, pf: 0, vf: 3, pci_address: "d000:00:00.4".into() }
    }

    fn link(index: u32) -> Link {
        let mut link = Link::default();
        link.index = index;
        link
    }

    #[test]
    fn what_was_found_is_of_one_link_unless_the_vf_is_suspected() {
        let proofs = Proofs::default();
        assert_eq!(proofs.of(&vf(), &link(7)), None);
        proofs.note(&vf().pci_address, Some(7), Vec::new());
        assert_eq!(proofs.of(&vf(), &link(7)), Some(Vec::new()));
        assert_eq!(proofs.of(&vf(), &link(8)), None);
        proofs.suspect(&vf().pci_address);
        assert!(proofs.is_refuted(&vf(), &link(8)));
        proofs.forget_older_than(Duration::ZERO);
        assert!(proofs.is_refuted(&vf(), &link(8)), "it is to be looked at first");
        proofs.forget(&vf().pci_address);
        assert!(!proofs.is_refuted(&vf(), &link(8)));
    }
}
