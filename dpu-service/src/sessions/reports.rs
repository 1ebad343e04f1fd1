//! What a host's agent reports in a session, and what each report changes.

use std::{collections::BTreeSet, mem};

use offload_proto::{
    FindingCode,
    v1::{Finding, PodFindings},
};

/// Id of an attachment and code of a finding. An attachment may have several findings, each with its own code.
pub(crate) type FindingId = (String, &'static str);

#[derive(Debug, Default)]
pub(super) struct Reports {
    /// `None`: nothing was reported yet.
    latest: Option<PodFindings>,
    /// Findings that began and have not ended.
    standing: BTreeSet<FindingId>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) begun: Vec<Finding>,
    /// Findings whose cause is gone.
    pub(crate) cured: Vec<FindingId>,
    /// Configuration problem of the previous report. `None`: there was no report.
    pub(crate) configuration_before: Option<String>,
}

impl Reports {
    /// Replaces the latest report. Findings of attachments that are not in `attachments` or are being released end
    /// without being cured. A report that left findings out does not tell which ones are over, so none is cured.
    pub(super) fn note(
        &mut self,
        mut report: PodFindings,
        attachments: &BTreeSet<String>,
    ) -> Turns {
        let releasing: BTreeSet<_> = mem::take(&mut report.releasing).into_iter().collect();
        let found: BTreeSet<_> = report.findings.iter().map(id_of).collect();
        let is_new = |finding: &&Finding| !self.standing.contains(&id_of(finding));
        let begun = report.findings.iter().filter(is_new).cloned().collect();
        let is_kept =
            |subject: &String| attachments.contains(subject) && !releasing.contains(subject);
        let mut gone = mem::take(&mut self.standing);
        gone.retain(|id| !found.contains(id) && is_kept(&id.0));
        self.standing = found;
        let cured = match report.left_out {
            0 => gone.into_iter().collect(),
            _ => {
                self.standing.extend(gone);
                Vec::new()
            }
        };
        let configuration_before = self.latest.replace(report).map(|it| it.configuration_problem);
        Turns { begun, cured, configuration_before }
    }

    pub(super) const fn latest(&self) -> Option<&PodFindings> {
        self.latest.as_ref()
    }

    /// The first finding of a pod's interface, and their number. `None`: there is none.
    pub(super) fn of_interfaces(&self) -> Option<(Finding, usize)> {
        let PodFindings { findings, left_out, kubelet_vf_unused_left_out, .. } =
            self.latest.as_ref()?;
        // An unused VF does not disconnect a pod.
        let is_of_interface =
            |found: &&Finding| found.code != FindingCode::KubeletVfUnused.as_str();
        let mut differing = findings.iter().filter(is_of_interface);
        let first = differing.next()?.clone();
        let left_out = left_out.saturating_sub(*kubelet_vf_unused_left_out);
        let number = 1 + differing.count() + usize::try_from(left_out).unwrap_or_default();
        Some((first, number))
    }
}

fn id_of(found: &Finding) -> FindingId {
    (found.subject.clone(), known_code(&found.code))
}

/// Maps a finding's code to a known one, for its event's reason: a host could invent any number of others.
pub(crate) fn known_code(code: &str) -> &'static str {
    let mut known = FindingCode::ALL.iter().map(|finding| finding.as_str());
    known.find(|known| *known == code).unwrap_or(FindingCode::PodDiffers.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: FindingCode = FindingCode::PodDiffers;
    const UNUSED: FindingCode = FindingCode::KubeletVfUnused;

    fn report(found: &[(&str, FindingCode)], left_out: u32) -> PodFindings {
        let findings = found.iter().map(|(id, finding)| finding.of(id, "it differs")).collect();
        PodFindings { findings, left_out, ..PodFindings::default() }
    }

    fn attachments() -> BTreeSet<String> {
        ["a", "b", "c"].map(str::to_owned).into()
    }

    /// The findings that begin and those that are cured by a report.
    fn turns(reports: &mut Reports, report: PodFindings) -> (Vec<String>, Vec<FindingId>) {
        let turns = reports.note(report, &attachments());
        (turns.begun.into_iter().map(|found| found.subject).collect(), turns.cured)
    }

    fn id(subject: &str, finding: FindingCode) -> FindingId {
        (subject.to_owned(), finding.as_str())
    }

    #[test]
    fn finding_that_is_left_out_is_not_cured() {
        let mut reports = Reports::default();
        let first = report(&[("b", LOST), ("c", LOST)], 0);
        assert_eq!(turns(&mut reports, first).0, ["b", "c"]);
        let full = report(&[("a", LOST), ("b", LOST)], 1);
        assert_eq!(turns(&mut reports, full), (vec!["a".to_owned()], vec![]));
        let fitting = report(&[("b", LOST), ("c", LOST)], 0);
        assert_eq!(turns(&mut reports, fitting), (vec![], vec![id("a", LOST)]));
    }

    #[test]
    fn finding_of_a_released_attachment_is_not_cured() {
        let mut reports = Reports::default();
        turns(&mut reports, report(&[("a", LOST), ("b", LOST), ("c", UNUSED)], 0));
        let releasing = vec!["a".to_owned()];
        let turns = reports.note(
            PodFindings { releasing, ..PodFindings::default() },
            &["a", "c"].map(str::to_owned).into(),
        );
        assert_eq!(turns.cured, [id("c", UNUSED)], "b has ended");
    }

    #[test]
    fn standing_findings_are_bounded_by_attachments() {
        let mut reports = Reports::default();
        for number in 0..100 {
            let subject = number.to_string();
            let mut found = report(&[(&subject, LOST)], 1);
            found.findings[0].code = format!("INVENTED_{number}");
            reports.note(found, &[subject].into());
        }
        assert_eq!(reports.standing, BTreeSet::from([id("99", LOST)]));
    }

    #[test]
    fn only_interfaces_count_as_differing_pods() {
        let mut reports = Reports::default();
        assert_eq!(reports.of_interfaces(), None);
        let mut full = report(&[("a", LOST), ("b", LOST), ("a", UNUSED)], 9);
        full.kubelet_vf_unused_left_out = 5;
        turns(&mut reports, full);
        assert_eq!(
            reports.of_interfaces().map(|(first, number)| (first.subject, number)),
            Some(("a".into(), 6))
        );
        turns(&mut reports, report(&[("a", UNUSED)], 0));
        assert_eq!(reports.of_interfaces(), None);
    }
}
