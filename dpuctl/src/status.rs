//! `dpuctl status`: shows the state of the DPU and its hosts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use offload_proto::v1::{
    Condition, ConditionStatus, ConditionType, Dpu, GetDpuRequest, HostStatus, RefusedPeer,
    operator_client::OperatorClient,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    arguments::{Format, Options},
    client::Client,
    console::Console,
    description::Description,
    error::CallError,
    format::{Audience, print_encoded},
    table::{narrow_or_wide, table},
    text::{age, host_state, or_dash, printable},
};

/// Polling interval of `--wait`.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time limit of one poll. A service that is just starting may need the next one.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// How long a refused peer is shown.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// Prints the state of the DPU.
///
/// # Errors
/// [`CallError::PodsAffected`], after printing, if a condition that affects pods is false.
pub(crate) async fn status(
    client: &mut Client,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let dpu = dpu(client).await?;
    print(&dpu, client.now(), format, console)?;
    check_pods(&dpu)
}

/// Waits until all conditions of the type are true, within the time limit of `options`, and prints the DPU's last
/// state. A service that does not run yet is waited for.
///
/// # Errors
/// [`CallError::StillFalse`], after printing, if a condition is not true; [`CallError::NotShown`] if the DPU has no
/// such condition; otherwise the last connection error. Permanent errors, such as an invalid certificate, end the wait
/// at once.
pub(crate) async fn wait(
    options: &Options,
    wanted: ConditionType,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let until = Instant::now() + options.timeout();
    let mut connection = None;
    let (outcome, now) = loop {
        let left = until - Instant::now();
        // The last poll starts when the time is over.
        let limit = left.clamp(LOOK_EVERY, LONGEST_LOOK);
        let looked = timeout(limit, look(&mut connection, options)).await;
        let looked = looked.unwrap_or(Err(CallError::TooSlow(options.timeout())));
        let left = until - Instant::now();
        let is_over = left.is_zero();
        match looked {
            Ok((dpu, now)) if is_true(&dpu, wanted) || !is_shown(&dpu, wanted) || is_over => {
                break (dpu, now);
            }
            Err(error) if is_over || !error.is_passing() => return Err(error),
            _ => sleep(LOOK_EVERY.min(left)).await,
        }
    };
    print(&outcome, now, format, console)?;
    match is_true(&outcome, wanted) {
        true => Ok(()),
        false if !is_shown(&outcome, wanted) => Err(CallError::NotShown(wanted.name())),
        false => Err(CallError::StillFalse(wanted.name())),
    }
}

/// Asks over the open connection, or opens one. Also returns the DPU's clock.
async fn look(
    connection: &mut Option<Client>,
    options: &Options,
) -> Result<(Dpu, Timestamp), CallError> {
    let client = match connection {
        Some(client) => client,
        None => connection.insert(Client::connect(options).await?),
    };
    let dpu = dpu(client).await?;
    Ok((dpu, client.now()))
}

fn print(
    dpu: &Dpu,
    now: Timestamp,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match print_encoded(dpu, format, console)? {
        Audience::Programs => Ok(()),
        Audience::People { wide } => console.print(&summary(dpu, wide, now)),
    }
}

pub(crate) async fn dpu(client: &mut Client) -> Result<Dpu, CallError> {
    client.call(OperatorClient::get_dpu, GetDpuRequest {}).await
}

/// Fails with [`CallError::PodsAffected`] if a condition that affects pods is false.
pub(crate) fn check_pods(dpu: &Dpu) -> Result<(), CallError> {
    let is_it = |it: &&Condition| it.affects_pods && it.status() == ConditionStatus::False;
    let mut affecting: Vec<_> =
        dpu.conditions.iter().filter(is_it).map(|it| it.r#type().name()).collect();
    affecting.dedup();
    match affecting.is_empty() {
        true => Ok(()),
        false => Err(CallError::PodsAffected(affecting)),
    }
}

fn is_true(dpu: &Dpu, wanted: ConditionType) -> bool {
    let mut of_type = dpu.conditions.iter().filter(|it| it.r#type() == wanted);
    is_shown(dpu, wanted) && of_type.all(|it| it.status() == ConditionStatus::True)
}

/// Whether the DPU has the condition at all: `Offloaded` needs cards.
fn is_shown(dpu: &Dpu, wanted: ConditionType) -> bool {
    dpu.conditions.iter().any(|it| it.r#type() == wanted)
}

fn summary(dpu: &Dpu, wide: bool, now: Timestamp) -> String {
    let connected = dpu.hosts.iter().filter(|host| host.connected).count();
    let mut text = Description::default();
    text.field("DPU", &dpu.name);
    text.field("Version", &dpu.version);
    text.field("Up for", &age(&dpu.started_at, now));
    // As `sha256sum` prints it.
    text.field("Configuration", &format!("sha256 {}", dpu.configuration_digest));
    text.field("Attachments", &dpu.attachments.to_string());
    text.field("Hosts", &format!("{connected} of {} connected", dpu.hosts.len()));
    text.field_if_any("Refused peers", &refused(dpu, now).unwrap_or_default());
    text.block("", &host_table(&dpu.hosts, wide, now));
    format!("{}\n{}", condition_table(&dpu.conditions, now), text.finish())
}

/// The conditions that are not true, or one line if all are.
pub(crate) fn condition_table(conditions: &[Condition], now: Timestamp) -> String {
    let is_not_true = |condition: &&Condition| condition.status() != ConditionStatus::True;
    let row = |condition: &Condition| {
        vec![
            condition.r#type().name().to_owned(),
            condition.status().name().to_owned(),
            condition.reason.clone(),
            or_dash(&condition.object).to_owned(),
            age(&condition.since, now),
            printable(&condition.message),
        ]
    };
    let rows: Vec<_> = conditions.iter().filter(is_not_true).map(row).collect();
    match rows.is_empty() {
        true => format!("All {} conditions are true.\n", conditions.len()),
        false => table(&["TYPE", "STATUS", "REASON", "OBJECT", "SINCE", "MESSAGE"], rows),
    }
}

/// Recently refused peers that the DPU cannot identify as one of its hosts; one may be a host that fails to connect.
/// `None`: there are none.
fn refused(dpu: &Dpu, now: Timestamp) -> Option<String> {
    let is_recent = |peer: &&RefusedPeer| {
        peer.time.parse().is_ok_and(|time| now.duration_since(time) <= RECENT)
    };
    let recent: Vec<_> = dpu.refused_peers.iter().filter(is_recent).collect();
    let RefusedPeer { address, reason, .. } = recent.first()?;
    let number = recent.len();
    Some(format!("{number}, the latest {address}: {reason}; `dpuctl describe dpu` lists them"))
}

/// The hosts, with the time since their last change of state.
pub(crate) fn host_table(hosts: &[HostStatus], wide: bool, now: Timestamp) -> String {
    if hosts.is_empty() {
        return String::new();
    }
    let row = |host: &HostStatus| {
        vec![
            host.name.clone(),
            host_state(host),
            age(&host.since, now),
            or_dash(&host.agent_version).into(),
            or_dash(&host.boot_id).into(),
            or_dash(&host.address).into(),
        ]
    };
    let headings = ["HOST", "STATE", "SINCE", "AGENT", "BOOT ID", "ADDRESS"];
    narrow_or_wide(&headings, 4, wide, hosts.iter().map(row))
}

#[cfg(test)]
mod tests {
    use offload_proto::ConditionReason;

    use super::*;
    use crate::colour;

    fn host(name: &str, connected: bool, agent_version: &str) -> HostStatus {
        HostStatus {
            name: name.into(),
            connected,
            agent_version: agent_version.into(),
            boot_id: "b007".into(),
            since: "2026-03-01T11:00:00Z".into(),
            ..HostStatus::default()
        }
    }

    fn uplink(status: ConditionStatus) -> Condition {
        Condition {
            r#type: ConditionType::UplinksUp.into(),
            status: status.into(),
            reason: ConditionReason::UplinkDown.as_str().into(),
            object: "uplink/p0".into(),
            message: "uplink p0 has no carrier".into(),
            since: "2026-03-01T11:58:00Z".into(),
            affects_pods: true,
            ..Condition::default()
        }
    }

    fn with(conditions: Vec<Condition>) -> Dpu {
        Dpu { conditions, ..Dpu::default() }
    }

    #[test]
    fn conditions_that_are_not_true_come_first() {
        let ready = Condition {
            r#type: ConditionType::Ready.into(),
            status: ConditionStatus::True.into(),
            ..Condition::default()
        };
        let dpu = Dpu {
            name: "dpu-1".into(),
            version: "0.1.0".into(),
            hosts: vec![host("node-1", true, "0.1.0"), host("node-2", false, "")],
            conditions: vec![ready, uplink(ConditionStatus::False)],
            attachments: 3,
            started_at: "2026-03-01T10:58:00Z".into(),
            configuration_digest: "ba7816bf".into(),
            ..Dpu::default()
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        assert_eq!(
            colour::without(&summary(&dpu, false, now)),
            "\
TYPE        STATUS   REASON        OBJECT      SINCE   MESSAGE
UplinksUp   False    UPLINK_DOWN   uplink/p0   2m0s    uplink p0 has no carrier

DPU:           dpu-1
Version:       0.1.0
Up for:        1h2m
Configuration: sha256 ba7816bf
Attachments:   3
Hosts:         1 of 2 connected

HOST     STATE          SINCE   AGENT
node-1   Connected      1h0m    0.1.0
node-2   Disconnected   1h0m    -
"
        );
    }

    #[test]
    fn a_wide_summary_tells_the_boot() {
        let dpu = Dpu { hosts: vec![host("node-1", true, "1")], ..Dpu::default() };
        let boot = |wide| summary(&dpu, wide, Timestamp::UNIX_EPOCH).contains("b007");
        assert!(boot(true) && !boot(false));
    }

    #[test]
    fn hosts_under_maintenance_are_marked() {
        let away = HostStatus { maintenance: true, ..host("node-1", false, "") };
        assert_eq!(host_state(&away), "Disconnected,Maintenance");
    }

    #[test]
    fn true_conditions_are_one_line() {
        let dpu = with(vec![uplink(ConditionStatus::True); 9]);
        let text = summary(&dpu, false, Timestamp::UNIX_EPOCH);
        assert!(text.starts_with("All 9 conditions are true.\n"), "{text}");
    }

    #[test]
    fn false_conditions_that_affect_pods_exit_with_5() {
        let unknown = uplink(ConditionStatus::Unknown);
        let harmless = Condition { affects_pods: false, ..uplink(ConditionStatus::False) };
        assert!(check_pods(&with(vec![unknown, harmless])).is_ok());
        let down = || uplink(ConditionStatus::False);
        let error = check_pods(&with(vec![down(), down()])).unwrap_err();
        assert_eq!(error.exit_code(), 5);
        assert!(matches!(error, CallError::PodsAffected(types) if types == ["UplinksUp"]));
    }

    #[test]
    fn type_is_true_if_all_conditions_are() {
        let holds = |conditions| is_true(&with(conditions), ConditionType::UplinksUp);
        let (up, down) = (uplink(ConditionStatus::True), uplink(ConditionStatus::False));
        assert!(holds(vec![up.clone()]) && !holds(vec![up.clone(), down]) && !holds(Vec::new()));
        assert!(!is_shown(&with(vec![up]), ConditionType::Offloaded));
    }

    #[test]
    fn a_summary_names_the_latest_refused_peer() {
        let peer = |address: &str, time: &str| RefusedPeer {
            address: address.into(),
            reason: "it expired".into(),
            time: time.into(),
            ..RefusedPeer::default()
        };
        let refused_peers = vec![
            peer("192.0.2.9", "2026-03-01T11:30:00Z"),
            peer("192.0.2.1", "2026-03-01T10:00:00Z"),
        ];
        let dpu = Dpu { refused_peers, ..Dpu::default() };
        let text = summary(&dpu, false, "2026-03-01T12:00:00Z".parse().unwrap());
        assert!(text.contains("\nRefused peers: 1, the latest 192.0.2.9: it expired"), "{text}");
        let later = summary(&dpu, false, "2026-03-02T12:00:00Z".parse().unwrap());
        assert!(!later.contains("Refused peers"), "{later}");
    }
}
