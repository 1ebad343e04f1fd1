//! A host's findings.

use ipnetwork::IpNetwork;
use offload_proto::{Failure, FindingCode, Reason, v1};

use super::{IP_ADDRESS, collect, device, mac, optional, optional_attachment_id, parse, vf};
use crate::host::{Examination, ExaminedVf, Holdings, HostRecord};

/// Maximum length of a host's sentence shown to operators, in bytes.
const LONGEST_SENTENCE: usize = 2048;

/// Maximum number of stored pod findings of a host.
const POD_FINDINGS: usize = 64;

/// Converts a host's examination. Its texts are cut and cleaned, not refused: some come from the kernel or from a pod
/// that named a link.
///
/// # Errors
/// Why the findings are unknown, one sentence without a final stop.
pub(crate) fn examination(found: &v1::Examination) -> Result<Examination, String> {
    if !found.problem.is_empty() {
        return Err(clean(&found.problem));
    }
    let unreadable = |failure: Failure| format!("its answer can't be read: {}", failure.message);
    Ok(Examination {
        vfs: collect(&found.vfs, examined_vf).map_err(unreadable)?,
        vfs_left_out: found.vfs_left_out,
        findings: found.findings.iter().map(finding).collect(),
        findings_left_out: found.findings_left_out,
        repairs: found.repairs.iter().map(repair).collect(),
    })
}

fn examined_vf(found: &v1::ExaminedVf) -> Result<ExaminedVf, Failure> {
    let place = found.place();
    let id = optional_attachment_id(&found.attachment_id)?;
    let holdings = optional(&found.mac, mac)?.map(|mac| {
        let read = |text: &String| parse::<IpNetwork>("address", text, IP_ADDRESS);
        collect(&found.addresses, read).map(|addresses| Holdings { mac, addresses })
    });
    let holdings = holdings.transpose()?;
    let reported = found.vf.clone().unwrap_or_default().device;
    Ok(ExaminedVf {
        vf: vf(found.vf.clone())?,
        device: optional(&reported, device)?.unwrap_or_default(),
        place,
        netdev: clean(&found.netdev),
        netns: clean(&found.netns),
        use_by_host: clean(&found.use_by_host),
        record: id.map(|id| HostRecord { id, holdings }),
    })
}

/// The host's own name is dropped: the certificate names it.
fn finding(found: &v1::Finding) -> v1::Finding {
    v1::Finding {
        code: clean(&found.code),
        subject: clean(&found.subject),
        message: clean(&found.message),
        why: clean(&found.why),
        advice: clean(&found.advice),
        state: state(found).into(),
        host: String::new(),
    }
}

/// A state of a later version becomes `Found`: the JSON of an answer has names for known states only.
fn state(found: &v1::Finding) -> v1::FindingState {
    match found.state() {
        v1::FindingState::Unspecified => v1::FindingState::Found,
        known => known,
    }
}

fn repair(report: &v1::Repair) -> v1::Repair {
    v1::Repair {
        ago_s: report.ago_s,
        subject: clean(&report.subject),
        message: clean(&report.message),
        host: String::new(),
    }
}

/// Converts a report of pod findings, up to the maximum number.
pub(crate) fn pod_findings(report: &v1::PodFindings) -> v1::PodFindings {
    let (kept, beyond) = report.findings.split_at(report.findings.len().min(POD_FINDINGS));
    let findings = kept.iter().map(finding);
    let findings = findings.filter(|it| optional_attachment_id(&it.subject).is_ok()).collect();
    let unused = beyond.iter().filter(|it| it.code == FindingCode::KubeletVfUnused.as_str());
    v1::PodFindings {
        findings,
        left_out: report.left_out.saturating_add(count(beyond.len())),
        configuration_problem: clean(&report.configuration_problem),
        kubelet_vf_unused_left_out: report
            .kubelet_vf_unused_left_out
            .saturating_add(count(unused.count())),
        releasing: report.releasing.clone(),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Why an ADD failed on its host. `None`: a reason that this version does not know.
pub(crate) fn failed_add(report: &v1::FailedAdd) -> Option<Failure> {
    Reason::parse(&report.reason).map(|reason| Failure::new(reason, clean(&report.message)))
}

/// Subject and sentence of a repair by a host's agent.
pub(crate) fn repaired(report: &v1::Repaired) -> (String, String) {
    (clean(&report.subject), clean(&report.message))
}

/// Makes a host's text safe for a terminal and a log.
pub(super) fn clean(text: &str) -> String {
    bootstrap::cut(bootstrap::printable(text, &[]), LONGEST_SENTENCE)
}
