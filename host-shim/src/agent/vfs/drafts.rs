//! What is recorded of an attachment, and so what its VF is to be again.

use std::sync::{Arc, OnceLock};

use netlink::{Link, Rtnl, VfSettings};
use offload_proto::{Failure, Reason, v1};
use sriov::Handover;
use vf_alloc::Device;

use super::{
    cleanliness::Cleanliness,
    host::{Host, HostLinks},
    intake::Wanted,
    intake_failure::{IntakeFailure, NotTaken, none_found, not_found, not_moved, not_taken},
    records::{Phase, PodNetns, Record},
};
use crate::{
    mover::{Original, meets_others},
    vf_source::{self, VfIdentity, VfSource},
};

/// Drafts records. Nothing but a free VF is changed by that, if it has to be restored.
#[derive(Debug)]
pub(super) struct Drafts {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    boot_id: String,
}

impl Drafts {
    pub(super) fn new(host: &Arc<Host>, cleanliness: &Arc<Cleanliness>, boot_id: String) -> Self {
        Self { host: Arc::clone(host), cleanliness: Arc::clone(cleanliness), boot_id }
    }

    /// What is to be recorded of attachments, before anything is changed.
    ///
    /// # Errors
    /// Why the VF of one is not to be had.
    pub(super) fn draft_all(
        &self,
        wanted: Vec<Wanted>,
        netns: &PodNetns,
        rtnl: &mut Rtnl,
    ) -> Result<Vec<Record>, IntakeFailure> {
        let present = HostLinks::of(rtnl).map_err(|error| none_found(not_moved(error)))?;
        let mut drafted = Vec::new();
        for one in wanted {
            let device = one.device();
            match self.draft(one, netns.clone(), &present, rtnl) {
                Ok(record) => drafted.push(record),
                Err(NotTaken { failure, found_vf }) => {
                    let mut found = devices(&drafted);
                    found.extend(found_vf.then_some(device));
                    return Err(IntakeFailure::Unrecorded { failure, found });
                }
            }
        }
        Ok(drafted)
    }

    fn draft(
        &self,
        Wanted { request, mut attachment }: Wanted,
        netns: PodNetns,
        present: &HostLinks,
        rtnl: &mut Rtnl,
    ) -> Result<Record, NotTaken> {
        let (phase, original) = match self.host.records().by_id(&attachment.id) {
            // A repeat: by now the VF may be in the pod, and nothing tells any more what it was like, or what
            // routes with a priority had to give way to.
            Some(same) => {
                if meets_others(&same.attachment) {
                    attachment.routes.clone_from(&same.attachment.routes);
                }
                (same.phase, same.original.clone())
            }
            None => {
                let vf = vf_source::identity_of(attachment.vf.as_ref()).map_err(not_found)?;
                (Phase::Attaching, self.original_of(&vf, present, rtnl)?)
            }
        };
        if original.is_handed_over && request.key.is_of_host_port() {
            return Err(not_taken(without_interface(&attachment)));
        }
        Ok(Record {
            attachment,
            configuration: request.configuration,
            netns,
            original,
            boot_id: self.boot_id.clone(),
            phase,
            device_info_file: request.device_info_file,
            is_returned: false,
            device: OnceLock::new(),
        })
    }

    /// Which of the VFs are in the host's namespace, and nobody else's.
    pub(super) fn found_of(&self, wanted: &[Wanted]) -> Vec<Device> {
        let Ok(mut rtnl) = self.host.rtnl() else { return Vec::new() };
        let Ok(present) = HostLinks::of(&mut rtnl) else { return Vec::new() };
        let mut is_found = |one: &&Wanted| {
            let vf = vf_source::identity_of(one.attachment.vf.as_ref());
            vf.is_ok_and(|vf| self.original_of(&vf, &present, &mut rtnl).is_ok())
        };
        wanted.iter().filter(&mut is_found).map(Wanted::device).collect()
    }

    /// What a VF that no record holds is like, and is to be again.
    fn original_of(
        &self,
        vf: &VfIdentity,
        present: &HostLinks,
        rtnl: &mut Rtnl,
    ) -> Result<Original, NotTaken> {
        let original = match vf_source::link_of(self.host.source(), &present.links, &vf.device) {
            Some(link) => self.original_of_link(vf, link, present, rtnl)?,
            None => self.original_of_device(vf)?,
        };
        let port = port_settings(self.host.source(), rtnl, &vf.device)
            .map_err(|error| not_found(not_moved(error)))?;
        Ok(Original { port, ..original })
    }

    /// What the link of a VF is like, unless the host has taken it since it was offered. What the host
    /// has only changed is restored: nobody is to get it, and it is not to become that again.
    fn original_of_link(
        &self,
        vf: &VfIdentity,
        link: &Link,
        HostLinks { links, addresses }: &HostLinks,
        rtnl: &mut Rtnl,
    ) -> Result<Original, NotTaken> {
        let not_looked_at = |error: netlink::Error| not_found(not_moved(error));
        if let Some(used) = vf_source::use_by_host(link, links, addresses) {
            return Err(not_taken(used_by_host(vf, &used)));
        }
        if self.cleanliness.looks_clean(vf, link) {
            return Ok(Original::from(link));
        }
        self.cleanliness
            .restore(vf, link, rtnl)
            .map_err(|why| not_found(not_as_it_was(vf, &why)))?;
        let restored = rtnl.link_by_index(link.index).map_err(not_looked_at)?;
        let restored = restored.ok_or_else(|| not_found(not_there(vf)))?;
        match self.cleanliness.superficial_differences(vf, &restored).join("; ") {
            what if what.is_empty() => Ok(Original::from(&restored)),
            what => Err(not_found(not_as_it_was(vf, &what))),
        }
    }

    /// What a VF without a link is like.
    fn original_of_device(&self, vf: &VfIdentity) -> Result<Original, NotTaken> {
        match self.host.source().handover(&vf.device) {
            None => Err(not_found(not_there(vf))),
            Some(Handover::Open) => Err(not_taken(used_by_host(vf, "a program has it open"))),
            Some(Handover::Idle) => Ok(Original { is_handed_over: true, ..Original::default() }),
        }
    }
}

/// The VFs of records.
pub(super) fn devices(records: &[Record]) -> Vec<Device> {
    records.iter().map(|record| record.device().clone()).collect()
}

/// What the PF makes of a VF, where that is not the DPU's business.
fn port_settings(
    source: &dyn VfSource,
    rtnl: &mut Rtnl,
    device: &Device,
) -> Result<Option<VfSettings>, netlink::Error> {
    let Some(port) = source.pf_port(device) else { return Ok(None) };
    let Some(pf) = port.link(&rtnl.links()?) else { return Ok(None) };
    Ok(rtnl.vf_settings(pf.index)?.remove(&port.vf))
}

fn without_interface(attachment: &v1::Attachment) -> Failure {
    let device = vf_source::device_of(attachment.vf.as_ref());
    let message = format!(
        "VF {device} is bound to a driver for programs, and a host port needs an interface"
    );
    Failure::new(Reason::Unsupported, message)
}

fn not_there(vf: &VfIdentity) -> Failure {
    let VfIdentity { device, .. } = vf;
    let message = format!("VF {device}, which the DPU chose, is not in the host's namespace");
    Failure::new(Reason::VfMissing, message)
}

fn used_by_host(vf: &VfIdentity, used: &str) -> Failure {
    let message = format!("VF {} is used by the host itself: {used}", vf.device);
    Failure::new(Reason::VfNotFree, message)
}

fn not_as_it_was(vf: &VfIdentity, what: &str) -> Failure {
    let message = format!("VF {} is not as it was: {what}", vf.device);
    Failure::new(Reason::VfNotFree, message)
}
