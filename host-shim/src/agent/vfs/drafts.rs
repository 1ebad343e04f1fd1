//! What is recorded of an attachment, and so what its VF is to be again.

use std::sync::{Arc, OnceLock};

use netlink::{Link, Rtnl, VfSettings};
use offload_proto::{Failure, Reason, v1};
use sriov::Handover;
use uuid::Uuid;
use vf_alloc::{Device, PfId, VfOffer};

use super::{
    cleanliness::Cleanliness,
    host::{Host, HostLinks},
    intake_failure::not_moved,
    records::{Phase, PodNetns, Record},
};
use crate::{
    mover::{Baseline, MoveError, meets_others},
    protocol::{AddRequest, Key},
    vf_source::{self, VfIdentity, VfSource, device_of},
};

/// An attachment that the DPU has made, and that is to be recorded.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Wanted {
    pub request: AddRequest,
    pub attachment: v1::Attachment,
}

impl Wanted {
    /// The VF that the DPU chose.
    pub(in crate::agent) fn device(&self) -> Device {
        device_of(self.attachment.vf.as_ref())
    }
}

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
    /// A VF is not available.
    pub(super) fn draft_all(
        &self,
        wanted: Vec<Wanted>,
        netns: &PodNetns,
        rtnl: &mut Rtnl,
    ) -> Result<Vec<Record>, Failure> {
        let mut present = None;
        let draft = |one| self.draft(one, netns.clone(), &mut present, rtnl);
        wanted.into_iter().map(draft).collect()
    }

    fn draft(
        &self,
        Wanted { request, mut attachment }: Wanted,
        netns: PodNetns,
        present: &mut Option<HostLinks>,
        rtnl: &mut Rtnl,
    ) -> Result<Record, Failure> {
        let (phase, original) = match self.host.records().by_id(&attachment.id) {
            // A repeat: the VF may be in the pod by now, so its state before and the pod's routes then cannot be read
            // again.
            Some(same) => {
                if meets_others(&same.attachment) {
                    attachment.routes.clone_from(&same.attachment.routes);
                }
                // The DPU tells whether the port is still to be waited for: of one that forwards, not.
                attachment.port_follows_vf |= same.attachment.port_follows_vf;
                (same.phase, same.original.clone())
            }
            None => {
                let vf = vf_source::identity_of(attachment.vf.as_ref())?;
                let original = match self.guessed_original(&request.key, &vf.device) {
                    Some(original) => original,
                    None => self.original_of(&vf, listed(present, rtnl)?, rtnl)?,
                };
                (Phase::Attaching, original)
            }
        };
        if original.is_handed_over && request.key.is_of_host_port() {
            return Err(without_interface(&attachment));
        }
        Ok(Record {
            attachment,
            configuration: request.configuration,
            netns,
            original,
            boot_id: self.boot_id.clone(),
            phase,
            device_info_file: request.device_info_file,
            is_guess: false,
            stacked: Vec::new(),
            release_cause: String::new(),
            offer: None,
            is_returned: false,
            device: OnceLock::new(),
        })
    }

    /// What a VF was like that was moved ahead: by now it is in the pod.
    fn guessed_original(&self, key: &Key, device: &Device) -> Option<Baseline> {
        let guess = self.host.records().guess_of(key)?;
        (guess.device() == device).then(|| guess.original.clone())
    }

    /// What is to be recorded of a VF that is moved ahead. `None`: it is not to be. It has to be proven to be as it
    /// was, so that nothing has to be restored first. And the DPU has to have its port, which nothing passes before
    /// that is programmed: what a PF keeps a pod to is set on the VF itself, and before it moves.
    pub(super) fn draft_guess(
        &self,
        request: &AddRequest,
        offer: &VfOffer,
        netns: &PodNetns,
        present: &HostLinks,
    ) -> Option<Record> {
        let (source, device) = (self.host.source(), &offer.device);
        let name = self.cleanliness.originals().get(device).map(|own| own.name.clone());
        let link = vf_source::link_called(source, &present.links, device, name.as_deref())?;
        let vf = source.vf_of(link)?;
        let is_to_be_had =
            self.host.is_free(&vf, link, present) && self.cleanliness.is_clean(&vf, link);
        if !is_to_be_had || source.pf_port(device).is_some() {
            return None;
        }
        Some(Record {
            attachment: unanswered(request, &vf, link),
            configuration: request.configuration.clone(),
            netns: netns.clone(),
            original: Baseline::from(link),
            boot_id: self.boot_id.clone(),
            phase: Phase::Attaching,
            device_info_file: None,
            is_guess: true,
            stacked: Vec::new(),
            release_cause: String::new(),
            offer: Some(offer.clone()),
            is_returned: false,
            device: OnceLock::new(),
        })
    }

    /// Which of the VFs that no record holds are in the host's namespace, and ready to be given out again. Whether the
    /// host uses one itself the inventory tells.
    pub(super) fn at_home(&self, wanted: &[Wanted]) -> Vec<Device> {
        let Ok(present) = self.host.links() else { return Vec::new() };
        let new =
            wanted.iter().filter(|one| self.host.records().by_id(&one.attachment.id).is_none());
        new.filter(|one| self.is_at_home(one, &present)).map(Wanted::device).collect()
    }

    fn is_at_home(&self, wanted: &Wanted, present: &HostLinks) -> bool {
        let Ok(vf) = vf_source::identity_of(wanted.attachment.vf.as_ref()) else { return false };
        let HostLinks { links, addresses } = present;
        match vf_source::link_of(self.host.source(), links, &vf.device) {
            Some(link) => {
                vf_source::use_by_host(link, links, addresses).is_some()
                    || self.cleanliness.looks_clean(&vf, link)
            }
            None => self.host.source().handover(&vf.device).is_ok_and(|found| found.is_some()),
        }
    }

    /// What a VF that no record holds is like, and is to be again.
    fn original_of(
        &self,
        vf: &VfIdentity,
        present: &HostLinks,
        rtnl: &mut Rtnl,
    ) -> Result<Baseline, Failure> {
        let own = self.cleanliness.own_state(vf);
        let name = own.as_ref().map(|own| own.name.as_str());
        let source = self.host.source();
        let original = match vf_source::link_called(source, &present.links, &vf.device, name) {
            Some(link) => self.original_of_link(vf, link, present, rtnl)?,
            None => self.original_of_device(vf)?,
        };
        let port = port_settings(source, rtnl, &vf.device).map_err(not_moved)?;
        Ok(Baseline { port, ..original })
    }

    /// The link's state to restore, unless the host uses the VF since the offer. A change by the host alone is undone:
    /// the pod must not get it, and it must not become the baseline.
    fn original_of_link(
        &self,
        vf: &VfIdentity,
        link: &Link,
        HostLinks { links, addresses }: &HostLinks,
        rtnl: &mut Rtnl,
    ) -> Result<Baseline, Failure> {
        if let Some(used) = vf_source::use_by_host(link, links, addresses) {
            return Err(used_by_host(vf, &used));
        }
        if self.cleanliness.looks_clean(vf, link) {
            return Ok(Baseline::from(link));
        }
        self.cleanliness.restore(vf, link, rtnl).map_err(|why| not_as_it_was(vf, &why))?;
        let restored = rtnl.link_by_index(link.index).map_err(not_moved)?;
        let restored = restored.ok_or_else(|| not_there(vf))?;
        match self.cleanliness.superficial_differences(vf, &restored).join("; ") {
            what if what.is_empty() => Ok(Baseline::from(&restored)),
            what => Err(not_as_it_was(vf, &what)),
        }
    }

    /// What a VF without a link is like.
    fn original_of_device(&self, vf: &VfIdentity) -> Result<Baseline, Failure> {
        let handover = self.host.source().handover(&vf.device);
        match handover.map_err(|error| not_moved(MoveError::Driver(error)))? {
            None => Err(not_there(vf)),
            Some(Handover::Open) => Err(used_by_host(vf, vf_source::OPEN)),
            Some(Handover::Idle) => Ok(Baseline { is_handed_over: true, ..Baseline::default() }),
        }
    }
}

/// What is in the host's namespace, listed when it is asked for first.
fn listed<'a>(
    present: &'a mut Option<HostLinks>,
    rtnl: &mut Rtnl,
) -> Result<&'a HostLinks, Failure> {
    match present {
        Some(present) => Ok(present),
        None => Ok(present.insert(HostLinks::of(rtnl).map_err(not_moved)?)),
    }
}

/// What is known of an attachment that the DPU has not answered yet. The interface keeps the VF's own MAC address and
/// MTU, and has no addresses.
fn unanswered(request: &AddRequest, vf: &VfIdentity, link: &Link) -> v1::Attachment {
    let PfId { controller, pf } = vf.id.pf;
    v1::Attachment {
        // A new id each time: a task that listed an earlier speculative record of the VF must not find this one by it.
        id: Uuid::now_v7().to_string(),
        key: Some(request.key.clone().into()),
        vf: Some(v1::Vf {
            controller,
            pf: pf.into(),
            vf: vf.id.vf.into(),
            device: vf.device.to_string(),
        }),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        ..v1::Attachment::default()
    }
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
    let device = device_of(attachment.vf.as_ref());
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
    let message = format!("VF {} differs from its baseline: {what}", vf.device);
    Failure::new(Reason::VfNotFree, message)
}
