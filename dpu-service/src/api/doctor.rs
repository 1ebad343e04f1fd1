//! Hosts, DPU and records compared on demand, and mended.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use offload_proto::{Failure, Finding, v1};
use tokio::time::timeout;
use vf_alloc::VfId;

use super::{
    Shared,
    convert::{read, show},
};
use crate::{
    attachments::{AttachmentFilter, AttachmentState, AttachmentView, Depth, DpuHalf, VfHalf},
    events::EventKind,
    model::HostName,
    sessions::HostView,
};

/// How old an attachment is that its host must know, even if it has not said that the pod has the VF.
const SETTLED_MS: i64 = 60_000;

/// How many of the DPU's own repairs are told.
const REPAIRS_TOLD: usize = 64;

/// Compares hosts, DPU and records. Hosts that have not answered after `patience` are told as such.
pub(crate) async fn examine(shared: &Shared, patience: Duration) -> Result<v1::Diagnosis, Failure> {
    look(shared, &mut Hosts::new(shared, patience)).await
}

/// Mends what can be mended, first on the hosts and then on the DPU, and tells what was. Hosts are
/// waited for five times as long as `patience` at most.
pub(crate) async fn mend(shared: &Shared, patience: Duration) -> Result<v1::Diagnosis, Failure> {
    let mut hosts = Hosts::new(shared, patience);
    let found = look(shared, &mut hosts).await?.differences;
    let obstacles = obstacles(hosts.ask(true).await);
    shared.engine.reconcile(Depth::Thorough).await;
    let left = look(shared, &mut hosts).await?;
    Ok(outcome(found, left, &obstacles))
}

/// What two looks in a row find. A VF on its way into a pod or out of it is found in neither half at
/// times, and is somewhere else at the next look. Of a host that falls silent the first look counts.
async fn look(shared: &Shared, hosts: &mut Hosts<'_>) -> Result<v1::Diagnosis, Failure> {
    let first = look_once(shared, hosts).await?;
    if first.differences.is_empty() {
        return Ok(first);
    }
    let seen: HashSet<_> = first.differences.iter().map(identity).collect();
    let mut second = look_once(shared, hosts).await?;
    let is_silent = |name: &str| hosts.problems.keys().any(|host| *host.0 == *name);
    second.differences.retain(|found| seen.contains(&identity(found)) || is_silent(&found.host));
    let told: HashSet<_> = second.differences.iter().map(identity).collect();
    let of_silent = first.differences.into_iter().filter(|found| is_silent(&found.host));
    second.differences.extend(of_silent.filter(|found| !told.contains(&identity(found))));
    Ok(second)
}

async fn look_once(shared: &Shared, hosts: &mut Hosts<'_>) -> Result<v1::Diagnosis, Failure> {
    let before = attachments(shared);
    let hosts = hosts.ask(false).await;
    let dpu = shared.engine.examine_dpu().await?;
    let after = attachments(shared);
    let has_representors = shared.engine.programmer().has_representors();
    let comparison = Comparison { before, hosts, dpu, after, has_representors };
    let mut diagnosis = comparison.diagnosis(shared);
    let mut problems = shared.engine.status().await;
    problems.extend(shared.other_problems());
    let (name, expiring) = (shared.dpu(), shared.expiring());
    problems.retain(|problem| expiring.as_ref() != Some(problem));
    let told = problems.into_iter().map(|problem| Finding::ServiceProblem.of(&name, problem));
    diagnosis.differences.extend(told);
    let expires = |problem| Finding::CertificateExpires.of(&name, problem);
    diagnosis.differences.extend(expiring.map(expires));
    Ok(diagnosis)
}

/// What is left, and what was found and is left no more. Of a host that can't be looked at any more
/// nobody knows that.
fn outcome(
    found: Vec<v1::Difference>,
    mut diagnosis: v1::Diagnosis,
    obstacles: &HashMap<Identity, String>,
) -> v1::Diagnosis {
    for left in &mut diagnosis.differences {
        left.set_state(v1::DifferenceState::Unmended);
        left.why = obstacles.get(&identity(left)).cloned().unwrap_or_default();
    }
    let left: HashSet<_> = diagnosis.differences.iter().map(identity).collect();
    let unknown = diagnosis.hosts.iter().filter(|host| !host.problem.is_empty());
    let unknown: HashMap<_, _> = unknown.map(|host| (&host.name, &host.problem)).collect();
    let mut others = found;
    others.retain(|found| !left.contains(&identity(found)));
    for other in &mut others {
        other.set_state(v1::DifferenceState::Mended);
        if let Some(problem) = unknown.get(&other.host) {
            other.set_state(v1::DifferenceState::Unmended);
            other.why = format!("whether it was mended is not known: {problem}");
        }
    }
    diagnosis.differences.extend(others);
    diagnosis
}

/// Host, code and subject.
type Identity = (String, String, String);

/// What makes two differences the same at two times.
fn identity(difference: &v1::Difference) -> Identity {
    (difference.host.clone(), difference.code.clone(), difference.subject.clone())
}

/// What hosts could not mend, and why.
fn obstacles(tried: Vec<HostHalf>) -> HashMap<Identity, String> {
    let found = tried.into_iter().filter_map(|host| {
        let differences = host.found.ok()?.differences.into_iter();
        let name = host.view.name.to_string();
        Some(differences.map(move |found| v1::Difference { host: name.clone(), ..found }))
    });
    found.flatten().map(|found| (identity(&found), found.why)).collect()
}

fn attachments(shared: &Shared) -> Vec<AttachmentView> {
    shared.engine.attachments(&AttachmentFilter::default())
}

/// What a host has.
struct HostHalf {
    view: HostView,
    /// `Err`: why it is not known.
    found: Result<v1::Examination, String>,
}

/// Asks all hosts, as often as wanted, but none again of which it was not to be learned what it has: a
/// silent one is waited for once.
struct Hosts<'a> {
    shared: &'a Shared,
    patience: Duration,
    /// Why it is not known what a host has.
    problems: HashMap<HostName, String>,
}

impl<'a> Hosts<'a> {
    fn new(shared: &'a Shared, patience: Duration) -> Self {
        Self { shared, patience, problems: HashMap::new() }
    }

    async fn ask(&mut self, mend: bool) -> Vec<HostHalf> {
        let asking = &*self;
        let ask = |view: HostView| async move {
            let found = match asking.problems.get(&view.name) {
                Some(problem) => Err(problem.clone()),
                None => asking.ask_one(&view.name, mend).await,
            };
            HostHalf { view, found }
        };
        let halves = join_all(self.shared.engine.hosts().into_iter().map(ask)).await;
        for HostHalf { view, found } in &halves {
            if let Err(problem) = found {
                self.problems.insert(view.name.clone(), problem.clone());
            }
        }
        halves
    }

    async fn ask_one(&self, host: &HostName, mend: bool) -> Result<v1::Examination, String> {
        let answer = timeout(self.patience, self.shared.engine.examine_host(host, mend)).await;
        let found = answer
            .map_err(|_| format!("it did not answer within {:?}", self.patience))?
            .map_err(|not_examined| not_examined.to_string())?;
        if found.problem.is_empty() { Ok(found) } else { Err(found.problem) }
    }
}

/// The halves, and the attachments before and after they were looked at: what came or went meanwhile
/// differs for no reason that matters.
struct Comparison {
    before: Vec<AttachmentView>,
    hosts: Vec<HostHalf>,
    dpu: DpuHalf,
    after: Vec<AttachmentView>,
    /// Cards without a DPU have none.
    has_representors: bool,
}

impl Comparison {
    fn diagnosis(self, shared: &Shared) -> v1::Diagnosis {
        let found = self.found_vfs();
        let mut differences = Vec::new();
        let mut repairs = own_repairs(shared);
        for host in &self.hosts {
            differences.extend(self.of_host(host, &found));
            let host_repairs = host.found.iter().flat_map(|found| &found.repairs).cloned();
            let name = host.view.name.to_string();
            repairs.extend(host_repairs.map(|repair| v1::Repair { host: name.clone(), ..repair }));
        }
        repairs.sort_by_key(|repair| std::cmp::Reverse(repair.ago_s));
        differences.extend(self.dpu.differences.iter().cloned());
        v1::Diagnosis {
            dpu: shared.dpu(),
            hosts: self.hosts.iter().map(show_host).collect(),
            vfs: self.dpu.vfs.iter().map(|half| show_vf(half, &found)).collect(),
            differences,
            repairs,
        }
    }

    /// The VFs as their own hosts found them.
    fn found_vfs(&self) -> HashMap<VfId, v1::ExaminedVf> {
        let owner: HashMap<_, _> =
            self.dpu.vfs.iter().map(|half| (half.view.vf, half.view.host.clone())).collect();
        let mut found = HashMap::new();
        for host in &self.hosts {
            for vf in host.found.iter().flat_map(|found| &found.vfs) {
                let Ok(id) = read::vf(vf.vf.clone()) else { continue };
                if owner.get(&id).is_some_and(|owner| owner.as_ref() == Some(&host.view.name)) {
                    found.insert(id, vf.clone());
                }
            }
        }
        found
    }

    /// What the host found, and what it has otherwise than the DPU.
    fn of_host(
        &self,
        host: &HostHalf,
        found: &HashMap<VfId, v1::ExaminedVf>,
    ) -> Vec<v1::Difference> {
        let name = &host.view.name;
        let examination = match &host.found {
            Ok(examination) => examination,
            Err(problem) => return vec![unknown_half(host, problem)],
        };
        let mut differences = examination.differences.clone();
        differences.extend(self.unknown_to_host(name, examination));
        differences.extend(self.unknown_to_dpu(examination));
        differences.extend(self.vfs_of(name).filter_map(|half| {
            let is_known = found.contains_key(&half.view.vf);
            match (is_known, half.view.representor.is_empty()) {
                (false, false) => {
                    let message = "it has a representor on the DPU, and its host does not know it";
                    Some(Finding::VfUnknownToHost.of(half.view.vf, message))
                }
                (true, true) if half.view.attachment.is_none() && self.has_representors => {
                    let message = "its host has it, and it has no representor on the DPU";
                    Some(Finding::NoRepresentor.of(half.view.vf, message))
                }
                _ => None,
            }
        }));
        differences.iter_mut().for_each(|found| found.host = name.to_string());
        differences
    }

    fn vfs_of(&self, host: &HostName) -> impl Iterator<Item = &VfHalf> {
        self.dpu.vfs.iter().filter(move |half| half.view.host.as_ref() == Some(host))
    }

    /// Attachments that the host must know, and does not; and those that it should have given back.
    fn unknown_to_host(
        &self,
        host: &HostName,
        examination: &v1::Examination,
    ) -> Vec<v1::Difference> {
        let known: HashSet<_> =
            examination.vfs.iter().map(|vf| vf.attachment_id.as_str()).collect();
        let lasting = self.after.iter().filter(|view| {
            view.record.key.host == *host
                && self
                    .before
                    .iter()
                    .any(|before| before.record.id == view.record.id && before.state == view.state)
        });
        let tell = |view: &AttachmentView| {
            let (id, key) = (view.record.id, &view.record.key);
            if known.contains(id.to_string().as_str()) {
                return None;
            }
            if view.state == AttachmentState::Releasing {
                let message = format!("{key} waits for its VF {} to be back", view.record.vf);
                return Some(Finding::ReleasePending.of(id, message));
            }
            is_settled(view).then(|| {
                let message = format!("its host has no record of {key}, on VF {}", view.record.vf);
                Finding::AttachmentUnknownToHost.of(id, message)
            })
        };
        lasting.filter_map(tell).collect()
    }

    /// Records of the host that are nobody's here.
    fn unknown_to_dpu(&self, examination: &v1::Examination) -> Vec<v1::Difference> {
        let known: HashSet<_> = self.before.iter().chain(&self.after).map(id_of).collect();
        let is_unknown = |vf: &&v1::ExaminedVf| {
            !vf.attachment_id.is_empty() && !known.contains(&vf.attachment_id)
        };
        let tell = |vf: &v1::ExaminedVf| {
            let message = "the DPU has no such attachment, and its host has a record of it";
            Finding::AttachmentUnknownToDpu.of(&vf.attachment_id, message)
        };
        examination.vfs.iter().filter(is_unknown).map(tell).collect()
    }
}

fn id_of(view: &AttachmentView) -> String {
    view.record.id.to_string()
}

/// Whether nobody is about to move its VF any more.
fn is_settled(view: &AttachmentView) -> bool {
    let age = Timestamp::now().as_millisecond().saturating_sub(view.record.created_at);
    view.state == AttachmentState::Attached || age > SETTLED_MS
}

fn unknown_half(host: &HostHalf, problem: &str) -> v1::Difference {
    let finding =
        if host.view.connected { Finding::HostNotExamined } else { Finding::HostNotConnected };
    let name = host.view.name.to_string();
    let message = format!("what the host has is not known: {problem}");
    v1::Difference { host: name.clone(), ..finding.of(name, message) }
}

fn own_repairs(shared: &Shared) -> Vec<v1::Repair> {
    let now = Timestamp::now();
    let events = shared.engine.events().of_kind(EventKind::Repaired);
    let latest = events.len().saturating_sub(REPAIRS_TOLD);
    let told = |event: &crate::events::Event| v1::Repair {
        ago_s: now.duration_since(event.time).as_secs().try_into().unwrap_or_default(),
        subject: event.subject.clone(),
        message: event.message.clone(),
        host: String::new(),
    };
    events[latest..].iter().map(told).collect()
}

fn show_host(host: &HostHalf) -> v1::DiagnosedHost {
    v1::DiagnosedHost {
        name: host.view.name.to_string(),
        connected: host.view.connected,
        agent_version: host.view.agent_version.clone(),
        problem: host.found.as_ref().err().cloned().unwrap_or_default(),
    }
}

fn show_vf(half: &VfHalf, found: &HashMap<VfId, v1::ExaminedVf>) -> v1::DiagnosedVf {
    let VfHalf { view, joined } = half;
    let not_told = || v1::ExaminedVf {
        vf: Some(show::vf(view.vf, &view.pci_address)),
        ..v1::ExaminedVf::default()
    };
    v1::DiagnosedVf {
        found: Some(found.get(&view.vf).cloned().unwrap_or_else(not_told)),
        host: view.host.as_ref().map(ToString::to_string).unwrap_or_default(),
        representor: view.representor.clone(),
        joined: *joined,
        state: show::vf_state(&view.state).0.into(),
        attachment_id: view.attachment.map(|id| id.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_that_fell_silent_had_is_not_told_as_mended() {
        let on = |host: &str, found: Finding| v1::Difference {
            host: host.into(),
            ..found.of("pf0vf1", "it differs")
        };
        let host = |name: &str, problem: &str| v1::DiagnosedHost {
            name: name.into(),
            problem: problem.into(),
            ..v1::DiagnosedHost::default()
        };
        let left = v1::Diagnosis {
            hosts: vec![host("a", ""), host("b", "it did not answer within 2s")],
            differences: vec![on("b", Finding::HostNotExamined)],
            ..v1::Diagnosis::default()
        };
        let found = vec![on("a", Finding::VfDiffers), on("b", Finding::VfDiffers)];
        let outcome = outcome(found, left, &HashMap::new()).differences;
        let states: Vec<_> =
            outcome.iter().map(|it| (it.host.as_str(), it.code.as_str(), it.state())).collect();
        assert_eq!(
            states,
            [
                ("b", "HOST_NOT_EXAMINED", v1::DifferenceState::Unmended),
                ("a", "VF_DIFFERS", v1::DifferenceState::Mended),
                ("b", "VF_DIFFERS", v1::DifferenceState::Unmended),
            ]
        );
        assert!(outcome[2].why.ends_with("it did not answer within 2s"), "{}", outcome[2].why);
    }
}
