//! How many VFs there are, and which of them have drivers.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use offload_proto::Failure;
use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::timeout,
};
use vf_alloc::{Device, PfId};

use super::{cleanliness::Cleanliness, host::Host, renewal::Renewer};
use crate::{
    agent::repairs::{Obstacles, Repairs},
    vf_source::{self, OtherVf, ProvideError, Whereabouts},
};

/// How long to wait for VFs that are being reset: they have no driver during that time.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A PF, and whether its number of VFs was changed, or what is in the way.
pub(in crate::agent) type Provided = (PfId, Result<bool, ProvideError>);

/// Changes the number of VFs, and gives drivers to those that have none.
#[derive(Debug)]
pub(in crate::agent) struct Numbers {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    /// Held for reading while an attach claims a VF, and for writing while the number of VFs changes. A change
    /// recreates all VFs of the PF, including one that is about to be recorded.
    vfs_stay: RwLock<()>,
    repairs: Arc<Repairs>,
}

impl Numbers {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
        repairs: Arc<Repairs>,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewer: Arc::clone(renewer),
            vfs_stay: RwLock::default(),
            repairs,
        }
    }

    /// Keeps the number of VFs until the guard is dropped.
    pub(in crate::agent) async fn vfs_stay(&self) -> RwLockReadGuard<'_, ()> {
        self.vfs_stay.read().await
    }

    /// Keeps attaches from claiming VFs until the guard is dropped. A waiting writer stops all attaches, so call it
    /// only when a change is due.
    pub(super) async fn no_attach(&self) -> RwLockWriteGuard<'_, ()> {
        self.vfs_stay.write().await
    }

    /// Sets the number of VFs of PFs without VFs in use. Returns for each whether anything changed, or why the number
    /// is still different. Blocks attaches only where a change is due.
    ///
    /// # Errors
    /// Of kind *internal*.
    pub(in crate::agent) async fn provide(
        self: &Arc<Self>,
        wanted: Vec<(PfId, u32)>,
    ) -> Result<Vec<Provided>, Failure> {
        let (due, this) = (wanted.clone(), Arc::clone(self));
        let due = self.host.look(move || this.for_each(due, Self::is_change_due)).await?;
        if !due.iter().any(|(_, is_due)| matches!(is_due, Ok(true))) {
            return Ok(due);
        }
        let _no_attach = self.no_attach().await;
        let this = Arc::clone(self);
        self.host.look(move || this.for_each(wanted, Self::provide_now)).await
    }

    fn for_each(
        &self,
        wanted: Vec<(PfId, u32)>,
        work: impl Fn(&Self, PfId, u32) -> Result<bool, ProvideError>,
    ) -> Vec<Provided> {
        wanted.into_iter().map(|(pf, count)| (pf, work(self, pf, count))).collect()
    }

    /// Whether a PF has another number of VFs than `count`, and nothing is in the way of a change.
    fn is_change_due(&self, pf: PfId, count: u32) -> Result<bool, ProvideError> {
        self.host.source().is_change_due(pf, count, &self.vfs_in_use()?)
    }

    /// The caller holds off [attaches](Self::no_attach).
    fn provide_now(&self, pf: PfId, count: u32) -> Result<bool, ProvideError> {
        let source = self.host.source();
        let provided = source.provide(pf, count, &self.vfs_in_use()?);
        if is_changed(&provided) {
            // The VFs were recreated, with new names and MAC addresses.
            let renewed = source.vfs_of(pf);
            let originals = self.cleanliness.originals();
            originals.retain(|device| !renewed.contains(device));
        }
        provided
    }

    /// The VFs that records hold, the host uses, or that are in use elsewhere, by device.
    fn vfs_in_use(&self) -> Result<Vec<Device>, netlink::Error> {
        let (present, source) = (self.host.links()?, self.host.source());
        let vfs: Vec<_> = vf_source::vfs(source, &present.links).collect();
        let is_present = |device: &Device| vfs.iter().any(|(vf, _)| vf.device == *device);
        let elsewhere = source.other_vfs(&is_present).into_iter();
        let elsewhere = elsewhere.filter(|vf| vf.whereabouts.is_in_use());
        let used = vfs.iter().filter(|(_, link)| {
            vf_source::use_by_host(link, &present.links, &present.addresses).is_some()
        });
        let records = self.host.records().all();
        Ok(records
            .iter()
            .map(|record| record.device().clone())
            .chain(used.map(|(vf, _)| vf.device.clone()))
            .chain(elsewhere.map(|vf| vf.identity.device))
            .collect())
    }

    /// Binds VFs without a driver to the driver of their `driver_override`, or to a matching one. A driver may have
    /// been unbound on purpose, so only an operator requests this. Returns which VFs got no driver.
    pub(in crate::agent) async fn find_drivers(self: &Arc<Self>) -> Obstacles {
        let Ok(_none_is_made_anew) = timeout(TIMEOUT, self.renewer.turn()).await else {
            tracing::info!("VFs are being reset; none is bound to a driver now");
            return Obstacles::new();
        };
        let _vfs_stay = self.vfs_stay().await;
        let this = Arc::clone(self);
        self.host.look(move || this.find_drivers_now()).await.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot bind VFs to their drivers");
            Obstacles::new()
        })
    }

    fn find_drivers_now(&self) -> Obstacles {
        let others = self.host.source().other_vfs(&|_| false).into_iter();
        let mut obstacles = Obstacles::new();
        for OtherVf { identity, .. } in others.filter(|vf| vf.whereabouts == Whereabouts::Unbound) {
            let subject = self.host.subject_of(&identity);
            match self.host.source().find_driver(&identity.device) {
                Ok(()) => self.repairs.note(&subject, "it has a driver again".into()),
                Err(error) => drop(obstacles.insert(subject, Chain(&error).to_string())),
            }
        }
        obstacles
    }
}

/// Whether the attempt to change the number may have recreated the PF's VFs.
fn is_changed(provided: &Result<bool, ProvideError>) -> bool {
    use sriov::Error::{InUse, TooMany};
    match provided {
        Ok(is_changed) => *is_changed,
        Err(ProvideError::Card(error)) => !matches!(error, InUse { .. } | TooMany { .. }),
        Err(_) => false,
    }
}
