//! The problems of this host's pods and of its agent's configuration, which the agent reports to the DPU.

use std::collections::BTreeMap;

use offload_proto::{
    FindingCode,
    v1::{self, Finding},
};
use parking_lot::Mutex;

use crate::agent::vfs::{Phase, Records};

/// The most findings in a report to the DPU.
const REPORTED: usize = 64;

/// The code of the finding for a VF that a pod does not use.
const UNUSED: &str = FindingCode::KubeletVfUnused.as_str();

/// The present findings. Each mutex guards one list; when two are locked, it is in the order of the fields.
#[derive(Debug, Default)]
pub(in crate::agent) struct PodFindings {
    /// Findings of interfaces, by attachment id.
    found: Mutex<BTreeMap<String, Finding>>,
    /// Findings of VFs from the kubelet that pods do not use.
    unused: Mutex<Vec<Finding>>,
    /// Why the agent's configuration file is not in force: one sentence. Empty: it is in force.
    configuration: Mutex<String>,
    /// The last report to the DPU, and its session.
    reported: Mutex<Option<(String, v1::PodFindings)>>,
}

impl PodFindings {
    /// Records a problem of a pod; `found` has the attachment's id as subject.
    pub(in crate::agent) fn note(&self, found: Finding) {
        self.found.lock().insert(found.subject.clone(), found);
    }

    pub(in crate::agent) fn clear(&self, id: &str) {
        self.found.lock().remove(id);
    }

    /// Sets the VFs of the kubelet that pods do not use. The subject of each is an attachment of the pod.
    pub(super) fn set_unused(&self, unused: Vec<Finding>) {
        *self.unused.lock() = unused;
    }

    /// Sets why the agent's configuration file is not in force. Empty: it is in force.
    pub(in crate::agent) fn set_configuration_problem(&self, problem: String) {
        *self.configuration.lock() = problem;
    }

    /// Why the agent's configuration file is not in force. `None`: it is in force.
    pub(in crate::agent) fn configuration_problem(&self) -> Option<String> {
        Some(self.configuration.lock().clone()).filter(|problem| !problem.is_empty())
    }

    /// The findings of live attachments.
    pub(in crate::agent) fn current(&self, records: &Records) -> Vec<Finding> {
        let mut all = self.recorded(records);
        all.retain(|found| is_live(records, &found.subject));
        all
    }

    pub(in crate::agent) fn unused(&self, records: &Records) -> Vec<Finding> {
        let mut unused = self.unused.lock().clone();
        unused.retain(|found| is_live(records, &found.subject));
        unused
    }

    /// The findings of recorded attachments, interfaces first. Others are removed.
    fn recorded(&self, records: &Records) -> Vec<Finding> {
        let is_recorded = |id: &str| records.by_id(id).is_some();
        let mut found = self.found.lock();
        found.retain(|id, _| is_recorded(id));
        let unused = self.unused.lock();
        let unused = unused.iter().filter(|found| is_recorded(&found.subject));
        found.values().chain(unused).cloned().collect()
    }

    /// The report for the DPU. `None`: the session has had the same report.
    pub(super) fn news(&self, session: &str, records: &Records) -> Option<v1::PodFindings> {
        let report = Some((session.to_owned(), self.report(records)));
        let mut reported = self.reported.lock();
        if *reported == report {
            return None;
        }
        reported.clone_from(&report);
        report.map(|(_, report)| report)
    }

    fn report(&self, records: &Records) -> v1::PodFindings {
        let (mut findings, ending): (Vec<_>, Vec<_>) =
            self.recorded(records).into_iter().partition(|found| is_live(records, &found.subject));
        let left_out = findings.split_off(REPORTED.min(findings.len()));
        let unused = left_out.iter().filter(|found| found.code == UNUSED).count();
        let mut releasing: Vec<_> = ending.into_iter().map(|found| found.subject).collect();
        releasing.sort();
        releasing.dedup();
        v1::PodFindings {
            findings,
            left_out: count(left_out.len()),
            configuration_problem: self.configuration_problem().unwrap_or_default(),
            kubelet_vf_unused_left_out: count(unused),
            releasing,
        }
    }
}

fn is_live(records: &Records, id: &str) -> bool {
    records.by_id(id).is_some_and(|record| record.phase == Phase::Live)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::{
        Record, record,
        tests::{keep, vfs},
    };

    fn findings_of(ids: impl Iterator<Item = String>) -> PodFindings {
        let findings = PodFindings::default();
        ids.for_each(|id| findings.note(FindingCode::PodDiffers.of(id, "it differs")));
        findings
    }

    #[test]
    fn findings_are_reported_once_per_session() {
        let (vfs, _folder) = vfs();
        keep(vfs.records(), record("a", "c"));
        let findings = findings_of(["a".to_owned()].into_iter());
        let records = vfs.records();
        assert!(findings.news("s1", records).is_some() && findings.news("s1", records).is_none());
        assert!(findings.news("s2", records).is_some());
        findings.clear("a");
        assert_eq!(findings.news("s2", records).unwrap().findings, []);
    }

    #[test]
    fn each_session_gets_an_empty_report() {
        let (vfs, _folder) = vfs();
        let findings = PodFindings::default();
        for session in ["s1", "s2"] {
            let report = findings.news(session, vfs.records());
            assert_eq!(report, Some(v1::PodFindings::default()), "{session}");
            assert_eq!(findings.news(session, vfs.records()), None);
        }
    }

    #[test]
    fn refused_configuration_is_reported_once() {
        let (vfs, _folder) = vfs();
        let findings = PodFindings::default();
        findings.set_configuration_problem("refused".into());
        let report = findings.news("s1", vfs.records()).unwrap();
        assert_eq!(report.configuration_problem, "refused");
        assert!(findings.news("s1", vfs.records()).is_none());
        findings.set_configuration_problem(String::new());
        assert_eq!(findings.news("s1", vfs.records()), Some(v1::PodFindings::default()));
    }

    #[test]
    fn unused_vf_stays_when_an_interface_is_cleared() {
        let (vfs, _folder) = vfs();
        keep(vfs.records(), record("a", "c"));
        let findings = findings_of(["a".to_owned()].into_iter());
        let unused = FindingCode::KubeletVfUnused.of("a", "it is unused");
        findings.set_unused(vec![unused.clone()]);
        assert_eq!(findings.current(vfs.records()).len(), 2);
        findings.clear("a");
        assert_eq!(findings.current(vfs.records()), [unused]);
    }

    #[test]
    fn findings_of_ended_attachments_are_forgotten() {
        let (vfs, _folder) = vfs();
        let findings = findings_of(["a".to_owned()].into_iter());
        assert_eq!(findings.current(vfs.records()), []);
    }

    #[test]
    fn findings_for_the_dpu_are_bounded() {
        let (vfs, _folder) = vfs();
        let ids = || (0..100).map(|number| number.to_string());
        ids().for_each(|id| keep(vfs.records(), record(&id, &id)));
        let findings = findings_of(ids());
        let unused = ids().take(7).map(|id| FindingCode::KubeletVfUnused.of(id, "it is unused"));
        findings.set_unused(unused.collect());
        let report = findings.news("s", vfs.records()).unwrap();
        assert_eq!((report.findings.len(), report.left_out), (REPORTED, 43));
        assert_eq!(report.kubelet_vf_unused_left_out, 7);
    }

    #[test]
    fn released_pods_finding_is_not_resolved() {
        let (vfs, _folder) = vfs();
        keep(vfs.records(), record("a", "c"));
        let findings = findings_of(["a".to_owned()].into_iter());
        assert!(findings.news("s", vfs.records()).unwrap().releasing.is_empty());
        keep(vfs.records(), Record { phase: Phase::Releasing, ..record("a", "c") });
        assert_eq!(findings.current(vfs.records()), []);
        let report = findings.news("s", vfs.records()).unwrap();
        assert_eq!((report.findings, report.releasing), (Vec::new(), vec!["a".to_owned()]));
    }
}
