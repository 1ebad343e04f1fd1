//! Builds the report for `host-shim-agent status`: session, certificate, VFs, pods and problems.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use jiff::Timestamp;
use offload_proto::{
    Failure, FindingCode,
    v1::{Finding, PhysicalFunction, VfCondition, VirtualFunction},
};
use vf_alloc::{Device, FunctionId};

use super::{
    dpu::SessionState,
    failures::Failures,
    verbs::{self, Doors},
    vfs::{Phase, Record},
};
use crate::protocol::{CertificateReport, PodReport, Report, SessionReport, VfReport, VfState};

/// How long a failed ADD counts as a problem.
const RECENT: Duration = Duration::from_secs(300);

pub(super) async fn report(doors: &Doors, failures: &Failures) -> Report {
    let mut found = doors.dpu.pod_findings().current(doors.vfs.records());
    found.extend(unrecorded(doors));
    let (session, certificate) = (session(doors), certificate(doors));
    let (vfs, vfs_unknown) = match vfs(doors).await {
        Ok(vfs) => (vfs, String::new()),
        Err(failure) => (Vec::new(), failure.message),
    };
    let session_problem = session_problem(&session).into_iter();
    let problems = session_problem
        .chain(dpu_problem(doors, &session).await)
        .chain(certificate_problem(doors))
        .chain(doors.dpu.pod_findings().configuration_problem())
        .chain(found.iter().map(|found| found.message.clone()))
        .chain(add_problem(failures));
    Report {
        version: env!("CARGO_PKG_VERSION").into(),
        problems: problems.collect(),
        session,
        certificate,
        vfs,
        vfs_unknown,
        pods: pods(doors, &found),
        failures: failures.all(),
        pending_detaches: pending_detaches(doors),
    }
}

fn session(doors: &Doors) -> SessionReport {
    let target = doors.dpu.target();
    let (dpu, endpoint) = (target.name.clone(), target.endpoint.clone());
    let report = SessionReport { dpu, endpoint, ..SessionReport::default() };
    match doors.dpu.session().state() {
        SessionState::Up(session) => {
            SessionReport { connected: true, since: time_of(session.since), ..report }
        }
        SessionState::Down { since, failure: Failure { reason, message }, .. } => {
            let (since, code) = (time_of(since), reason.to_string());
            SessionReport { since, code, message, ..report }
        }
    }
}

/// The wall-clock time of a moment: RFC 3339, UTC, whole seconds.
fn time_of(moment: Instant) -> String {
    rfc3339(SystemTime::now() - moment.elapsed())
}

fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn certificate(doors: &Doors) -> Option<CertificateReport> {
    let credentials = doors.dpu.session().credentials()?.current();
    Some(CertificateReport {
        identity: credentials.identity().to_string(),
        valid_until: rfc3339(credentials.validity().not_after),
        problem: doors.dpu.session().certificate_problem().unwrap_or_default(),
    })
}

fn session_problem(session: &SessionReport) -> Option<String> {
    let SessionReport { dpu, since, code, message, connected, .. } = session;
    (!connected).then(|| format!("no session with DPU {dpu} since {since}: {message} ({code})"))
}

/// Pods whose attachments the DPU has no record of.
fn unrecorded(doors: &Doors) -> Vec<Finding> {
    let SessionState::Up(session) = doors.dpu.session().state() else { return Vec::new() };
    let records = doors.vfs.records().all().into_iter();
    let unrecorded = records.filter(|it| it.phase == Phase::Live && session.is_unrecorded(it.id()));
    let found = |record: Arc<Record>| {
        let message = format!(
            "the DPU has no record of the attachment of {}, and has closed its port: recreate the pod",
            record.key()
        );
        FindingCode::AttachmentUnrecorded.of(record.id(), message)
    };
    unrecorded.map(found).collect()
}

/// Why the DPU serves no ADD although there is a session.
async fn dpu_problem(doors: &Doors, session: &SessionReport) -> Option<String> {
    if !session.connected {
        return None;
    }
    let failure = verbs::trouble(doors, None).await?;
    Some(format!("the DPU takes no attachments: {} ({})", failure.message, failure.reason))
}

/// An expired certificate is a problem. One that expires soon, or whose replacement was refused, affects no pod yet.
fn certificate_problem(doors: &Doors) -> Option<String> {
    doors.dpu.session().credentials()?.expired()
}

fn add_problem(failures: &Failures) -> Option<String> {
    let recent = failures.problems(RECENT);
    let latest = recent.last()?;
    let adds =
        if recent.len() == 1 { "1 ADD".to_owned() } else { format!("{} ADDs", recent.len()) };
    Some(format!(
        "{adds} failed in the last 5 minutes, the latest of {}: {} ({})",
        latest.subject, latest.message, latest.code
    ))
}

fn pods(doors: &Doors, found: &[Finding]) -> Vec<PodReport> {
    let problems: HashMap<_, _> = found.iter().map(|it| (&*it.subject, &*it.message)).collect();
    let problem = |record: &Record| problems.get(record.id()).copied().unwrap_or_default();
    let records = doors.vfs.records().all();
    let mut pods: Vec<_> = records.iter().map(|it| pod(it, problem(it))).collect();
    pods.sort_by_cached_key(|it| (it.pod.clone(), it.container.clone(), it.interface.clone()));
    pods
}

fn pod(record: &Record, problem: &str) -> PodReport {
    let (key, attachment) = (record.key(), &record.attachment);
    let pod = attachment.pod.clone().unwrap_or_default();
    let is_unnamed = pod.name.is_empty();
    PodReport {
        pod: if is_unnamed { String::new() } else { format!("{}/{}", pod.namespace, pod.name) },
        container: key.container_id,
        interface: key.interface_name,
        network: attachment.network.clone(),
        vf: record.device().to_string(),
        addresses: attachment.addresses.iter().map(|held| held.address.clone()).collect(),
        state: state_of(record.phase).into(),
        problem: problem.to_owned(),
        attachment: record.id().to_owned(),
    }
}

const fn state_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Attaching => "attaching",
        Phase::Live => "live",
        Phase::Releasing => "releasing",
    }
}

fn pending_detaches(doors: &Doors) -> Vec<String> {
    let records = doors.vfs.records().all().into_iter();
    let releasing = records.filter(|record| record.phase == Phase::Releasing);
    let keys = releasing.map(|record| record.key()).chain(doors.dpu.calls().pending_detach_keys());
    let mut keys: Vec<_> = keys.map(|key| key.to_string()).collect();
    keys.sort();
    keys.dedup();
    keys
}

async fn vfs(doors: &Doors) -> Result<Vec<VfReport>, Failure> {
    let inventory = doors.dpu.reports().list().await?;
    let offered = match doors.dpu.session().state() {
        SessionState::Up(session) => session.offered(),
        SessionState::Down { .. } => Vec::new(),
    };
    let found = FoundVfs { doors, offered: offered.into_iter().collect() };
    let vfs = inventory.pfs.iter().flat_map(|pf| pf.vfs.iter().map(move |vf| (pf, vf)));
    Ok(vfs.map(|(pf, vf)| found.report(pf, vf)).collect())
}

/// What the states of VFs are derived from.
struct FoundVfs<'a> {
    doors: &'a Doors,
    offered: HashSet<Device>,
}

impl FoundVfs<'_> {
    fn report(&self, pf: &PhysicalFunction, vf: &VirtualFunction) -> VfReport {
        let device = Device::from(vf.device.as_str());
        let (state, reason) = self.state(&device, vf);
        VfReport { name: name(pf, vf), device: vf.device.clone(), state, reason }
    }

    fn state(&self, device: &Device, vf: &VirtualFunction) -> (VfState, String) {
        if self.doors.vfs.records().by_device(device).is_some() {
            return (VfState::Held, String::new());
        }
        match vf.condition() {
            VfCondition::Clean if self.offered.contains(device) => {
                (VfState::Offered, String::new())
            }
            VfCondition::Clean => (VfState::Free, String::new()),
            VfCondition::Held => (VfState::Held, String::new()),
            // A record that ended after the inventory was taken held this VF.
            VfCondition::InUse if vf.use_by_host.is_empty() => (VfState::Held, String::new()),
            VfCondition::InUse => {
                (VfState::Unavailable, format!("the host uses it: {}", vf.use_by_host))
            }
            VfCondition::Missing | VfCondition::Unspecified => {
                (VfState::Unavailable, self.lack_of(device, vf))
            }
        }
    }

    fn lack_of(&self, device: &Device, vf: &VirtualFunction) -> String {
        let differences = self.doors.vfs.cleanliness().known_differences(device);
        match differences.as_slice() {
            [] if vf.netdev.is_empty() => {
                "it has no netdev in the host's network namespace: `dpuctl doctor` says where it is"
                    .into()
            }
            [] => "it is not verified yet".into(),
            differences => differences.join("; "),
        }
    }
}

/// The VF's name, such as `pf0vf3`, or the plain numbers if they are out of range.
fn name(pf: &PhysicalFunction, vf: &VirtualFunction) -> String {
    let id = FunctionId::from_numbers(pf.controller, pf.pf, vf.vf);
    id.map_or_else(|_| format!("pf{}vf{}", pf.pf, vf.vf), |id| id.to_string())
}

#[cfg(test)]
mod tests {
    use offload_proto::Reason;

    use super::*;
    use crate::{
        agent::{
            verbs::tests::doors,
            vfs::{record, tests::keep},
        },
        cni::environment::Verb,
    };

    #[tokio::test]
    async fn vf_of_an_ended_record_is_held() {
        let (doors, _folder) = doors();
        let found = FoundVfs { doors: &doors, offered: HashSet::new() };
        let state = |use_by_host: &str| {
            let mut vf = VirtualFunction { use_by_host: use_by_host.into(), ..Default::default() };
            vf.set_condition(VfCondition::InUse);
            found.state(&Device::from("d000:00:00.9"), &vf)
        };
        assert_eq!(state(""), (VfState::Held, String::new()));
        assert_eq!(state("it is a port").1, "the host uses it: it is a port");
    }

    #[tokio::test]
    async fn report_names_session_pods_and_failures() {
        let (doors, _folder) = doors();
        let failures = Failures::default();
        failures.note(
            Verb::Add,
            "web/shop eth0",
            &Failure::new(Reason::VfsExhausted, "no free VF"),
        );
        keep(doors.vfs.records(), record("a", "c"));
        doors.dpu.pod_findings().set_configuration_problem("c.toml is not in force".into());
        let releasing = Record { phase: Phase::Releasing, ..record("b", "d") };
        keep(doors.vfs.records(), releasing);
        let report = report(&doors, &failures).await;
        assert!(!report.session.connected && !report.session.code.is_empty());
        assert_eq!(report.session.dpu, "dpu-1");
        let pods: Vec<_> = report.pods.iter().map(|pod| (&*pod.container, &*pod.state)).collect();
        assert_eq!(pods, [("c", "live"), ("d", "releasing")]);
        assert_eq!(report.pending_detaches, ["d/eth0"]);
        assert_eq!(report.failures[0].code, "VFS_EXHAUSTED");
        let problems = report.problems.join("\n");
        for value in
            [&*report.session.code, "web/shop eth0", "VFS_EXHAUSTED", "c.toml is not in force"]
        {
            assert!(problems.contains(value), "{value}: {problems}");
        }
    }
}
