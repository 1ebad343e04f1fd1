//! Examines all VFs on demand and reports their problems.

mod bounds;
mod found;
pub(super) mod told;

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use mtls::ExpiryWarning;
use offload_proto::{
    Failure, FindingCode, MESSAGE_LIMIT,
    v1::{Examination, Examine, ExaminedVf, Finding, VfPlace, host_message},
};
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};
use vf_alloc::Device;

use super::{host_ports::HostPorts, keeper::Keeper};
use crate::{
    agent::{
        repairs::Obstacles,
        verbs::Doors,
        vfs::{Phase, Record, VfAbroad, Vfs},
    },
    vf_source::VfIdentity,
};
use found::{Examined, found_at_home, found_in, found_of_record, found_without_netdev, under_way};

/// Examinations at the same time: one that is made, and one that waits, as of a next session.
const EXAMINATIONS: usize = 2;

/// How long an examination waits for an attachment that another task works on.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What findings call the agent itself.
const AGENT: &str = "agent";

/// Examines the host for operators.
#[derive(Debug)]
pub(super) struct Examiner {
    doors: Doors,
    keeper: Arc<Keeper>,
    host_ports: Arc<HostPorts>,
    /// When an examination reports that the certificate expires.
    warning: ExpiryWarning,
    /// The examinations that may be wanted at a time.
    admissions: Arc<Semaphore>,
    /// Held during an examination.
    examining: tokio::sync::Mutex<()>,
}

impl Examiner {
    pub(super) fn new(
        doors: Doors,
        keeper: Arc<Keeper>,
        host_ports: Arc<HostPorts>,
        warning: ExpiryWarning,
    ) -> Self {
        Self {
            doors,
            keeper,
            host_ports,
            warning,
            admissions: Arc::new(Semaphore::new(EXAMINATIONS)),
            examining: tokio::sync::Mutex::default(),
        }
    }

    fn vfs(&self) -> &Arc<Vfs> {
        &self.doors.vfs
    }

    /// Looks at all VFs for the DPU, when it is its turn, and answers.
    ///
    /// # Errors
    /// The answer where as many wait already as may.
    pub(super) fn begin(self: &Arc<Self>, request: Examine) -> Result<JoinHandle<()>, Examination> {
        let Ok(admission) = Arc::clone(&self.admissions).try_acquire_owned() else {
            let Examine { request_id, .. } = request;
            let problem = "the host is being examined by another call: try again".into();
            return Err(Examination { request_id, problem, ..Examination::default() });
        };
        let session = self.doors.dpu.session();
        let (examiner, asker, repair) = (Arc::clone(self), session.speaker(), request.repair);
        let work = async move {
            let _admission = admission;
            let _turn = examiner.examining.lock().await;
            // The asker's session has ended.
            if asker.strong_count() == 0 {
                return;
            }
            let examination = examiner.examine(request).await;
            if let Some(asker) = asker.upgrade() {
                asker.send(host_message::Message::Examination(examination));
            }
        };
        // A look need not be finished before the agent ends.
        Ok(if repair { self.doors.tasks.spawn(work) } else { tokio::spawn(work) })
    }

    /// Examines all VFs; repairs their problems first if asked.
    async fn examine(self: &Arc<Self>, request: Examine) -> Examination {
        let request_id = request.request_id;
        let obstacles = match request.repair {
            true => self.repair_all(request.held.into_iter().map(Device::from).collect()).await,
            false => Obstacles::new(),
        };
        let repairs = self.vfs().repairs().all();
        match self.look_at_all().await {
            Ok(mut examined) => {
                examined.findings.extend(self.certificate_findings());
                examined.findings.extend(self.host_ports.findings());
                examined.findings.extend(self.doors.delegates.findings());
                let unused = self.doors.dpu.pod_findings().unused(self.vfs().records());
                examined.findings.extend(unused);
                examined.findings.iter_mut().for_each(|found| note_obstacle(found, &obstacles));
                let vfs = examined.vfs.into_values().collect();
                let findings = examined.findings;
                let found =
                    Examination { request_id, vfs, findings, repairs, ..Examination::default() };
                bounds::fit(found, MESSAGE_LIMIT)
            }
            Err(failure) => {
                let problem = format!("cannot examine the VFs: {failure}");
                bounds::fit(
                    Examination { request_id, repairs, problem, ..Examination::default() },
                    MESSAGE_LIMIT,
                )
            }
        }
    }

    /// That the agent's certificate expires, or that its replacement is refused.
    fn certificate_findings(&self) -> impl Iterator<Item = Finding> + use<> {
        let session = self.doors.dpu.session();
        let expiring = session.certificate_expiring(self.warning.ahead());
        let problem = session.certificate_problem();
        let refused = problem.filter(|problem| expiring.as_ref() != Some(problem));
        let advice = "see the agent's log".to_owned();
        let refused = refused
            .map(|problem| Finding { advice, ..FindingCode::ServiceProblem.of(AGENT, problem) });
        expiring
            .map(|told| FindingCode::CertificateExpires.of(AGENT, told))
            .into_iter()
            .chain(refused)
    }

    /// Repairs what can be repaired, and tells by subject what could not be.
    async fn repair_all(self: &Arc<Self>, held: HashSet<Device>) -> Obstacles {
        let mut obstacles = self.vfs().abroad().fetch_all(held).await;
        obstacles.extend(self.vfs().numbers().find_drivers().await);
        // After the others: the pass restores VFs that returned and starts resets. The examination waits for those, so
        // that the operator learns the result.
        obstacles.extend(self.keeper.pass().await);
        obstacles.extend(self.vfs().renewer().await_all().await);
        self.doors.delegates.nobody_again().await;
        obstacles.extend(self.repair_pods().await);
        self.host_ports.compare().await;
        self.doors.dpu.reports().inventory_wanted();
        obstacles
    }

    /// Completes the pods' interfaces, and tells by attachment which could not be.
    async fn repair_pods(self: &Arc<Self>) -> Obstacles {
        let mut obstacles = Obstacles::new();
        for record in self.vfs().records().all() {
            let _key = self.vfs().keys().lock(&record.key()).await;
            let Some(record) = self.vfs().records().by_id(record.id()) else { continue };
            if record.phase != Phase::Live {
                continue;
            }
            let Ok(Some(what)) = self.difference_of(&record).await else { continue };
            let port = self.doors.dpu.calls().await_port(&record.attachment);
            match self.vfs().intake().move_in(&record, port).await {
                Ok(_) => {
                    self.vfs().repairs().note(record.id(), what);
                    self.look_again(&record).await;
                }
                Err(failure) => drop(obstacles.insert(record.id().to_owned(), failure.message)),
            }
        }
        self.doors.dpu.report_pod_findings();
        obstacles
    }

    /// Examines a repaired pod, so that the DPU gets the result before the operator is answered. If this fails, the next
    /// pass examines the pod.
    async fn look_again(self: &Arc<Self>, record: &Arc<Record>) {
        let findings = self.doors.dpu.pod_findings();
        match self.difference_of(record).await {
            Ok(None) => findings.clear(record.id()),
            Ok(Some(what)) => findings.note(told::pod_differs(record, &what)),
            Err(_) => {}
        }
    }

    /// The problem of a record's pod, if there is one.
    async fn difference_of(
        self: &Arc<Self>,
        record: &Arc<Record>,
    ) -> Result<Option<String>, Failure> {
        let Some(netns) = record.netns.living() else { return Ok(None) };
        self.vfs().inspect(record, netns, None).await
    }

    async fn look_at_all(self: &Arc<Self>) -> Result<Examined, Failure> {
        let examiner = Arc::clone(self);
        let (mut examined, free) =
            self.vfs().host().listed(move || examiner.look_without_records()).await?;
        examined.findings.extend(self.findings_of_free(free).await?);
        for record in self.vfs().records().all() {
            let looked = timeout(TIMEOUT, self.look_at_record(&record, &examined)).await;
            let (vf, findings) = match looked {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // An attachment that another task works on is neither right nor wrong.
                Err(_) => (under_way(&record), None),
            };
            examined.vfs.insert(record.device().clone(), vf);
            examined.findings.extend(findings);
        }
        let examiner = Arc::clone(self);
        self.vfs().host().listed(move || examiner.look_for_arrivals(examined)).await
    }

    /// Looks in the host's namespace again: a VF that returned since, for example from an ended pod, was seen nowhere
    /// or at its old place.
    fn look_for_arrivals(&self, mut examined: Examined) -> Result<Examined, netlink::Error> {
        let present = self.vfs().host().links()?;
        let is_recorded = |device: &Device| self.vfs().records().by_device(device).is_some();
        for (vf, link) in self.vfs().host().cards().vfs(&present.links) {
            let found = examined.vfs.get(&vf.device);
            let was_here = found.is_some_and(|found| found.place() == VfPlace::Host);
            if !was_here && !is_recorded(&vf.device) {
                examined.insert(found_at_home(&vf, link, &present));
            }
        }
        let is_away = |device: &Device| {
            !self.vfs().host().cards().is_among(device, &present.links) && !is_recorded(device)
        };
        let away = mem::take(&mut examined.away).into_iter();
        let still_away = away.filter(|(device, _)| is_away(device));
        examined.findings.extend(still_away.map(|(_, finding)| finding));
        Ok(examined)
    }

    /// The VFs without a record, and the places of VFs that are not in their pods. Also returns the free VFs with their
    /// links' indices.
    fn look_without_records(&self) -> Result<(Examined, Vec<(VfIdentity, u32)>), netlink::Error> {
        let present = self.vfs().host().links()?;
        self.vfs().cleanliness().learn_originals(&present);
        let mut examined = Examined::default();
        let mut free = Vec::new();
        for (vf, link) in self.vfs().host().cards().vfs(&present.links) {
            examined.insert(found_at_home(&vf, link, &present));
            if self.vfs().host().is_free(&vf, link, &present) {
                free.push((vf, link.index));
            }
        }
        for VfAbroad { vf, link, path, .. } in self.vfs().abroad().find(&present.links) {
            let netns = path.display().to_string();
            if self.vfs().records().by_device(&vf.device).is_none() {
                let message = format!("it is in the network namespace {netns} as {}", link.name);
                let told = FindingCode::VfElsewhere.of(vf.id.to_string(), message);
                examined.away.push((vf.device.clone(), told));
            }
            examined.insert(ExaminedVf { netns, ..found_in(&vf, VfPlace::Elsewhere, &link.name) });
        }
        let is_known = |device: &Device| {
            examined.vfs.contains_key(device) || self.vfs().records().by_device(device).is_some()
        };
        for other in self.vfs().host().cards().others(&is_known) {
            let told = told::finding_of_other(&other);
            examined.away.extend(told.map(|told| (other.identity.device.clone(), told)));
            examined.insert(found_without_netdev(&other));
        }
        Ok((examined, free))
    }

    /// The findings of free VFs from their baselines. A VF that was being restored or allocated is looked at again.
    async fn findings_of_free(
        self: &Arc<Self>,
        mut free: Vec<(VfIdentity, u32)>,
    ) -> Result<Vec<Finding>, Failure> {
        let found = self.differing_among(&free).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let examiner = Arc::clone(self);
        free = self.vfs().host().listed(move || examiner.free_among(&found)).await?;
        let found = self.differing_among(&free).await?.into_iter();
        Ok(found.map(|(vf, what)| FindingCode::VfDiffers.of(vf.id.to_string(), what)).collect())
    }

    /// Those of free VFs that are not as they were, each with what is not.
    async fn differing_among(
        self: &Arc<Self>,
        free: &[(VfIdentity, u32)],
    ) -> Result<Vec<(VfIdentity, String)>, Failure> {
        let (cleanliness, looked_at) = (Arc::clone(self.vfs().cleanliness()), free.to_vec());
        let seen = self.vfs().host().listed(move || cleanliness.see(&looked_at)).await?;
        let mut found = self.vfs().cleanliness().prove(seen).await?;
        let differing = free.iter().filter_map(|(vf, _)| {
            let what = found.remove(&vf.device)?.join("; ");
            (!what.is_empty()).then(|| (vf.clone(), what))
        });
        Ok(differing.collect())
    }

    /// The free VFs with their links' indices.
    fn free_among(
        &self,
        vfs: &[(VfIdentity, String)],
    ) -> Result<Vec<(VfIdentity, u32)>, netlink::Error> {
        let present = self.vfs().host().links()?;
        let free = self.vfs().host().cards().vfs(&present.links).filter(|(vf, link)| {
            vfs.iter().any(|(wanted, _)| wanted == vf)
                && self.vfs().host().is_free(vf, link, &present)
        });
        Ok(free.map(|(vf, link)| (vf, link.index)).collect())
    }

    /// The VF of a record, once no other task works on it.
    async fn look_at_record(
        self: &Arc<Self>,
        record: &Record,
        examined: &Examined,
    ) -> Option<(ExaminedVf, Option<Finding>)> {
        let _key = self.vfs().keys().lock(&record.key()).await;
        let record = self.vfs().records().by_id(record.id())?;
        if record.phase == Phase::Attaching {
            // It is about to be given back, or to be repeated.
            return Some((under_way(&record), None));
        }
        let is_in_pod = {
            let (host, record) = (Arc::clone(self.vfs().host()), Arc::clone(&record));
            self.vfs().host().look(move || host.is_in_netns_of_pod(&record)).await.ok()?
        };
        let vf = found_of_record(&record, is_in_pod, examined);
        if record.phase == Phase::Releasing {
            let differing = self.vfs().cleanliness().known_differences(record.device()).join("; ");
            let pending = told::release_pending(&record, &vf, &differing);
            return Some((vf, Some(pending)));
        }
        let finding = match self.difference_of(&record).await {
            _ if !is_in_pod => Some(told::vf_missing(&record, &vf)),
            Ok(what) => what.map(|what| told::pod_differs(&record, &what)),
            Err(failure) => Some(told::pod_differs(&record, &failure.message)),
        };
        Some((vf, finding))
    }
}

/// Adds the reason of a failed repair to the finding.
fn note_obstacle(found: &mut Finding, obstacles: &Obstacles) {
    if let Some(why) = obstacles.get(&found.subject) {
        found.set_not_repaired(why);
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::FindingState;
    use test_clock::within;

    use super::*;
    use crate::agent::{
        upkeep::keeper::tests::{hold_passes, keeper, last_pass},
        vfs::{record, tests::keep},
    };
    use crate::vf_source::{OtherVf, Whereabouts};
    use sriov::Handover;

    fn examiner() -> (Arc<Examiner>, tempfile::TempDir) {
        let (keeper, folder) = keeper();
        let doors = keeper.doors().clone();
        let host_ports = Arc::new(HostPorts::new(doors.clone(), Vec::new()));
        (Arc::new(Examiner::new(doors, keeper, host_ports, ExpiryWarning::default())), folder)
    }

    fn examine(repair: bool) -> Examine {
        Examine { request_id: 7, repair, held: Vec::new() }
    }

    #[tokio::test]
    async fn one_examination_waits_for_the_running_one() {
        let (examiner, _folder) = examiner();
        let turn = examiner.examining.lock().await;
        let begun = [true, true].map(|repair| examiner.begin(examine(repair)).unwrap());
        let busy = examiner.begin(examine(false)).unwrap_err();
        assert!(busy.request_id == 7 && busy.problem.ends_with("try again"), "{busy:?}");
        drop(turn);
        let before = last_pass(&examiner.keeper);
        for ended in begun {
            ended.await.unwrap();
        }
        assert_eq!(last_pass(&examiner.keeper), before, "no call waits for it: no session");
        drop(examiner.begin(examine(false)).unwrap());
    }

    #[tokio::test]
    async fn missing_vf_is_reported_with_obstacle() {
        let (examiner, _folder) = examiner();
        let mut record = record("a", "c");
        record.attachment.mac = "02:00:00:00:00:07".into();
        keep(examiner.vfs().records(), record);
        let found = examiner.examine(examine(false)).await;
        let vf = &found.vfs[0];
        let of_record = (vf.attachment_id.as_str(), vf.mac.as_str());
        assert_eq!((vf.place(), of_record), (VfPlace::Nowhere, ("a", "02:00:00:00:00:07")));
        assert_eq!((found.findings[0].code.as_str(), found.findings.len()), ("POD_VF_MISSING", 1));
    }

    #[test]
    fn vfs_without_netdev_are_reported_with_place() {
        let identity =
            VfIdentity { id: "c1pf0vf2".parse().unwrap(), device: "0000:03:00.4".into() };
        let told = |whereabouts| {
            let other = OtherVf { identity: identity.clone(), whereabouts };
            let finding = told::finding_of_other(&other).map(|found| (found.code, found.subject));
            (found_without_netdev(&other).place(), finding)
        };
        let found =
            |finding: FindingCode| Some((finding.as_str().to_owned(), "c1pf0vf2".to_owned()));
        assert_eq!(told(Whereabouts::Unbound), (VfPlace::Unbound, found(FindingCode::VfUnbound)));
        assert_eq!(told(Whereabouts::HandedOver(Handover::Open)), (VfPlace::HandedOver, None));
        assert_eq!(told(Whereabouts::Elsewhere), (VfPlace::Nowhere, found(FindingCode::VfNowhere)));
    }

    #[test]
    fn failed_repair_is_reported_with_reason() {
        let mut found = FindingCode::VfElsewhere.of("pf0vf1", "it is away");
        let obstacles = Obstacles::from([("pf0vf1".to_owned(), "busy".to_owned())]);
        note_obstacle(&mut found, &obstacles);
        assert_eq!((found.state(), found.why.as_str()), (FindingState::NotRepaired, "busy"));
    }

    #[tokio::test]
    async fn operators_repair_waits_for_running_pass() {
        let (examiner, _folder) = examiner();
        let pass = hold_passes(&examiner.keeper).await;
        let request = Examine { repair: true, ..Examine::default() };
        let mut repairing = std::pin::pin!(examiner.examine(request));
        assert!(within(Duration::from_millis(200), &mut repairing).await.is_none());
        drop(pass);
        assert_eq!(repairing.await.problem, "");
    }
}
