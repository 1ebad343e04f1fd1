//! `dpuctl status`: how the DPU and its hosts are.

use jiff::Timestamp;
use offload_proto::v1::{Dpu, GetDpuRequest, HostStatus};

use crate::{
    arguments::Format,
    client::Client,
    console::Console,
    description::Description,
    error::CallError,
    format::{Audience, print_encoded},
    table::narrow_or_wide,
    text::{age, or_dash},
};

pub(crate) async fn status(
    client: &mut Client,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let dpu = dpu(client).await?;
    match print_encoded(&dpu, format, console)? {
        Audience::Programs => Ok(()),
        Audience::People { wide } => console.print(&summary(&dpu, wide, Timestamp::now())),
    }
}

pub(crate) async fn dpu(client: &mut Client) -> Result<Dpu, CallError> {
    let question = GetDpuRequest {};
    client.call(async |operator, request| operator.get_dpu(request).await, question).await
}

fn summary(dpu: &Dpu, wide: bool, now: Timestamp) -> String {
    let connected = dpu.hosts.iter().filter(|host| host.connected).count();
    let mut text = Description::default();
    text.field("DPU", &dpu.name);
    text.field("Version", &dpu.version);
    text.field("Up for", &age(&dpu.started_at, now));
    text.field("Configuration", &configuration(dpu));
    text.field("Attachments", &dpu.attachments.to_string());
    text.field("Hosts", &format!("{connected} of {} connected", dpu.hosts.len()));
    text.list("Problems", &problems(dpu));
    text.block("", &host_table(&dpu.hosts, wide, now));
    text.finish()
}

/// What `sha256sum` prints of the configuration file in force.
fn configuration(dpu: &Dpu) -> String {
    match dpu.configuration_digest.as_str() {
        "" => "unknown: the service is older than this dpuctl".into(),
        digest => format!("sha256 {digest}"),
    }
}

/// Those of the DPU, and that hosts are away.
fn problems(dpu: &Dpu) -> Vec<String> {
    let absent = dpu.hosts.iter().filter(|host| !host.connected);
    dpu.problems.iter().cloned().chain(absent.map(absence)).collect()
}

/// That the host is away, and why, as far as the DPU knows.
fn absence(host: &HostStatus) -> String {
    let why = match host.absence.as_str() {
        "" => "its agent does not run, or can't reach the DPU",
        why => why,
    };
    format!("{} is not connected: {why}", host.name)
}

/// The hosts, with how long they have been as they are.
pub(crate) fn host_table(hosts: &[HostStatus], wide: bool, now: Timestamp) -> String {
    if hosts.is_empty() {
        return String::new();
    }
    let row = |host: &HostStatus| {
        let state = if host.connected { "Connected" } else { "Disconnected" };
        vec![
            host.name.clone(),
            state.into(),
            age(&host.since, now),
            or_dash(&host.agent_version).into(),
            or_dash(&host.boot_id).into(),
        ]
    };
    let headings = ["HOST", "STATE", "SINCE", "AGENT", "BOOT ID"];
    narrow_or_wide(&headings, 4, wide, hosts.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_what_is_wrong() {
        let host = |name: &str, connected, agent_version: &str| HostStatus {
            name: name.into(),
            connected,
            agent_version: agent_version.into(),
            boot_id: "b007".into(),
            since: "2026-03-01T11:00:00Z".into(),
            ..HostStatus::default()
        };
        let absence = "its certificate expired".into();
        let dpu = Dpu {
            name: "dpu-1".into(),
            version: "0.1.0".into(),
            hosts: vec![
                host("node-1", true, "0.1.0"),
                HostStatus { absence, ..host("node-2", false, "") },
                host("node-3", false, ""),
            ],
            problems: vec!["the journal's disk is full".into()],
            attachments: 3,
            started_at: "2026-03-01T10:58:00Z".into(),
            configuration_digest: "ba7816bf".into(),
            ..Dpu::default()
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        assert_eq!(
            summary(&dpu, false, now),
            "\
DPU:           dpu-1
Version:       0.1.0
Up for:        1h2m
Configuration: sha256 ba7816bf
Attachments:   3
Hosts:         1 of 3 connected
Problems:
  the journal's disk is full
  node-2 is not connected: its certificate expired
  node-3 is not connected: its agent does not run, or can't reach the DPU

HOST     STATE          SINCE   AGENT
node-1   Connected      1h0m    0.1.0
node-2   Disconnected   1h0m    -
node-3   Disconnected   1h0m    -
"
        );
    }

    #[test]
    fn a_wide_summary_tells_the_boot() {
        let host = HostStatus { connected: true, boot_id: "b007".into(), ..HostStatus::default() };
        let dpu = Dpu { hosts: vec![host], ..Dpu::default() };
        let boot = |wide| summary(&dpu, wide, Timestamp::UNIX_EPOCH).contains("b007");
        assert!(boot(true) && !boot(false));
    }

    #[test]
    fn a_summary_says_that_nothing_is_wrong() {
        let text = summary(&Dpu::default(), false, Timestamp::UNIX_EPOCH);
        assert!(text.ends_with("Problems:      none\n"), "{text}");
    }
}
