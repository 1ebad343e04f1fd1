//! Compares the halves of one look: hosts and DPU.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use jiff::Timestamp;
use offload_proto::{FindingCode, v1};
use vf_alloc::FunctionId;

use super::hosts::HostHalf;
use crate::{
    api::convert::show,
    attachments::{DpuHalf, VfHalf},
    events::{Event, EventKind},
    host::{Examination, ExaminedVf, HostRecord},
    shared::Shared,
};
use model::{AttachmentId, AttachmentState, AttachmentView, HostName};

/// Age in milliseconds after which the host must know an attachment, even if it has not reported that the pod has the
/// VF.
const SETTLED_MS: i64 = 60_000;

/// How many of the DPU's own repairs are reported.
const REPAIRS_REPORTED: usize = 64;

/// The halves, with the attachments before and after both were examined: findings of attachments that changed in
/// between are not reported.
pub(super) struct Comparison {
    pub(super) before: Vec<AttachmentView>,
    pub(super) hosts: Vec<HostHalf>,
    pub(super) dpu: DpuHalf,
    pub(super) after: Vec<AttachmentView>,
}

impl Comparison {
    pub(super) fn diagnosis(self, shared: &Shared) -> v1::Diagnosis {
        let found = self.found_vfs();
        let mut findings = Vec::new();
        let mut repairs = own_repairs(shared);
        for host in &self.hosts {
            findings.extend(self.of_host(host, &found));
            let host_repairs = host.found.iter().flat_map(|found| &found.repairs).cloned();
            let name = host.view.name.to_string();
            repairs.extend(host_repairs.map(|repair| v1::Repair { host: name.clone(), ..repair }));
        }
        repairs.sort_by_key(|repair| Reverse(repair.ago_s));
        findings.extend(self.dpu.findings.iter().cloned());
        v1::Diagnosis {
            dpu: shared.dpu(),
            hosts: self.hosts.iter().map(show_host).collect(),
            vfs: self.dpu.vfs.iter().map(|half| show_vf(half, &found)).collect(),
            findings,
            repairs,
            findings_left_out: 0,
        }
    }

    /// The VFs as their own hosts found them.
    fn found_vfs(&self) -> HashMap<FunctionId, &ExaminedVf> {
        let owner = |half: &VfHalf| (half.view.vf, half.view.host.clone());
        let owners: HashMap<_, _> = self.dpu.vfs.iter().map(owner).collect();
        let mut found = HashMap::new();
        for host in &self.hosts {
            let vfs = host.found.iter().flat_map(|found| &found.vfs);
            let name = Some(&host.view.name);
            found.extend(
                vfs.filter(|vf| owners.get(&vf.vf).is_some_and(|owner| owner.as_ref() == name))
                    .map(|vf| (vf.vf, vf)),
            );
        }
        found
    }

    /// The host's own findings and its findings from the DPU. If it left VFs out of its answer, missing ones prove
    /// nothing.
    fn of_host(
        &self,
        host: &HostHalf,
        found: &HashMap<FunctionId, &ExaminedVf>,
    ) -> Vec<v1::Finding> {
        let name = &host.view.name;
        let examination = match &host.found {
            Ok(examination) => examination,
            Err(problem) => return vec![unknown_half(host, problem)],
        };
        let mut findings = examination.findings.clone();
        findings.extend(self.unknown_to_dpu(examination));
        findings.extend(self.otherwise_recorded(examination));
        findings.extend(self.without_representor(name, found));
        if examination.vfs_left_out == 0 {
            findings.extend(self.unknown_to_host(name, examination));
            findings.extend(self.vfs_unknown_to_host(name, found));
        }
        findings.iter_mut().for_each(|found| found.host = name.to_string());
        findings
    }

    fn vfs_of(&self, host: &HostName) -> impl Iterator<Item = &VfHalf> {
        self.dpu.vfs.iter().filter(move |half| half.view.host.as_ref() == Some(host))
    }

    fn vfs_unknown_to_host(
        &self,
        host: &HostName,
        found: &HashMap<FunctionId, &ExaminedVf>,
    ) -> impl Iterator<Item = v1::Finding> {
        let unknown = self
            .vfs_of(host)
            .filter(|half| !half.view.representor.is_empty() && !found.contains_key(&half.view.vf));
        let message = "it has a representor on the DPU, and its host does not know it";
        unknown.map(move |half| FindingCode::VfUnknownToHost.of(half.view.vf, message))
    }

    /// The host's free VFs without a representor. The DPU's half reports those that attachments hold.
    fn without_representor(
        &self,
        host: &HostName,
        found: &HashMap<FunctionId, &ExaminedVf>,
    ) -> impl Iterator<Item = v1::Finding> {
        let lacking = self.vfs_of(host).filter(|VfHalf { view, .. }| {
            let is_without = self.dpu.has_representors && view.representor.is_empty();
            is_without && view.attachment.is_none() && found.contains_key(&view.vf)
        });
        let message = "its host has it, and it has no representor on the DPU";
        lacking.map(move |half| FindingCode::RepresentorMissing.of(half.view.vf, message))
    }

    /// The attachments that had the same state before and after.
    fn lasting(&self) -> impl Iterator<Item = &AttachmentView> {
        let state = |view: &AttachmentView| (view.record.id, view.state);
        let before: HashMap<_, _> = self.before.iter().map(state).collect();
        let is_lasting =
            move |view: &&AttachmentView| before.get(&view.record.id) == Some(&view.state);
        self.after.iter().filter(is_lasting)
    }

    /// Attachments that the host must know and does not, and releases that wait for a VF.
    fn unknown_to_host(
        &self,
        host: &HostName,
        examination: &Examination,
    ) -> impl Iterator<Item = v1::Finding> {
        let known: HashSet<_> = recorded(examination).map(|(_, record)| record.id).collect();
        let finding = move |view: &AttachmentView| {
            let (id, key) = (view.record.id, &view.record.key);
            if key.host != *host || known.contains(&id) {
                return None;
            }
            if view.state == AttachmentState::Releasing {
                let message = format!("{key} waits for its VF {} to be back", view.record.vf);
                return Some(FindingCode::ReleasePending.of(id, message));
            }
            is_settled(view).then(|| {
                let message = format!("its host has no record of {key}, on VF {}", view.record.vf);
                FindingCode::AttachmentUnclaimed.of(id, message)
            })
        };
        self.lasting().filter_map(finding)
    }

    /// Records of the host without an attachment on the DPU.
    fn unknown_to_dpu(&self, examination: &Examination) -> impl Iterator<Item = v1::Finding> {
        let all = self.before.iter().chain(&self.after);
        let known: HashSet<AttachmentId> = all.map(|view| view.record.id).collect();
        let unknown = recorded(examination).filter(move |(_, record)| !known.contains(&record.id));
        let message = "the DPU has no such attachment, and its host has a record of it";
        unknown.map(move |(_, record)| FindingCode::AttachmentUnrecorded.of(record.id, message))
    }

    /// Records of the host that differ from the journal.
    fn otherwise_recorded(&self, examination: &Examination) -> impl Iterator<Item = v1::Finding> {
        let journal: HashMap<_, _> =
            self.lasting().map(|view| (view.record.id, &view.record)).collect();
        recorded(examination)
            .filter_map(move |(vf, record)| vf.difference_from(journal.get(&record.id)?))
    }
}

/// The VFs that the host's records hold.
fn recorded(examination: &Examination) -> impl Iterator<Item = (&ExaminedVf, &HostRecord)> {
    examination.vfs.iter().filter_map(|vf| Some((vf, vf.record.as_ref()?)))
}

/// Whether the host can no longer be about to move the attachment's VF.
fn is_settled(view: &AttachmentView) -> bool {
    let age = Timestamp::now().as_millisecond().saturating_sub(view.record.created_at);
    view.state == AttachmentState::Attached || age > SETTLED_MS
}

fn unknown_half(host: &HostHalf, problem: &str) -> v1::Finding {
    let finding = if host.view.connected {
        FindingCode::HostNotExamined
    } else {
        FindingCode::HostNotConnected
    };
    let name = host.view.name.to_string();
    let message = format!("the host's state is unknown: {problem}");
    v1::Finding { host: name.clone(), ..finding.of(name, message) }
}

fn own_repairs(shared: &Shared) -> Vec<v1::Repair> {
    let now = Timestamp::now();
    let mut events = shared.engine.events().of_kind(EventKind::Repaired);
    // Hosts report their own repairs in their answers.
    events.retain(|event| event.author.is_service());
    let latest = events.len().saturating_sub(REPAIRS_REPORTED);
    let repair = |event: &Event| v1::Repair {
        ago_s: now.duration_since(event.time).as_secs().try_into().unwrap_or_default(),
        subject: event.subject.clone(),
        message: event.message.clone(),
        host: String::new(),
    };
    events[latest..].iter().map(repair).collect()
}

fn show_host(host: &HostHalf) -> v1::DiagnosedHost {
    let found = host.found.as_ref();
    v1::DiagnosedHost {
        name: host.view.name.to_string(),
        connected: host.view.connected,
        agent_version: host.view.agent_version.clone(),
        problem: found.err().cloned().unwrap_or_default(),
        vfs_left_out: found.map_or(0, |found| found.vfs_left_out),
        findings_left_out: found.map_or(0, |found| found.findings_left_out),
    }
}

fn show_vf(half: &VfHalf, found: &HashMap<FunctionId, &ExaminedVf>) -> v1::DiagnosedVf {
    let VfHalf { view, joined } = half;
    let unreported = || v1::ExaminedVf {
        vf: Some(show::vf(view.vf, &view.device)),
        ..v1::ExaminedVf::default()
    };
    v1::DiagnosedVf {
        found: Some(found.get(&view.vf).map_or_else(unreported, |found| show::examined_vf(found))),
        host: view.host.as_ref().map(ToString::to_string).unwrap_or_default(),
        representor: view.representor.clone(),
        joined: *joined,
        state: show::vf_state(&view.state).0.into(),
        attachment_id: view.attachment.map(|id| id.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vf_alloc::VfState;

    use super::*;
    use crate::{
        attachments::VfView,
        host::examination::tests::{examined, record},
        sessions::{HostView, Sessions},
    };
    use model::Record;

    fn view(record: &Record) -> AttachmentView {
        AttachmentView { record: Arc::new(record.clone()), state: AttachmentState::Attached }
    }

    /// A VF of node-1 with a representor.
    fn vf(number: u16, attachment: Option<AttachmentId>) -> VfHalf {
        let view = VfView {
            vf: FunctionId { vf: number, ..record().vf },
            device: vf_alloc::Device::default(),
            device_ids: None,
            host: Some(HostName("node-1".into())),
            pools: Vec::new(),
            state: VfState::Free,
            representor: format!("pf0vf{number}"),
            attachment,
        };
        VfHalf { view, joined: attachment.is_some() }
    }

    /// An attachment, with matching findings of its host and the DPU.
    fn in_order() -> Comparison {
        let absent = Sessions::default().view(&HostName("node-1".into()));
        let found = Examination { vfs: vec![examined(&record())], ..Examination::default() };
        let vfs = vec![vf(3, Some(record().id))];
        Comparison {
            before: vec![view(&record())],
            hosts: vec![HostHalf {
                view: HostView { connected: true, ..absent },
                found: Ok(Arc::new(found)),
            }],
            dpu: DpuHalf { vfs, findings: Vec::new(), has_representors: true },
            after: vec![view(&record())],
        }
    }

    fn change_examination(comparison: &mut Comparison, change: impl FnOnce(&mut Examination)) {
        change(Arc::get_mut(comparison.hosts[0].found.as_mut().unwrap()).unwrap());
    }

    #[track_caller]
    fn assert_found(comparison: &Comparison, expected: &[&str]) {
        let found = comparison.of_host(&comparison.hosts[0], &comparison.found_vfs());
        let codes: Vec<_> = found.iter().map(|found| found.code.as_str()).collect();
        assert_eq!(codes, expected, "{found:?}");
        assert!(found.iter().all(|found| found.host == "node-1"), "{found:?}");
    }

    #[test]
    fn halves_that_agree_do_not_differ() {
        assert_found(&in_order(), &[]);
    }

    #[test]
    fn journal_differing_from_host_record_is_found() {
        let mut comparison = in_order();
        let journal = Record { mac: "02:00:00:00:00:09".parse().unwrap(), ..record() };
        comparison.before = vec![view(&journal)];
        assert_found(&comparison, &[]);
        comparison.after = vec![view(&journal)];
        comparison.before[0].state = AttachmentState::Programmed;
        assert_found(&comparison, &[]);
        comparison.before = comparison.after.clone();
        assert_found(&comparison, &["RECORDS_DIFFER"]);
    }

    #[test]
    fn missing_items_count_only_in_complete_answers() {
        let mut comparison = in_order();
        change_examination(&mut comparison, |found| found.vfs.clear());
        let missing = ["ATTACHMENT_UNCLAIMED", "VF_UNKNOWN_TO_HOST"];
        assert_found(&comparison, &missing);
        change_examination(&mut comparison, |found| found.vfs_left_out = 1);
        assert_found(&comparison, &[]);
    }

    #[test]
    fn host_record_without_an_attachment_is_found() {
        let mut comparison = in_order();
        (comparison.before, comparison.after) = (Vec::new(), Vec::new());
        comparison.dpu.vfs[0].view.attachment = None;
        assert_found(&comparison, &["ATTACHMENT_UNRECORDED"]);
    }

    #[test]
    fn only_cards_that_have_representors_can_lack_one() {
        let mut comparison = in_order();
        comparison.dpu.vfs.push(vf(4, None));
        comparison.dpu.vfs[1].view.representor.clear();
        let free = ExaminedVf { vf: vf(4, None).view.vf, record: None, ..examined(&record()) };
        change_examination(&mut comparison, |found| found.vfs.push(free));
        assert_found(&comparison, &["REPRESENTOR_MISSING"]);
        comparison.dpu.has_representors = false;
        assert_found(&comparison, &[]);
    }

    #[test]
    fn silent_host_has_no_other_findings() {
        let mut comparison = in_order();
        comparison.hosts[0].found = Err("it did not answer within 2s".into());
        assert_found(&comparison, &["HOST_NOT_EXAMINED"]);
        comparison.hosts[0].view.connected = false;
        assert_found(&comparison, &["HOST_NOT_CONNECTED"]);
    }
}
