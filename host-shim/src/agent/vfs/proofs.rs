//! Verification of free VFs. A pod can change more of a VF than can be listed, so the whole VF is compared with its
//! baseline, and it must have no upper devices.
//!
//! Comparing a whole VF is slow. The result holds as long as the VF stays where it is; it is renewed when the VF
//! returns, at the agent's start, and periodically.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use netlink::Link;
use parking_lot::Mutex;
use vf_alloc::Device;

use super::stacked::Stacked;
use crate::vf_source::VfIdentity;

/// What was found of VFs in the host's namespace.
#[derive(Debug, Default)]
pub(super) struct Proofs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By device.
    proofs: HashMap<Device, Proof>,
    /// The links of VFs on which nothing was stacked when all namespaces could be looked into, or when
    /// they were made, by device: no pod stacks anything on a link that is at home.
    bare: HashMap<Device, u32>,
}

#[derive(Debug)]
struct Proof {
    /// When it was looked at. Of two looks the later counts, whichever comes to its end first.
    at: Instant,
    /// `None`: the VF has left since.
    finding: Option<Finding>,
}

#[derive(Debug)]
struct Finding {
    /// The inspected link. `None`: any link, because an unknown user had the VF.
    index: Option<u32>,
    /// What was not as before.
    differences: Vec<String>,
}

impl Finding {
    fn is_of(&self, link: &Link) -> bool {
        self.index.is_none_or(|index| index == link.index)
    }
}

/// What the link state of a VF tells. It is proven only once it is known what is stacked on it, too.
#[derive(Debug)]
#[must_use = "nothing is proven yet"]
pub(in crate::agent) struct Seen {
    vf: VfIdentity,
    index: u32,
    /// The link is new, so that it has no upper devices.
    is_new: bool,
    at: Instant,
    differences: Vec<String>,
    /// What the pod that it came from has stacked on it, or may have.
    in_pod: Vec<String>,
}

impl Proofs {
    /// What was not as before when a VF was looked at. `None`: it was not, or is another link now.
    pub(super) fn of(&self, vf: &VfIdentity, link: &Link) -> Option<Vec<String>> {
        let known = self.0.lock();
        let finding = known.proofs.get(&vf.device)?.finding.as_ref()?;
        finding.is_of(link).then(|| finding.differences.clone())
    }

    /// What was not as before of a VF, if that is known.
    pub(super) fn differences(&self, device: &Device) -> Vec<String> {
        let known = self.0.lock();
        let finding = known.proofs.get(device).and_then(|proof| proof.finding.as_ref());
        finding.map(|finding| finding.differences.clone()).unwrap_or_default()
    }

    /// Whether a VF was found not to be as before.
    pub(super) fn is_refuted(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.of(vf, link).is_some_and(|differences| !differences.is_empty())
    }

    /// Whether a VF was found to be as before.
    pub(super) fn is_proven(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.of(vf, link).is_some_and(|differences| differences.is_empty())
    }

    /// Remembers what was found of a VF that was seen, and what is `stacked`, and tells what is not as
    /// before.
    pub(super) fn conclude(&self, seen: Seen, stacked: &Stacked) -> Vec<String> {
        let Seen { vf, index, is_new, at, mut differences, in_pod } = seen;
        let mut known = self.0.lock();
        if !is_new {
            // An upper device that both looks found is reported once.
            let found = [stacked.on(index), &in_pod].into_iter().find(|on| !on.is_empty());
            differences.extend_from_slice(found.unwrap_or_default());
            if known.bare.get(&vf.device) != Some(&index) {
                differences.extend_from_slice(stacked.unseen());
            }
        }
        let is_bare = is_new || in_pod.is_empty() && stacked.is_bare(index);
        let finding = Finding { index: Some(index), differences: differences.clone() };
        if known.note(&vf.device, at, Some(finding)) && is_bare {
            known.bare.insert(vf.device, index);
        }
        differences
    }

    /// Marks a VF as different until it is verified: a user without a record had it.
    pub(super) fn suspect(&self, device: &Device) {
        let differences = vec!["a pod has had it".into()];
        self.leave(device, Some(Finding { index: None, differences }));
    }

    /// A VF leaves.
    pub(super) fn forget(&self, device: &Device) {
        self.leave(device, None);
    }

    /// Forgets a removed link of a VF. The event may be late: findings of a newer link stay, and so do suspicions.
    pub(super) fn forget_link(&self, device: &Device, index: u32) {
        let mut known = self.0.lock();
        if known.bare.get(device) == Some(&index) {
            known.bare.remove(device);
        }
        let proof = known.proofs.get(device);
        let finding = proof.and_then(|proof| proof.finding.as_ref());
        if finding.is_none_or(|finding| finding.index == Some(index)) {
            known.note(device, Instant::now(), None);
        }
    }

    fn leave(&self, device: &Device, finding: Option<Finding>) {
        let mut known = self.0.lock();
        known.note(device, Instant::now(), finding);
        known.bare.remove(device);
    }

    /// Removes old findings, so that the VFs are verified again. Suspicions stay.
    pub(super) fn forget_older_than(&self, age: Duration) {
        let is_suspected = |finding: &Option<Finding>| {
            finding.as_ref().is_some_and(|finding| finding.index.is_none())
        };
        self.0
            .lock()
            .proofs
            .retain(|_, proof| is_suspected(&proof.finding) || proof.at.elapsed() < age);
    }
}

impl Known {
    /// Stores a finding, and returns whether it is the latest look at the VF.
    fn note(&mut self, device: &Device, at: Instant, finding: Option<Finding>) -> bool {
        let is_latest = self.proofs.get(device).is_none_or(|known| known.at <= at);
        if is_latest {
            self.proofs.insert(device.clone(), Proof { at, finding });
        }
        is_latest
    }
}

impl Seen {
    /// The differences in a link state that was read after `at`.
    pub(super) fn new(vf: VfIdentity, index: u32, at: Instant, differences: Vec<String>) -> Self {
        Self { vf, index, is_new: false, at, differences, in_pod: Vec::new() }
    }

    /// What was found in the namespace of the pod that it came from.
    pub(super) fn with_stacked_in_pod(self, in_pod: Vec<String>) -> Self {
        Self { in_pod, ..self }
    }

    /// The device of the VF that was seen.
    pub(super) fn device(&self) -> &Device {
        &self.vf.device
    }

    /// Whether the link is new.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Marks the link as new.
    pub(super) fn made_just_now(self) -> Self {
        Self { is_new: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use vf_alloc::FunctionId;

    use super::*;

    fn vf() -> VfIdentity {
        VfIdentity { id: FunctionId::local(0, 3), device: "d000:00:00.4".into() }
    }

    fn link(index: u32) -> Link {
        let mut link = Link::default();
        link.index = index;
        link
    }

    fn seen(index: u32, at: Instant) -> Seen {
        Seen::new(vf(), index, at, Vec::new())
    }

    #[test]
    fn finding_applies_to_one_link() {
        let proofs = Proofs::default();
        let prove = |index, at| drop(proofs.conclude(seen(index, at), &Stacked::default()));
        assert_eq!(proofs.of(&vf(), &link(7)), None);
        let before = Instant::now();
        prove(7, before);
        assert_eq!(proofs.of(&vf(), &link(7)), Some(Vec::new()));
        assert_eq!(proofs.of(&vf(), &link(8)), None);
        proofs.suspect(&vf().device);
        assert!(proofs.is_refuted(&vf(), &link(8)));
        proofs.forget_older_than(Duration::ZERO);
        assert!(proofs.is_refuted(&vf(), &link(8)), "it is to be looked at first");
        prove(8, before);
        assert!(proofs.is_refuted(&vf(), &link(8)), "an earlier check looked at it");
        proofs.forget(&vf().device);
        assert!(!proofs.is_refuted(&vf(), &link(8)));
        prove(8, before);
        assert!(!proofs.is_proven(&vf(), &link(8)), "it has left since");
    }

    #[test]
    fn link_end_does_not_affect_its_successor() {
        let proofs = Proofs::default();
        let device = vf().device;
        let _ = proofs.conclude(seen(8, Instant::now()).made_just_now(), &Stacked::default());
        proofs.forget_link(&device, 7);
        assert!(proofs.is_proven(&vf(), &link(8)));
        let _ =
            proofs.conclude(seen(8, Instant::now()), &Stacked::unknown("unknown upper devices"));
        assert!(proofs.is_proven(&vf(), &link(8)), "it is known to be bare still");
        proofs.forget_link(&device, 8);
        assert_eq!(proofs.of(&vf(), &link(8)), None);
        proofs.suspect(&device);
        proofs.forget_link(&device, 8);
        assert!(proofs.is_refuted(&vf(), &link(9)), "not checked yet");
    }

    #[test]
    fn upper_devices_in_pod_stay_counted() {
        let (proofs, nothing) = (Proofs::default(), Stacked::default());
        let seen = || seen(7, Instant::now()).with_stacked_in_pod(vec!["the macvlan".to_owned()]);
        assert_eq!(proofs.conclude(seen(), &nothing), ["the macvlan"]);
        assert_eq!(proofs.conclude(seen(), &Stacked::found_on(7, "the macvlan")), ["the macvlan"]);
        assert!(proofs.conclude(seen().made_just_now(), &nothing).is_empty());
    }

    #[test]
    fn unreadable_namespace_leaves_vfs_unverified() {
        let proofs = Proofs::default();
        let (unseen, all_seen) = (Stacked::unknown("unknown upper devices"), Stacked::default());
        let look = |seen: Seen, stacked| proofs.conclude(seen, stacked);
        assert_eq!(look(seen(7, Instant::now()), &unseen), ["unknown upper devices"]);
        assert!(proofs.is_refuted(&vf(), &link(7)));
        assert!(look(seen(8, Instant::now()).made_just_now(), &unseen).is_empty());
        assert!(
            look(seen(8, Instant::now()), &unseen).is_empty(),
            "it was bare, and stays at home"
        );
        proofs.forget(&vf().device);
        assert_eq!(
            look(seen(8, Instant::now()), &unseen),
            ["unknown upper devices"],
            "it was away"
        );
        assert!(look(seen(8, Instant::now()), &all_seen).is_empty());
        assert!(look(seen(8, Instant::now()), &unseen).is_empty());
    }
}
