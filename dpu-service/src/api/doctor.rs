//! Compares hosts, DPU and records on demand, and repairs findings.
//!
//! An examination is what a host or the DPU finds in one look at itself. A diagnosis compares two looks at all of them.
//!
//! Locks: one diagnosis at a time, under `OperatorLimits::examination`. A look is refused while another diagnosis runs;
//! a repair waits for its turn. The mutex is fair, so any number of looks delay a repair by one diagnosis at most.

mod comparison;
mod hosts;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use offload_proto::{
    ConditionReason, Failure, FindingCode, MESSAGE_LIMIT, Reason, first_that_fit, v1,
};
use serde_json::json;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

use crate::{
    attachments::{AttachmentFilter, Depth},
    audit::{AuditAction, AuditEntry},
    author::Cause,
    condition_sources::faults,
    shared::Shared,
};
use comparison::Comparison;
use hosts::{HostHalf, Inquiry};
use model::AttachmentView;

/// Maximum encoded size of findings in an answer, in bytes: far less than `dpuctl` accepts.
const LARGEST: usize = 8 * MESSAGE_LIMIT;

/// Compares hosts, DPU and records. A host that does not answer within `limit` is reported as not examined.
pub(crate) async fn examine(shared: &Shared, limit: Duration) -> Result<v1::Diagnosis, Failure> {
    let _alone = alone(&shared.operator_limits.examination)?;
    Ok(fit(diagnose(shared, &mut Inquiry::new(shared, limit)).await?, LARGEST))
}

/// Repairs findings, first on the hosts and then on the DPU, and reports the outcome. Waits for its turn for up to
/// `limit`, and for hosts up to five times as long.
pub(crate) async fn repair(
    shared: &Shared,
    limit: Duration,
    cause: &Cause,
) -> Result<v1::Diagnosis, Failure> {
    let _alone = turn(&shared.operator_limits.examination, limit).await?;
    let mut hosts = Inquiry::new(shared, limit);
    let found = diagnose(shared, &mut hosts).await?;
    let obstacles = obstacles(&hosts.repair().await);
    shared.engine.reconcile(Depth::Thorough).await;
    // Audited before the next look: hosts and DPU have changed by now, even if that look fails.
    shared.engine.record_audit(repair_entry(cause, &found.findings)).await?;
    let mut left = diagnose(shared, &mut hosts).await?;
    // Repairs by this call are reported as repaired findings, so the list keeps only earlier ones.
    left.repairs = found.repairs;
    Ok(fit(outcome(found.findings, left, &obstacles), LARGEST))
}

/// The audit entry of a repair, with the findings it was for.
fn repair_entry(cause: &Cause, found: &[v1::Finding]) -> AuditEntry {
    let name = |found: &v1::Finding| format!("{} {}", found.code, found.subject);
    let found: Vec<_> = found.iter().map(name).collect();
    AuditEntry::new(cause, AuditAction::Repair, "dpu".into()).after(&json!({ "found": found }))
}

/// Fails if another diagnosis runs. A look does not wait: one that hangs would make all others hang.
fn alone(examination: &Mutex<()>) -> Result<MutexGuard<'_, ()>, Failure> {
    examination.try_lock().map_err(|_| busy())
}

/// Waits for other diagnoses, up to `limit`. The wait is bounded: a call continues when its caller has gone, so callers
/// who retry would build an endless queue.
async fn turn(examination: &Mutex<()>, limit: Duration) -> Result<MutexGuard<'_, ()>, Failure> {
    timeout(limit, examination.lock()).await.map_err(|_| busy())
}

fn busy() -> Failure {
    let busy = "another examination of hosts and DPU is in progress, and they run one at a time: try again";
    Failure::new(Reason::Overloaded, busy)
}

async fn diagnose(shared: &Shared, hosts: &mut Inquiry<'_>) -> Result<v1::Diagnosis, Failure> {
    let first = look(shared, hosts).await?;
    if first.findings.is_empty() {
        return Ok(first);
    }
    Ok(confirmed(first.findings, look(shared, hosts).await?))
}

/// Keeps the findings that two looks in a row find: one look may miss a VF that is on its way into a pod or out of
/// it. For a host that stopped answering the first look counts.
fn confirmed(first: Vec<v1::Finding>, mut second: v1::Diagnosis) -> v1::Diagnosis {
    let seen: HashSet<_> = first.iter().map(identity).collect();
    let silent = second.hosts.iter().filter(|host| !host.problem.is_empty());
    let silent: HashSet<_> = silent.map(|host| host.name.clone()).collect();
    let is_of_silent = |found: &v1::Finding| silent.contains(&found.host);
    second.findings.retain(|found| is_of_silent(found) || seen.contains(&identity(found)));
    let confirmed: HashSet<_> = second.findings.iter().map(identity).collect();
    let is_missing =
        |found: &v1::Finding| is_of_silent(found) && !confirmed.contains(&identity(found));
    second.findings.extend(first.into_iter().filter(is_missing));
    second
}

async fn look(shared: &Shared, hosts: &mut Inquiry<'_>) -> Result<v1::Diagnosis, Failure> {
    let before = attachments(shared);
    let hosts = hosts.look().await;
    let dpu = shared.engine.operators().examine_dpu().await?;
    let after = attachments(shared);
    let mut diagnosis = Comparison { before, hosts, dpu, after }.diagnosis(shared);
    diagnosis.findings.extend(of_service(shared).await);
    Ok(diagnosis)
}

/// Faults behind conditions, without those that the comparison finds one by one and without refusals, which are past.
async fn of_service(shared: &Shared) -> impl Iterator<Item = v1::Finding> + use<> {
    let name = shared.dpu();
    let faults = faults(shared).await.into_iter();
    faults.filter_map(move |fault| Some(finding_of(fault.reason)?.of(&name, fault.message)))
}

/// `None`: the comparison has its own findings for this reason.
const fn finding_of(reason: ConditionReason) -> Option<FindingCode> {
    match reason {
        ConditionReason::CertificateExpired | ConditionReason::CertificateExpiring => {
            Some(FindingCode::CertificateExpires)
        }
        ConditionReason::NotServing
        | ConditionReason::HostNotConnected
        | ConditionReason::RepresentorMissing
        | ConditionReason::RepairFailed
        | ConditionReason::AttachmentUnrecorded
        | ConditionReason::UplinkMissing
        | ConditionReason::UplinkDown
        | ConditionReason::UplinkWithoutCarrier
        | ConditionReason::GatewayGone
        | ConditionReason::PodDiffers
        | ConditionReason::AddressConflict
        | ConditionReason::ReleaseStuck => None,
        reason if matches!(reason.condition(), v1::ConditionType::AttachesServed) => None,
        _ => Some(FindingCode::ServiceProblem),
    }
}

/// Marks what is left as not repaired and everything else that was found as repaired. If a host stopped answering or
/// left findings out, the state of its other findings is unknown.
fn outcome(
    found: Vec<v1::Finding>,
    mut diagnosis: v1::Diagnosis,
    obstacles: &HashMap<Identity, String>,
) -> v1::Diagnosis {
    for left in &mut diagnosis.findings {
        left.set_not_repaired(obstacles.get(&identity(left)).cloned().unwrap_or_default());
    }
    let left: HashSet<_> = diagnosis.findings.iter().map(identity).collect();
    let unknown = diagnosis.hosts.iter().filter_map(|host| Some((&host.name, unknown_of(host)?)));
    let unknown: HashMap<_, _> = unknown.collect();
    let mut others = found;
    others.retain(|found| !left.contains(&identity(found)));
    for other in &mut others {
        match unknown.get(&other.host) {
            Some(why) => {
                other.set_not_repaired(format!("whether it was repaired is unknown: {why}"));
            }
            None => other.set_state(v1::FindingState::Repaired),
        }
    }
    diagnosis.findings.extend(others);
    diagnosis
}

/// Why the current state of the host's earlier findings is unknown.
fn unknown_of(host: &v1::DiagnosedHost) -> Option<String> {
    match (host.problem.as_str(), host.findings_left_out) {
        ("", 0) => None,
        ("", left_out) => Some(format!("it left {left_out} findings out of its answer")),
        (problem, _) => Some(problem.to_owned()),
    }
}

/// Drops and counts the findings that exceed the size limit.
fn fit(mut diagnosis: v1::Diagnosis, limit: usize) -> v1::Diagnosis {
    let (kept, left_out) = first_that_fit(diagnosis.findings, limit);
    let of_hosts = diagnosis.hosts.iter().map(|host| u64::from(host.findings_left_out));
    diagnosis.findings_left_out = of_hosts.sum::<u64>() + super::convert::show::count(left_out);
    diagnosis.findings = kept;
    diagnosis
}

/// Host, code and subject of a finding.
type Identity = (String, String, String);

fn identity(finding: &v1::Finding) -> Identity {
    (finding.host.clone(), finding.code.clone(), finding.subject.clone())
}

/// Reasons why hosts could not repair findings.
fn obstacles(tried: &[HostHalf]) -> HashMap<Identity, String> {
    let of_host = |half: &HostHalf| {
        let host = half.view.name.to_string();
        let found = half.found.iter().flat_map(|found| &found.findings);
        let found = found.map(|found| v1::Finding { host: host.clone(), ..found.clone() });
        found.map(|found| (identity(&found), found.why)).collect::<Vec<_>>()
    };
    tried.iter().flat_map(of_host).collect()
}

fn attachments(shared: &Shared) -> Vec<AttachmentView> {
    shared.engine.operators().attachments(&AttachmentFilter::default())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn repair_is_next_after_a_running_look() {
        let examination = Mutex::default();
        let looking = alone(&examination).unwrap();
        let mut turn = pin!(turn(&examination, Duration::MAX));
        assert!(poll!(&mut turn).is_pending());
        drop(looking);
        assert_eq!(alone(&examination).unwrap_err().reason, Reason::Overloaded);
        drop(turn.await.unwrap());
        assert!(alone(&examination).is_ok());
    }

    #[tokio::test]
    async fn repair_waits_for_a_bounded_time() {
        let examination = Mutex::default();
        let _hangs = alone(&examination).unwrap();
        let refused = turn(&examination, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Overloaded);
    }

    fn on(host: &str, found: FindingCode) -> v1::Finding {
        v1::Finding { host: host.into(), ..found.of("pf0vf1", "it differs") }
    }

    fn host(name: &str, problem: &str) -> v1::DiagnosedHost {
        let (name, problem) = (name.into(), problem.into());
        v1::DiagnosedHost { name, problem, ..v1::DiagnosedHost::default() }
    }

    /// A diagnosis with host "a", and host "b" with this problem.
    fn diagnosis(problem: &str, findings: Vec<v1::Finding>) -> v1::Diagnosis {
        let hosts = vec![host("a", ""), host("b", problem)];
        v1::Diagnosis { hosts, findings, ..v1::Diagnosis::default() }
    }

    fn shown(diagnosis: &v1::Diagnosis) -> Vec<(&str, &str, v1::FindingState)> {
        let all = diagnosis.findings.iter();
        all.map(|found| (found.host.as_str(), found.code.as_str(), found.state())).collect()
    }

    #[test]
    fn finding_of_a_single_look_is_dropped() {
        let first = vec![on("a", FindingCode::VfDiffers), on("a", FindingCode::VfElsewhere)];
        let second = vec![on("a", FindingCode::VfElsewhere), on("b", FindingCode::VfDiffers)];
        let confirmed = confirmed(first, diagnosis("", second));
        assert_eq!(shown(&confirmed), [("a", "VF_ELSEWHERE", v1::FindingState::Found)]);
    }

    #[test]
    fn first_look_counts_for_a_silent_host() {
        let first = vec![on("a", FindingCode::VfDiffers), on("b", FindingCode::VfDiffers)];
        let second = diagnosis("it did not answer", vec![on("b", FindingCode::HostNotExamined)]);
        let confirmed = confirmed(first, second);
        let expected = [
            ("b", "HOST_NOT_EXAMINED", v1::FindingState::Found),
            ("b", "VF_DIFFERS", v1::FindingState::Found),
        ];
        assert_eq!(shown(&confirmed), expected);
    }

    #[test]
    fn silent_host_is_reported_once() {
        let silent = || vec![on("b", FindingCode::HostNotExamined)];
        let confirmed = confirmed(silent(), diagnosis("it did not answer", silent()));
        assert_eq!(shown(&confirmed).len(), 1);
    }

    #[test]
    fn silent_host_has_no_repaired_findings() {
        let problem = "silent";
        let left = diagnosis(problem, vec![on("b", FindingCode::HostNotExamined)]);
        let found = vec![on("a", FindingCode::VfDiffers), on("b", FindingCode::VfDiffers)];
        let outcome = outcome(found, left, &HashMap::new());
        let expected = [
            ("b", "HOST_NOT_EXAMINED", v1::FindingState::NotRepaired),
            ("a", "VF_DIFFERS", v1::FindingState::Repaired),
            ("b", "VF_DIFFERS", v1::FindingState::NotRepaired),
        ];
        assert_eq!(shown(&outcome), expected);
        assert!(outcome.findings[2].why.ends_with(problem), "{outcome:?}");
    }

    #[test]
    fn findings_left_out_do_not_count_as_repaired() {
        let mut left = diagnosis("", Vec::new());
        left.hosts[1].findings_left_out = 7;
        let outcome = outcome(vec![on("b", FindingCode::VfDiffers)], left, &HashMap::new());
        assert_eq!(shown(&outcome), [("b", "VF_DIFFERS", v1::FindingState::NotRepaired)]);
        assert_eq!(fit(outcome, LARGEST).findings_left_out, 7);
    }

    #[test]
    fn failed_repair_has_a_reason_without_fix_advice() {
        let left = diagnosis("", vec![on("a", FindingCode::VfDiffers)]);
        let obstacles = [(identity(&left.findings[0]), "p0v1 exists".to_owned())].into();
        let outcome = outcome(vec![on("a", FindingCode::VfDiffers)], left, &obstacles);
        assert_eq!(shown(&outcome), [("a", "VF_DIFFERS", v1::FindingState::NotRepaired)]);
        let shown = &outcome.findings[0];
        assert_eq!(shown.why, "p0v1 exists");
        assert!(!shown.advice.contains("--fix"), "{shown:?}");
    }

    #[test]
    fn findings_are_bounded_in_bytes() {
        let limit = 100 * offload_proto::encoded_len(&on("a", FindingCode::VfDiffers));
        let all = diagnosis("", vec![on("a", FindingCode::VfDiffers); 5000]);
        let shown = fit(all, limit);
        assert_eq!(shown.findings_left_out, 5000 - shown.findings.len() as u64);
        assert!((90..=100).contains(&shown.findings.len()), "{}", shown.findings.len());
    }
}
