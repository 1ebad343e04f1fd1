//! Restores free VFs, so that they can be allocated. A free VF may differ because a pod changed it and its record was
//! lost, or because the host used it.

use std::{collections::HashMap, sync::Arc};

use netlink::{Error, Link};
use tokio::task::spawn_blocking;

use super::{
    cleanliness::Cleanliness,
    host::{Host, HostLinks},
    proofs::Seen,
    renewal::Renewer,
};
use crate::{
    agent::{
        defect::{defect, done_or_nothing},
        repairs::Obstacles,
    },
    vf_source::{self, VfIdentity},
};

/// Brings free VFs into order.
#[derive(Debug)]
pub(in crate::agent) struct FreeVfs {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
}

impl FreeVfs {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
    ) -> Self {
        let (host, cleanliness) = (Arc::clone(host), Arc::clone(cleanliness));
        Self { host, cleanliness, renewer: Arc::clone(renewer) }
    }

    /// Restores free VFs in the host's namespace, and starts to reset those that cannot be restored. VFs that the host
    /// uses are left alone. Returns which could not be restored, and why.
    pub(in crate::agent) async fn restore(self: &Arc<Self>) -> Obstacles {
        let mut obstacles = Obstacles::new();
        for vf in self.at_free_vfs(Self::changed_free_vfs).await {
            let _not_taken = self.host.lock_free_vf(&vf.device).await;
            let subject = self.host.subject_of(&vf);
            let restored = self.at_free_vfs(move |this| this.restore_if_free(&vf)).await;
            obstacles.extend(restored.map(|why| (subject, why)));
        }
        for (vf, what) in self.refuted_free_vfs().await {
            if !obstacles.contains_key(&self.host.subject_of(&vf)) {
                self.renewer.begin_of_free(vf, what);
            }
        }
        obstacles
    }

    async fn at_free_vfs<T: Default + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> T {
        let this = Arc::clone(self);
        let done = spawn_blocking(move || work(&this)).await;
        done_or_nothing(done.map_err(|error| defect(&error)), "restore free VFs")
    }

    /// The free VFs that do not look as before at first sight.
    fn changed_free_vfs(&self) -> Result<Vec<VfIdentity>, Error> {
        let present = self.host.links()?;
        self.cleanliness.learn_originals(&present);
        let vfs = vf_source::vfs(self.host.source(), &present.links);
        // Looked for after the listing: a VF that is being attached has a record by now.
        let changed = vfs.filter(|(vf, link)| {
            self.is_idle(vf, link, &present) && !self.cleanliness.looks_clean(vf, link)
        });
        Ok(changed.map(|(vf, _)| vf).collect())
    }

    /// Restores a VF unless it is in use since it was seen. Returns why it could not be restored.
    fn restore_if_free(&self, vf: &VfIdentity) -> Result<Option<String>, Error> {
        let present = self.host.links()?;
        let link = vf_source::link_of(self.host.source(), &present.links, &vf.device);
        let Some(link) = link.filter(|link| self.is_idle(vf, link, &present)) else {
            return Ok(None);
        };
        let restored = self.cleanliness.restore(vf, link, &mut self.host.rtnl()?);
        Ok(restored
            .inspect_err(|why| {
                tracing::warn!(vf = vf.device.as_str(), why, "cannot restore the VF");
            })
            .err())
    }

    /// The free VFs that are not as before, each with what is not.
    async fn refuted_free_vfs(self: &Arc<Self>) -> Vec<(VfIdentity, String)> {
        let (unproven, seen) = self.at_free_vfs(Self::see_unproven_free_vfs).await;
        let mut found = self.cleanliness.prove(seen).await.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot list upper devices of VFs");
            HashMap::new()
        });
        let refuted = unproven.into_iter().filter_map(|vf| {
            let what = found.remove(&vf.device)?.join("; ");
            (!what.is_empty()).then_some((vf, what))
        });
        refuted.collect()
    }

    fn see_unproven_free_vfs(&self) -> Result<(Vec<VfIdentity>, Vec<Seen>), Error> {
        let present = self.host.links()?;
        let vfs = vf_source::vfs(self.host.source(), &present.links);
        let unproven = vfs.filter(|(vf, link)| {
            self.is_idle(vf, link, &present) && !self.cleanliness.proofs().is_proven(vf, link)
        });
        let unproven: Vec<_> = unproven.map(|(vf, link)| (vf, link.index)).collect();
        let seen = self.cleanliness.see(&unproven)?;
        Ok((unproven.into_iter().map(|(vf, _)| vf).collect(), seen))
    }

    /// Whether a VF in the host's namespace is free and not being reset.
    fn is_idle(&self, vf: &VfIdentity, link: &Link, present: &HostLinks) -> bool {
        self.host.is_free(vf, link, present) && !self.renewer.is_under_way(&vf.device)
    }
}
