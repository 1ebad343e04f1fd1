//! The host: its namespace, its cards, the records, and turns at the kernel.

use std::{sync::Arc, time::Duration};

use keyed_locks::{Held, KeyedLocks};
use netlink::{Error, IpNetwork, Link, Netns, NetnsId, Rtnl};
use offload_proto::{Failure, Reason, v1::Attachment};
use vf_alloc::Device;

use super::{
    cards::Cards,
    move_turns::Way,
    pod_locks::{PodLock, PodLocks},
    records::{Phase, PodNetns, Record, Records},
    stacked_by_host::StackedByHost,
    turns::Turns,
};
use crate::{
    mover::{Announcer, MoveSpec, Plan, Shared, meets_others},
    vf_source::{self, VfIdentity, VfSource},
};

/// What all parts of `vfs` share.
#[derive(Debug)]
pub(in crate::agent) struct Host {
    source: Arc<dyn VfSource>,
    /// The host's own namespace.
    netns: Arc<Netns>,
    stacked: StackedByHost,
    records: Records,
    pods: PodLocks,
    announcer: Announcer,
    /// How long a carrier is waited for.
    carrier_limit: Duration,
    turns: Turns,
    /// One lock per free VF, held while it is restored, reset or claimed by an attach.
    free_vfs: KeyedLocks<Device>,
}

impl Host {
    pub(super) fn new(
        source: Arc<dyn VfSource>,
        netns: Netns,
        records: Records,
        pods: PodLocks,
        announcer: Announcer,
        carrier_limit: Duration,
    ) -> Self {
        Self {
            source,
            netns: Arc::new(netns),
            stacked: StackedByHost::default(),
            records,
            pods,
            announcer,
            carrier_limit,
            turns: Turns::default(),
            free_vfs: KeyedLocks::default(),
        }
    }

    /// The host's cards, for looking at.
    pub(in crate::agent) fn cards(&self) -> Cards<'_> {
        Cards::of(self.source())
    }

    /// What knows the host's VFs, and changes them.
    pub(super) fn source(&self) -> &dyn VfSource {
        &*self.source
    }

    /// The host's own namespace.
    pub(super) fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// Whether a namespace is the host's own.
    pub(in crate::agent) fn is_own_netns(&self, id: NetnsId) -> bool {
        self.netns.id() == id
    }

    /// The host's own namespace in a record's form. A path under `/proc/self` would give each thread the namespace that
    /// it is in.
    pub(in crate::agent) fn own_netns(&self) -> PodNetns {
        PodNetns { path: "/proc/thread-self/ns/net".into(), id: self.netns.id() }
    }

    /// The records, for reading: only this module can write one.
    pub(in crate::agent) fn records(&self) -> &Records {
        &self.records
    }

    /// The kernel's interface to the host's namespace.
    pub(super) fn rtnl(&self) -> Result<Rtnl, Error> {
        Rtnl::open_in(&self.netns)
    }

    /// The links of the host's namespace. Records are to be listed after them: a VF that leaves has one.
    pub(in crate::agent) fn links(&self) -> Result<HostLinks, Error> {
        HostLinks::of(&mut self.rtnl()?)
    }

    /// The links of these names, and what tells whether the host uses them. The other links are left out, but for those
    /// that are stacked on some: to list all would take the longer the more VFs there are.
    pub(super) fn links_called<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<HostLinks, Error> {
        let mut host = self.rtnl()?;
        let (mut links, mut addresses) = (Vec::new(), Vec::new());
        for name in names {
            let Some(link) = host.link_by_name(name)? else { continue };
            let own = host.addresses(link.index)?.into_iter();
            addresses.extend(own.map(|address| (link.index, address)));
            links.push(link);
        }
        // After the listing of links, which waits for a task that is creating links; this does not.
        links.extend(self.stacked.now(&self.netns)?);
        Ok(HostLinks { links, addresses })
    }

    /// Whether a VF in the host's namespace is free.
    pub(in crate::agent) fn is_free(
        &self,
        vf: &VfIdentity,
        link: &Link,
        present: &HostLinks,
    ) -> bool {
        let HostLinks { links, addresses } = present;
        vf_source::use_by_host(link, links, addresses).is_none()
            && self.records.by_device(&vf.device).is_none()
    }

    /// Locks a free VF against restore, reset and claims.
    pub(super) async fn lock_free_vf(&self, device: &Device) -> Held {
        self.free_vfs.lock(device).await
    }

    /// Locks several free VFs.
    pub(super) async fn lock_free_vfs(&self, devices: &[Device]) -> Vec<Held> {
        self.free_vfs.lock_all(devices).await
    }

    /// Waits until no interface comes into a pod or leaves it with which those of these attachments may have
    /// something in common. `None`: there can be none.
    ///
    /// # Errors
    /// [`Reason::MoveFailed`]: another agent of the host does not come to an end.
    pub(in crate::agent) async fn lock_pod(
        &self,
        netns: &PodNetns,
        attachments: &[&Attachment],
    ) -> Result<Option<PodLock>, Failure> {
        match attachments.iter().any(|one| meets_others(one)) {
            true => self.pods.lock(netns.id).await.map(Some),
            false => Ok(None),
        }
    }

    /// The VF of a record and how it is to be on either side. What other interfaces of its pod have is looked up:
    /// the caller holds the pod's lock.
    pub(super) fn move_of(&self, record: &Record) -> Result<MoveSpec, Failure> {
        let mut plan = Plan::new(&record.attachment, self.carrier_limit)
            .map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        plan.routing.shared_by_others = self.shared_by_others(record, &plan);
        Ok(MoveSpec {
            source: Arc::clone(&self.source),
            device: record.device().clone(),
            original: record.original.clone(),
            plan,
            announcer: self.announcer.clone(),
        })
    }

    /// What the pod's other interfaces bring to it.
    fn shared_by_others(&self, record: &Record, plan: &Plan) -> Shared {
        match plan.routing.shared.is_empty() {
            true => Shared::default(),
            false => self.shared_in(record.netns.id, |other| other.id() != record.id()),
        }
    }

    /// The rules and rejecting routes of the wanted VFs of a pod. An unreadable record is skipped.
    pub(in crate::agent) fn shared_in(
        &self,
        netns: NetnsId,
        is_wanted: impl Fn(&Record) -> bool,
    ) -> Shared {
        let mut shared = Shared::default();
        let is_there = |record: &Arc<Record>| {
            record.netns.id == netns && record.phase != Phase::Releasing && is_wanted(record)
        };
        for record in self.records.all().into_iter().filter(is_there) {
            shared.extend(Shared::by(&record.attachment).unwrap_or_default());
        }
        shared
    }

    /// Looks at the kernel on a thread that may block, when it is its turn.
    ///
    /// # Errors
    /// Of kind *internal*.
    pub(in crate::agent) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.turns.look(work).await
    }

    /// Lists what the host has.
    ///
    /// # Errors
    /// When it can't be listed.
    pub(in crate::agent) async fn listed<T: Send + 'static>(
        &self,
        list: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Failure> {
        let listed = self.look(list).await?;
        listed.map_err(|error| Failure::new(Reason::Internal, error.to_string()))
    }

    /// Moves a VF on a thread of its own, when it is its turn.
    pub(super) async fn move_vf<T: Send + 'static>(
        &self,
        way: Way,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.turns.move_vf(way, work).await
    }

    /// Configures a VF after a speculative move.
    pub(super) async fn finish_move<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.turns.finish_move(work).await
    }

    /// What findings call a VF.
    pub(in crate::agent) fn subject_of(&self, vf: &VfIdentity) -> String {
        let recorded = self.records.by_device(&vf.device);
        recorded.map_or_else(|| vf.id.to_string(), |record| record.id().to_owned())
    }
}

/// What is in the host's namespace.
#[derive(Debug)]
pub(in crate::agent) struct HostLinks {
    pub links: Vec<Link>,
    /// Each with its link's index.
    pub addresses: Vec<(u32, IpNetwork)>,
}

impl HostLinks {
    pub(super) fn of(host: &mut Rtnl) -> Result<Self, Error> {
        Ok(Self { links: host.links()?, addresses: host.all_addresses()? })
    }
}
