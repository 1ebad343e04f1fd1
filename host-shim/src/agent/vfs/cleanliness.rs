//! Whether VFs equal their baselines: the baselines, the findings since, and upper devices. Pods may change anything of
//! their VFs, so nothing of a returned VF is trusted: it is compared as a whole.
//!
//! Locks are held only for reads and writes of memory. Two tasks that inspect one VF both report, and the later look
//! counts ([`Proofs`]).

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{Error, Link, LinkState, LinkStateReader, NetSysfs, Netns, Rtnl};
use offload_proto::Failure;
use vf_alloc::Device;

use super::{
    host::{Host, HostLinks},
    originals::{Originals, is_named},
    proofs::{Proofs, Seen},
    stacked::Walks,
};
use crate::{
    agent::{clock::nanoseconds_since_boot, repairs::Repairs},
    mover::{MoveError, make_clean},
    vf_source::{self, OwnState, VfIdentity},
};

/// What is known of VFs that are at home.
#[derive(Debug)]
pub(in crate::agent) struct Cleanliness {
    host: Arc<Host>,
    /// The VFs' baselines.
    originals: Originals,
    /// Whether free VFs are.
    proofs: Proofs,
    /// The walks through all namespaces that this takes.
    walks: Arc<Walks>,
    /// Sysfs of the host's namespace. `None`: it cannot be mounted.
    sysfs: Option<NetSysfs>,
    repairs: Arc<Repairs>,
}

/// The links of the host's namespace, of whose free VFs it is known by now whether they are as they were.
#[derive(Debug)]
pub(in crate::agent) struct ProvenLinks {
    /// When they were listed, on the clock of [`nanoseconds_since_boot`].
    pub as_of_ns: u64,
    pub present: HostLinks,
    /// A free VF is not as it was.
    pub is_any_refuted: bool,
}

impl Cleanliness {
    /// `reach`: the folders through which network namespaces can be reached.
    pub(super) fn new(
        host: &Arc<Host>,
        originals: Originals,
        reach: Vec<PathBuf>,
        repairs: Arc<Repairs>,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            originals,
            proofs: Proofs::default(),
            walks: Arc::new(Walks::new(Arc::clone(host), reach)),
            sysfs: sysfs_of(host.netns()),
            repairs,
        }
    }

    /// The known baselines.
    pub(super) fn originals(&self) -> &Originals {
        &self.originals
    }

    /// What was found of VFs.
    pub(super) fn proofs(&self) -> &Proofs {
        &self.proofs
    }

    /// A VF's baseline. `None`: not known yet.
    pub(super) fn own_state(&self, vf: &VfIdentity) -> Option<Arc<OwnState>> {
        let learned = self.originals.get(&vf.device);
        learned.or_else(|| self.host.source().usual_state(vf).map(Arc::new))
    }

    /// Learns the baselines of free VFs that were not seen before, and removes those of absent VFs.
    pub(in crate::agent) fn learn_originals(&self, present: &HostLinks) {
        self.originals.retain(|device| self.host.source().exists(device));
        let vfs = vf_source::vfs(self.host.source(), &present.links);
        let unknown = vfs.filter(|(vf, link)| {
            self.host.is_free(vf, link, present)
                && self.originals.get(&vf.device).is_none()
                && !self.proofs.is_refuted(vf, link)
                && is_named(link.index)
        });
        let unknown: Vec<_> = unknown.map(|(vf, link)| (vf, link.index)).collect();
        if unknown.is_empty() {
            return;
        }
        match self.originals_of(&unknown) {
            Ok(learned) => self.originals.learn(learned),
            Err(error) => tracing::warn!(%error, "cannot learn the VFs' baselines"),
        }
    }

    /// Learns the baseline of a new VF, unless it is known.
    pub(super) fn learn_of_new(&self, vf: &VfIdentity, link: &Link) -> Result<(), Error> {
        if !self.is_original_known(vf) {
            self.originals.learn(self.originals_of(&[(vf.clone(), link.index)])?);
        }
        Ok(())
    }

    /// The baselines of VFs that were never in a pod, by device.
    fn originals_of(&self, vfs: &[(VfIdentity, u32)]) -> Result<Vec<(Device, OwnState)>, Error> {
        let mut painter = self.painter()?;
        let mut learned = Vec::new();
        for (vf, index) in vfs {
            let Some((link, link_state)) = self.state_of(&mut painter, vf, *index)? else {
                continue;
            };
            let known = self.originals.get(&vf.device).map(|own| (*own).clone());
            let own = known.unwrap_or_else(|| self.host.source().first_state(vf, &link));
            let link_state = Some(link_state.as_unused(&own.name, own.mac, own.mtu));
            learned.push((vf.device.clone(), OwnState { link_state, ..own }));
        }
        Ok(learned)
    }

    /// A VF's link and its state. `None`: the link is gone, or the VF was reset and another link has its index.
    fn state_of(
        &self,
        painter: &mut LinkStateReader<'_>,
        vf: &VfIdentity,
        index: u32,
    ) -> Result<Option<(Link, LinkState)>, Error> {
        let is_vfs = |link: &Link| {
            let found = self.host.source().vf_of(link);
            found.is_some_and(|found| found.device == vf.device)
        };
        Ok(painter.state_of(index)?.filter(|(link, _)| is_vfs(link)))
    }

    fn is_original_known(&self, vf: &VfIdentity) -> bool {
        self.originals.get(&vf.device).is_some_and(|own| own.link_state.is_some())
    }

    /// What takes portraits of the host's links.
    fn painter(&self) -> Result<LinkStateReader<'_>, Error> {
        LinkStateReader::open(self.host.netns(), self.sysfs.as_ref())
    }

    /// Whether a VF looks as before at first sight: what its link alone tells.
    pub(in crate::agent) fn looks_clean(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.superficial_differences(vf, link).is_empty()
    }

    /// What is not as before of a VF at first sight.
    pub(super) fn superficial_differences(&self, vf: &VfIdentity, link: &Link) -> Vec<String> {
        self.differences(vf, link, &LinkState::of_link(link))
    }

    /// Inspects VFs in the host's namespace. VFs that left are omitted.
    pub(in crate::agent) fn see(&self, vfs: &[(VfIdentity, u32)]) -> Result<Vec<Seen>, Error> {
        if vfs.is_empty() {
            return Ok(Vec::new());
        }
        let mut painter = self.painter()?;
        let mut seen = Vec::new();
        for (vf, index) in vfs {
            let at = Instant::now();
            let Some((link, link_state)) = self.state_of(&mut painter, vf, *index)? else {
                continue;
            };
            let differences = self.differences(vf, &link, &link_state);
            seen.push(Seen::new(vf.clone(), *index, at, differences));
        }
        Ok(seen)
    }

    /// Verifies inspected VFs: adds their upper devices, stores and returns the differences of each, by device.
    pub(in crate::agent) async fn prove(
        self: &Arc<Self>,
        seen: Vec<Seen>,
    ) -> Result<HashMap<Device, Vec<String>>, Failure> {
        let stacked = match seen.iter().all(Seen::is_new) {
            true => Arc::default(),
            false => self.walks.stacked_on_host().await?,
        };
        let conclude = |seen: Seen| (seen.device().clone(), self.proofs.conclude(seen, &stacked));
        Ok(seen.into_iter().map(conclude).collect())
    }

    /// Lists the links of the host's namespace, and looks at those of its free VFs of which it is not known
    /// whether they are as they were.
    ///
    /// # Errors
    /// When they can't be listed.
    pub(in crate::agent) async fn proven_links(self: &Arc<Self>) -> Result<ProvenLinks, Failure> {
        let this = Arc::clone(self);
        let list = move || {
            // Dated before the listing: a Detach in between reports a newer state of its VF.
            let as_of_ns = nanoseconds_since_boot();
            let present = this.host.links()?;
            this.learn_originals(&present);
            let seen = this.see(&this.free_without_proof(&present))?;
            Ok((as_of_ns, present, seen))
        };
        let (as_of_ns, present, seen) = self.host.listed(list).await?;
        let found = self.prove(seen).await?;
        let is_any_refuted = found.values().any(|differences| !differences.is_empty());
        Ok(ProvenLinks { as_of_ns, present, is_any_refuted })
    }

    /// The free VFs that look clean at first sight, and were not looked at any closer, with their links'
    /// indices.
    fn free_without_proof(&self, present: &HostLinks) -> Vec<(VfIdentity, u32)> {
        let unproven = vf_source::vfs(self.host.source(), &present.links).filter(|(vf, link)| {
            self.host.is_free(vf, link, present)
                && self.looks_clean(vf, link)
                && self.proofs.of(vf, link).is_none()
        });
        unproven.map(|(vf, link)| (vf, link.index)).collect()
    }

    /// Whether a VF at home looks as before, and was found to be.
    pub(in crate::agent) fn is_clean(&self, vf: &VfIdentity, link: &Link) -> bool {
        self.looks_clean(vf, link) && self.proofs.is_proven(vf, link)
    }

    /// What was not as before when a VF was looked at last, if that is known.
    pub(in crate::agent) fn known_differences(&self, device: &Device) -> Vec<String> {
        self.proofs.differences(device)
    }

    /// A link of a VF has gone.
    pub(in crate::agent) fn forget_link(&self, device: &Device, index: u32) {
        self.proofs.forget_link(device, index);
    }

    /// Removes findings that are too old, so that the VFs are verified again.
    pub(in crate::agent) fn forget_older_than(&self, age: Duration) {
        self.proofs.forget_older_than(age);
    }

    /// Restores what can be restored of a VF.
    ///
    /// # Errors
    /// The kernel's refusal and, if another link has the VF's name, which: one sentence.
    pub(super) fn restore(
        &self,
        vf: &VfIdentity,
        link: &Link,
        host: &mut Rtnl,
    ) -> Result<(), String> {
        let Some(own) = self.own_state(vf) else { return Ok(()) };
        let before = self.superficial_differences(vf, link);
        let port = self.host.source().pf_port(&vf.device);
        make_clean(host, link, &own, port.as_ref())
            .map_err(|error| with_what_is_in_the_way(&error, host, link, &own.name))?;
        let restored = host.link_by_index(link.index).ok().flatten();
        if !before.is_empty() && restored.is_some_and(|link| self.looks_clean(vf, &link)) {
            let what = format!("restored: {}", before.join("; "));
            self.repairs.note(&self.host.subject_of(vf), what);
        }
        Ok(())
    }

    fn differences(&self, vf: &VfIdentity, link: &Link, link_state: &LinkState) -> Vec<String> {
        let own = self.own_state(vf);
        match own.as_ref().and_then(|own| own.link_state.as_ref()) {
            Some(original) => differences_from(original, link, link_state),
            None => vec!["its baseline is unknown".into()],
        }
    }
}

fn differences_from(original: &LinkState, link: &Link, link_state: &LinkState) -> Vec<String> {
    let up = link.is_up.then(|| "it is up".to_owned());
    up.into_iter().chain(link_state.differences_from(original)).collect()
}

/// Mounts sysfs of the host's namespace. Failing that, logs a warning; sysfs-only settings of queues are then not
/// compared.
fn sysfs_of(host: &Netns) -> Option<NetSysfs> {
    NetSysfs::mount(host)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "settings of VFs' queues are not compared: gro_flush_timeout, threaded, rps_cpus and the \
                 like may stay as a pod set them"
            );
        })
        .ok()
}

/// The kernel's refusal and, if another link has the VF's name, which.
fn with_what_is_in_the_way(error: &MoveError, host: &mut Rtnl, vf: &Link, name: &str) -> String {
    match host.link_by_name(name) {
        Ok(Some(other)) if other.index != vf.index => {
            let Link { index, kind, .. } = other;
            let kind = kind.map(|kind| format!(", a {kind},")).unwrap_or_default();
            format!("{error}: link {index}{kind} has the name {name}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use vf_alloc::FunctionId;

    use super::*;
    use crate::agent::vfs::room::tests::vfs;

    #[tokio::test]
    async fn link_with_reused_index_is_no_vf() {
        let (vfs, _folder) = vfs();
        let vf = VfIdentity { id: FunctionId::local(0, 3), device: "d000:00:00.4".into() };
        let mut lo = Link::default();
        lo.index = 1;
        vfs.cleanliness().learn_of_new(&vf, &lo).unwrap();
        assert!(!vfs.cleanliness().is_original_known(&vf));
        assert!(vfs.cleanliness().see(&[(vf, lo.index)]).unwrap().is_empty());
    }

    #[test]
    fn obstructing_link_is_named() {
        let mut host = Rtnl::open_in(&Netns::current().unwrap()).unwrap();
        let mut vf = Link::default();
        vf.index = u32::MAX;
        let error = MoveError::Missing("d000:00:00.4".into());
        let told = with_what_is_in_the_way(&error, &mut host, &vf, "lo");
        assert!(told.contains(": link 1 "), "{told}");
    }
}
