//! The problems of this host's pods and of its agent's configuration, which the agent reports to the DPU.

use std::{collections::BTreeMap, sync::Mutex};

use offload_proto::v1::{self, Difference};

use crate::agent::{
    defect::locked,
    vfs::{Phase, Records},
};

/// How many findings are reported to the DPU.
const REPORTED: usize = 64;

/// The findings.
#[derive(Debug, Default)]
pub(in crate::agent) struct PodFindings {
    /// Of interfaces, each by its attachment's id.
    found: Mutex<BTreeMap<String, Difference>>,
    /// Of VFs that the kubelet gave to pods which do not use them.
    unused: Mutex<Vec<Difference>>,
    /// Why the agent's configuration file is not in force: one sentence. Empty: it is.
    configuration: Mutex<String>,
    /// The latest report to the DPU, and its session.
    reported: Mutex<Option<(String, v1::PodFindings)>>,
}

impl PodFindings {
    /// The pod of an attachment, which `found` names as its subject, is not as it should be.
    pub(in crate::agent) fn note(&self, found: Difference) {
        locked(&self.found).insert(found.subject.clone(), found);
    }

    /// The pod of the attachment is as it should be.
    pub(in crate::agent) fn clear(&self, id: &str) {
        locked(&self.found).remove(id);
    }

    /// These are the VFs of the kubelet's that pods do not use. The subject of each is an attachment of the pod.
    pub(super) fn set_unused(&self, unused: Vec<Difference>) {
        *locked(&self.unused) = unused;
    }

    /// The agent's configuration file is not in force, for this reason. Empty: it is.
    pub(in crate::agent) fn set_configuration_problem(&self, problem: String) {
        *locked(&self.configuration) = problem;
    }

    /// Why the agent's configuration file is not in force. `None`: it is.
    pub(in crate::agent) fn configuration_problem(&self) -> Option<String> {
        Some(locked(&self.configuration).clone()).filter(|problem| !problem.is_empty())
    }

    /// Those of attachments that are kept. Others are forgotten.
    pub(in crate::agent) fn current(&self, records: &Records) -> Vec<Difference> {
        let mut found = locked(&self.found);
        found.retain(|id, _| is_kept(records, id));
        let mut all: Vec<_> = found.values().cloned().collect();
        all.extend(self.unused(records));
        all
    }

    /// The VFs of the kubelet's that pods do not use.
    pub(in crate::agent) fn unused(&self, records: &Records) -> Vec<Difference> {
        let mut unused = locked(&self.unused).clone();
        unused.retain(|found| is_kept(records, &found.subject));
        unused
    }

    /// The report for the DPU. `None`: the session has had the same one.
    pub(super) fn news(&self, session: &str, records: &Records) -> Option<v1::PodFindings> {
        let mut findings = self.current(records);
        let left_out = u32::try_from(findings.len().saturating_sub(REPORTED)).unwrap_or(u32::MAX);
        findings.truncate(REPORTED);
        let configuration_problem = self.configuration_problem().unwrap_or_default();
        let message = v1::PodFindings { findings, left_out, configuration_problem };
        let mut reported = locked(&self.reported);
        let is_known = match &*reported {
            Some((in_session, before)) if in_session == session => *before == message,
            // A session begins without any.
            _ => message == v1::PodFindings::default(),
        };
        *reported = Some((session.to_owned(), message.clone()));
        (!is_known).then_some(message)
    }
}

fn is_kept(records: &Records, id: &str) -> bool {
    records.by_id(id).is_some_and(|record| record.phase == Phase::Live)
}

#[cfg(test)]
mod tests {
    use offload_proto::Finding;

    use super::*;
    use crate::agent::vfs::{
        record,
        tests::{keep, vfs},
    };

    fn findings_of(ids: impl Iterator<Item = String>) -> PodFindings {
        let findings = PodFindings::default();
        ids.for_each(|id| findings.note(Finding::PodDiffers.of(id, "it differs")));
        findings
    }

    #[test]
    fn findings_are_news_once_a_session() {
        let (vfs, _folder) = vfs();
        keep(vfs.records(), record("a", "c"));
        let findings = findings_of(["a".to_owned()].into_iter());
        let records = vfs.records();
        assert!(findings.news("s1", records).is_some() && findings.news("s1", records).is_none());
        assert!(findings.news("s2", records).is_some());
        findings.clear("a");
        assert_eq!(findings.news("s2", records).unwrap().findings, []);
        assert!(findings.news("s3", records).is_none());
    }

    #[test]
    fn refused_configuration_is_news_once() {
        let (vfs, _folder) = vfs();
        let findings = PodFindings::default();
        findings.set_configuration_problem("refused".into());
        let told = findings.news("s1", vfs.records()).unwrap();
        assert_eq!(told.configuration_problem, "refused");
        assert!(findings.news("s1", vfs.records()).is_none());
        findings.set_configuration_problem(String::new());
        assert_eq!(findings.news("s1", vfs.records()), Some(v1::PodFindings::default()));
    }

    #[test]
    fn unused_vf_stays_when_an_interface_is_cleared() {
        let (vfs, _folder) = vfs();
        keep(vfs.records(), record("a", "c"));
        let findings = findings_of(["a".to_owned()].into_iter());
        let unused = Finding::KubeletVfUnused.of("a", "it is unused");
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
        let report = findings.news("s", vfs.records()).unwrap();
        assert_eq!((report.findings.len(), report.left_out), (REPORTED, 36));
    }
}
