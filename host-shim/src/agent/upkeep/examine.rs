//! A look at all VFs on demand, and at what is not as it should be.

mod bounds;
mod told;

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use netlink::Link;
use offload_proto::{
    Failure, Finding, MESSAGE_LIMIT, Reason,
    v1::{Difference, Examination, Examine, ExaminedVf, Vf, VfPlace, host_message},
};
use tokio::{task::JoinHandle, time::timeout};

use super::vfs_abroad::{Obstacles, VfAbroad};
use crate::agent::{
    Agent,
    dpu::inventory::HostLinks,
    vfs::place::{Place, place_in},
    vfs::records::{Phase, Record},
};
use crate::{
    mover::inspect,
    vf_source::{self, OtherVf, VfIdentity, VfSource, Whereabouts},
};

/// How long an attachment is waited for that somebody is working at.
const PATIENCE: Duration = Duration::from_secs(1);

/// What findings call the agent itself.
const AGENT: &str = "agent";

/// What was found, by PCI address.
#[derive(Debug, Default)]
struct Findings {
    vfs: BTreeMap<String, ExaminedVf>,
    differences: Vec<Difference>,
    /// The VFs that were not at home, by PCI address, and how that is told unless they came home.
    away: Vec<(String, Difference)>,
}

impl Agent {
    /// Looks at all VFs for the DPU, when it is its turn, and answers.
    ///
    /// # Errors
    /// The answer where as many wait already as may.
    pub(in crate::agent) fn begin_examination(
        self: &Arc<Self>,
        request: Examine,
    ) -> Result<JoinHandle<()>, Examination> {
        let Ok(admission) = Arc::clone(&self.examinations).try_acquire_owned() else {
            let Examine { request_id, .. } = request;
            let problem = "it is being examined already: try again".into();
            return Err(Examination { request_id, problem, ..Examination::default() });
        };
        let (agent, asker, mend) = (Arc::clone(self), self.session.speaker(), request.mend);
        let work = async move {
            let _admission = admission;
            let _turn = agent.examining.lock().await;
            // Whoever asked in an earlier session has given up.
            if asker.strong_count() == 0 {
                return;
            }
            let examination = agent.examine(request).await;
            if let Some(asker) = asker.upgrade() {
                asker.send(host_message::Message::Examination(examination));
            }
        };
        // A look need not be finished before the agent ends.
        Ok(if mend { self.tasks.spawn(work) } else { tokio::spawn(work) })
    }

    /// Looks at all VFs; if asked, mends first what is not as it should be.
    pub(in crate::agent) async fn examine(self: &Arc<Self>, request: Examine) -> Examination {
        let request_id = request.request_id;
        let obstacles = match request.mend {
            true => self.mend_all(request.held.into_iter().collect()).await,
            false => Obstacles::new(),
        };
        let repairs = self.repairs.all();
        match self.look_at_all().await {
            Ok(mut findings) => {
                findings.differences.extend(self.certificate_findings());
                findings.differences.iter_mut().for_each(|found| note_obstacle(found, &obstacles));
                let vfs = findings.vfs.into_values().collect();
                let differences = findings.differences;
                let found =
                    Examination { request_id, vfs, differences, repairs, ..Examination::default() };
                bounds::fit(found, MESSAGE_LIMIT)
            }
            Err(failure) => {
                let problem = format!("the VFs can't be looked at: {failure}");
                bounds::fit(
                    Examination { request_id, repairs, problem, ..Examination::default() },
                    MESSAGE_LIMIT,
                )
            }
        }
    }

    /// That the agent's certificate expires, or that its replacement is refused.
    fn certificate_findings(&self) -> impl Iterator<Item = Difference> + use<> {
        let expiring = self.session.certificate_expiring(self.config.certificate_warning.ahead());
        let problem = self.session.certificate_problem();
        let refused = problem.filter(|problem| expiring.as_ref() != Some(problem));
        let advice = "see the agent's log".to_owned();
        let refused = refused
            .map(|problem| Difference { advice, ..Finding::ServiceProblem.of(AGENT, problem) });
        expiring.map(|told| Finding::CertificateExpires.of(AGENT, told)).into_iter().chain(refused)
    }

    /// Mends what can be mended, and tells by subject what could not be.
    async fn mend_all(self: &Arc<Self>, held: HashSet<String>) -> Obstacles {
        let mut obstacles = self.fetch_vfs_abroad(held).await;
        obstacles.extend(self.find_drivers().await);
        obstacles.extend(self.pass().await);
        obstacles.extend(self.await_renewals().await);
        obstacles.extend(self.mend_pods().await);
        self.inventory_wanted();
        obstacles
    }

    /// Completes the pods' interfaces, and tells by attachment which could not be.
    async fn mend_pods(self: &Arc<Self>) -> Obstacles {
        let mut obstacles = Obstacles::new();
        for record in self.records.all() {
            let _key = self.keys.lock(&record.key()).await;
            let Some(record) = self.records.by_id(record.id()) else { continue };
            if record.phase != Phase::Live {
                continue;
            }
            let Ok(Some(what)) = self.difference_of(&record).await else { continue };
            match self.move_in(&record).await {
                Ok(_) => self.repairs.note(record.id(), what),
                Err(failure) => drop(obstacles.insert(record.id().to_owned(), failure.message)),
            }
        }
        obstacles
    }

    /// What is not as it should be in the pod of a record, if anything.
    async fn difference_of(
        self: &Arc<Self>,
        record: &Arc<Record>,
    ) -> Result<Option<String>, Failure> {
        let Some(netns) = record.netns.living() else { return Ok(None) };
        let cargo = self.cargo(record)?;
        let inspected = self.look(move || inspect(&cargo, &netns)).await?;
        inspected.map_err(|error| Failure::new(Reason::CheckFailed, format!("{error}")))
    }

    async fn look_at_all(self: &Arc<Self>) -> Result<Findings, Failure> {
        let agent = Arc::clone(self);
        let (mut findings, free) = self.listed(move || agent.look_without_records()).await?;
        findings.differences.extend(self.differences_of_free(free).await?);
        for record in self.records.all() {
            let looked = timeout(PATIENCE, self.look_at_record(&record, &findings)).await;
            let (vf, differences) = match looked {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // What somebody is working at is neither one way nor the other.
                Err(_) => (under_way(&record), None),
            };
            findings.vfs.insert(record.pci_address().to_owned(), vf);
            findings.differences.extend(differences);
        }
        let agent = Arc::clone(self);
        self.listed(move || agent.look_for_arrivals(findings)).await
    }

    /// Looks at home again: what came home meanwhile, as from a pod that has ended, was perhaps seen
    /// nowhere, or where it no longer is.
    fn look_for_arrivals(&self, mut findings: Findings) -> Result<Findings, netlink::Error> {
        let present = self.host_links()?;
        let is_recorded = |address: &str| self.records.by_pci_address(address).is_some();
        for (vf, link) in vf_source::vfs(&*self.source, &present.links) {
            let found = findings.vfs.get(&vf.pci_address);
            let was_here = found.is_some_and(|found| found.place() == VfPlace::Host);
            if !was_here && !is_recorded(&vf.pci_address) {
                findings.insert(found_at_home(&vf, link, &present));
            }
        }
        let is_away = |address: &str| {
            vf_source::link_of(&*self.source, &present.links, address).is_none()
                && !is_recorded(address)
        };
        let away = mem::take(&mut findings.away).into_iter();
        let still_away = away.filter(|(address, _)| is_away(address));
        findings.differences.extend(still_away.map(|(_, difference)| difference));
        Ok(findings)
    }

    /// The VFs of which there is no record, and where the others are that are not in their pods. Besides,
    /// the free ones with their links' indices.
    fn look_without_records(&self) -> Result<(Findings, Vec<(VfIdentity, u32)>), netlink::Error> {
        let present = self.host_links()?;
        self.learn_originals(&present);
        let mut findings = Findings::default();
        let mut free = Vec::new();
        for (vf, link) in vf_source::vfs(&*self.source, &present.links) {
            findings.insert(found_at_home(&vf, link, &present));
            if self.is_free(&vf, link, &present) {
                free.push((vf, link.index));
            }
        }
        for VfAbroad { vf, link, path, .. } in self.vfs_abroad(&present.links) {
            let netns = path.display().to_string();
            if self.records.by_pci_address(&vf.pci_address).is_none() {
                let message = format!("it is in the network namespace {netns} as {}", link.name);
                let told = Finding::VfElsewhere.of(name_of(&vf), message);
                findings.away.push((vf.pci_address.clone(), told));
            }
            findings.insert(ExaminedVf { netns, ..found_in(&vf, VfPlace::Elsewhere, &link.name) });
        }
        let is_known = |address: &str| {
            findings.vfs.contains_key(address) || self.records.by_pci_address(address).is_some()
        };
        for other in self.source.other_vfs(&is_known) {
            let told = told::difference_of_other(&other);
            findings.away.extend(told.map(|told| (other.identity.pci_address.clone(), told)));
            findings.insert(found_without_netdev(&other));
        }
        Ok((findings, free))
    }

    /// How VFs that nobody has are not as they were. One that was being brought into order or given
    /// out meanwhile is looked at again.
    async fn differences_of_free(
        self: &Arc<Self>,
        mut free: Vec<(VfIdentity, u32)>,
    ) -> Result<Vec<Difference>, Failure> {
        let found = self.differing_among(&free).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let agent = Arc::clone(self);
        free = self.listed(move || agent.free_among(&found)).await?;
        let found = self.differing_among(&free).await?.into_iter();
        Ok(found.map(|(vf, what)| Finding::VfDiffers.of(name_of(&vf), what)).collect())
    }

    /// Those of free VFs that are not as they were, each with what is not.
    async fn differing_among(
        self: &Arc<Self>,
        free: &[(VfIdentity, u32)],
    ) -> Result<Vec<(VfIdentity, String)>, Failure> {
        let (agent, looked_at) = (Arc::clone(self), free.to_vec());
        let seen = self.listed(move || agent.see(&looked_at)).await?;
        let mut found = self.prove(seen).await?;
        let differing = free.iter().filter_map(|(vf, _)| {
            let what = found.remove(&vf.pci_address)?.join("; ");
            (!what.is_empty()).then(|| (vf.clone(), what))
        });
        Ok(differing.collect())
    }

    /// Those of VFs that nobody has, with their links' indices.
    fn free_among(
        &self,
        vfs: &[(VfIdentity, String)],
    ) -> Result<Vec<(VfIdentity, u32)>, netlink::Error> {
        let present = self.host_links()?;
        let free = vf_source::vfs(&*self.source, &present.links).filter(|(vf, link)| {
            vfs.iter().any(|(wanted, _)| wanted == vf) && self.is_free(vf, link, &present)
        });
        Ok(free.map(|(vf, link)| (vf, link.index)).collect())
    }

    /// The VF of a record, once nobody is working at it.
    async fn look_at_record(
        self: &Arc<Self>,
        record: &Record,
        findings: &Findings,
    ) -> Option<(ExaminedVf, Option<Difference>)> {
        let _key = self.keys.lock(&record.key()).await;
        let record = self.records.by_id(record.id())?;
        if record.phase == Phase::Attaching {
            // It is about to be given back, or to be repeated.
            return Some((under_way(&record), None));
        }
        let is_in_pod = {
            let (agent, record) = (Arc::clone(self), Arc::clone(&record));
            self.look(move || is_in_netns_of_pod(&*agent.source, &record)).await.ok()?
        };
        let vf = found_of_record(&record, is_in_pod, findings);
        if record.phase == Phase::Releasing {
            let differing = self.proofs.differences(record.pci_address()).join("; ");
            let pending = told::release_pending(&record, &vf, &differing);
            return Some((vf, Some(pending)));
        }
        let difference = match self.difference_of(&record).await {
            _ if !is_in_pod => Some(told::vf_missing(&record, &vf)),
            Ok(what) => what.map(|what| told::pod_differs(&record, &what)),
            Err(failure) => Some(told::pod_differs(&record, &failure.message)),
        };
        Some((vf, difference))
    }

    /// What findings call a VF.
    pub(in crate::agent) fn subject_of(&self, vf: &VfIdentity) -> String {
        let recorded = self.records.by_pci_address(&vf.pci_address);
        recorded.map_or_else(|| name_of(vf), |record| record.id().to_owned())
    }
}

impl Findings {
    fn insert(&mut self, vf: ExaminedVf) {
        let address = vf.vf.as_ref().map(|vf| vf.pci_address.clone()).unwrap_or_default();
        self.vfs.insert(address, vf);
    }
}

/// What was tried and failed is told as such.
fn note_obstacle(found: &mut Difference, obstacles: &Obstacles) {
    if let Some(why) = obstacles.get(&found.subject) {
        found.set_unmended(why);
    }
}

/// As operators call it: `pf0vf3`.
fn name_of(vf: &VfIdentity) -> String {
    let controller = match vf.controller {
        0 => String::new(),
        controller => format!("c{controller}"),
    };
    format!("{controller}pf{}vf{}", vf.pf, vf.vf)
}

fn message_of(vf: &VfIdentity) -> Vf {
    let VfIdentity { controller, pf, vf, pci_address } = vf.clone();
    Vf { controller, pf, vf, pci_address }
}

fn found_in(vf: &VfIdentity, place: VfPlace, netdev: &str) -> ExaminedVf {
    ExaminedVf {
        vf: Some(message_of(vf)),
        place: place.into(),
        netdev: netdev.to_owned(),
        ..ExaminedVf::default()
    }
}

fn found_at_home(vf: &VfIdentity, link: &Link, present: &HostLinks) -> ExaminedVf {
    let HostLinks { links, addresses } = present;
    let use_by_host = vf_source::use_by_host(link, links, addresses).unwrap_or_default();
    ExaminedVf { use_by_host, ..found_in(vf, VfPlace::Host, &link.name) }
}

fn found_without_netdev(other: &OtherVf) -> ExaminedVf {
    let place = match other.whereabouts {
        Whereabouts::Unbound => VfPlace::Unbound,
        Whereabouts::HandedOver(_) => VfPlace::HandedOver,
        Whereabouts::Elsewhere => VfPlace::Nowhere,
    };
    found_in(&other.identity, place, "")
}

fn is_in_netns_of_pod(source: &dyn VfSource, record: &Record) -> bool {
    record.netns.living().is_some_and(|pod| {
        matches!(place_in(source, &pod, record), Ok(Place::Pod | Place::Unfinished))
    })
}

fn found_of_record(record: &Record, is_in_pod: bool, findings: &Findings) -> ExaminedVf {
    let place = match record.original.is_handed_over {
        true => VfPlace::HandedOver,
        false => VfPlace::Pod,
    };
    let in_pod = || ExaminedVf {
        place: place.into(),
        netdev: record.key().interface_name,
        netns: record.netns.path.clone(),
        ..ExaminedVf::default()
    };
    let found = if is_in_pod { None } else { findings.vfs.get(record.pci_address()).cloned() };
    let nowhere = || ExaminedVf { place: VfPlace::Nowhere.into(), ..ExaminedVf::default() };
    let vf = found.unwrap_or_else(|| if is_in_pod { in_pod() } else { nowhere() });
    with_record(vf, record)
}

/// A VF with what a record has of it.
fn with_record(vf: ExaminedVf, record: &Record) -> ExaminedVf {
    let attachment = &record.attachment;
    let addresses = attachment.addresses.iter().map(|address| address.address.clone());
    ExaminedVf {
        vf: attachment.vf.clone(),
        attachment_id: attachment.id.clone(),
        mac: attachment.mac.clone(),
        addresses: addresses.collect(),
        ..vf
    }
}

fn under_way(record: &Record) -> ExaminedVf {
    with_record(ExaminedVf::default(), record)
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::DifferenceState;

    use super::*;
    use crate::agent::{tests::agent, vfs::records::tests::record};
    use sriov::Handover;

    fn examine(mend: bool) -> Examine {
        Examine { request_id: 7, mend, held: Vec::new() }
    }

    #[tokio::test]
    async fn a_host_without_anything_is_in_order() {
        let (agent, _folder) = agent();
        let found = agent.examine(examine(false)).await;
        assert_eq!(found, Examination { request_id: 7, ..Examination::default() });
    }

    #[tokio::test]
    async fn only_one_examination_waits_for_the_one_that_is_made() {
        let (agent, _folder) = agent();
        let turn = agent.examining.lock().await;
        let begun = [true, true].map(|mend| agent.begin_examination(examine(mend)).unwrap());
        let busy = agent.begin_examination(examine(false)).unwrap_err();
        assert!(busy.request_id == 7 && busy.problem.ends_with("try again"), "{busy:?}");
        drop(turn);
        let before = *agent.last_pass.lock().unwrap();
        for ended in begun {
            ended.await.unwrap();
        }
        assert_eq!(*agent.last_pass.lock().unwrap(), before, "nobody waits for it: no session");
        drop(agent.begin_examination(examine(false)).unwrap());
    }

    #[tokio::test]
    async fn a_vf_that_is_nowhere_is_told_and_why_it_can_not_be_mended() {
        let (agent, _folder) = agent();
        let mut record = record("a", "c");
        record.attachment.mac = "02:00:00:00:00:07".into();
        agent.records.keep(&Arc::new(record));
        let found = agent.examine(examine(false)).await;
        let vf = &found.vfs[0];
        let of_record = (vf.attachment_id.as_str(), vf.mac.as_str());
        assert_eq!((vf.place(), of_record), (VfPlace::Nowhere, ("a", "02:00:00:00:00:07")));
        assert_eq!(
            (found.differences[0].code.as_str(), found.differences.len()),
            ("POD_VF_MISSING", 1)
        );
    }

    #[tokio::test]
    async fn a_release_whose_vf_is_away_waits_for_the_vf_and_not_for_the_dpu() {
        let (agent, _folder) = agent();
        let releasing = Record { phase: Phase::Releasing, ..record("a", "c") };
        agent.records.keep(&Arc::new(releasing));
        let found = agent.examine(examine(false)).await;
        let told = &found.differences[0];
        assert_eq!(told.code, "RELEASE_PENDING");
        assert!(told.message.contains("VF pci-a is not back yet"), "{told:?}");
    }

    #[test]
    fn vfs_without_a_netdev_are_told_by_where_they_are() {
        let identity =
            VfIdentity { controller: 1, pf: 0, vf: 2, pci_address: "0000:03:00.4".into() };
        let told = |whereabouts| {
            let other = OtherVf { identity: identity.clone(), whereabouts };
            let difference =
                told::difference_of_other(&other).map(|found| (found.code, found.subject));
            (found_without_netdev(&other).place(), difference)
        };
        let found = |finding: Finding| Some((finding.as_str().to_owned(), "c1pf0vf2".to_owned()));
        assert_eq!(told(Whereabouts::Unbound), (VfPlace::Unbound, found(Finding::VfUnbound)));
        assert_eq!(told(Whereabouts::HandedOver(Handover::Open)), (VfPlace::HandedOver, None));
        assert_eq!(told(Whereabouts::Elsewhere), (VfPlace::Nowhere, found(Finding::VfNowhere)));
    }

    #[test]
    fn what_was_tried_and_failed_is_told_with_the_reason() {
        let mut found = Finding::VfElsewhere.of("pf0vf1", "it is away");
        let obstacles = Obstacles::from([("pf0vf1".to_owned(), "busy".to_owned())]);
        note_obstacle(&mut found, &obstacles);
        assert_eq!((found.state(), found.why.as_str()), (DifferenceState::Unmended, "busy"));
    }
}
