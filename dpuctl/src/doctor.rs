//! `dpuctl doctor`: compares hosts, DPU and records, and repairs what it finds.

use std::time::Duration;

use jiff::Timestamp;
use offload_proto::v1::{
    DiagnosedHost, DiagnosedVf, Diagnosis, Dpu, ExamineRequest, Finding, FindingState, Repair,
    RepairRequest, VfPlace, operator_client::OperatorClient,
};

use crate::{
    arguments::Format,
    client::Client,
    console::Console,
    description::Description,
    error::CallError,
    format::{Audience, print_encoded},
    status::{check_pods, condition_table, dpu},
    table::{narrow_or_wide, table},
    text::{or_dash, phrase, printable, seconds, short_id, state, vf_name},
};

/// Age limit of repairs in the text output, in seconds.
const LATELY_S: u64 = 3600;

/// Repairs if `repair` is set to a reason, which may be empty. The DPU waits up to `host_timeout` for a host each time
/// it asks one: twice to examine, and five times to repair.
pub(crate) async fn doctor(
    client: &mut Client,
    repair: Option<String>,
    verbose: bool,
    host_timeout: Duration,
    format: Format,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let diagnosis = diagnosis(client, repair, host_timeout).await?;
    let dpu = dpu(client).await?;
    if let Audience::People { wide } = print_encoded(&diagnosis, format, console)? {
        let conditions = pod_conditions(&dpu, client.now());
        console.print(&text_of(&diagnosis, &conditions, verbose || wide, wide))?;
    }
    // A false condition that affects pods has its own exit code, even if no finding is left.
    check_pods(&dpu)?;
    match count_left(&diagnosis) {
        0 => Ok(()),
        left => Err(CallError::Findings(left)),
    }
}

fn count_left(diagnosis: &Diagnosis) -> u64 {
    let is_left = |found: &&Finding| found.state() != FindingState::Repaired;
    let shown = diagnosis.findings.iter().filter(is_left).count();
    u64::try_from(shown).unwrap_or(u64::MAX).saturating_add(diagnosis.findings_left_out)
}

pub(crate) async fn diagnosis(
    client: &mut Client,
    repair: Option<String>,
    host_timeout: Duration,
) -> Result<Diagnosis, CallError> {
    const LONGEST_MS: u32 = 60_000;
    let wait_ms = u32::try_from(host_timeout.as_millis()).unwrap_or(LONGEST_MS).min(LONGEST_MS);
    if let Some(reason) = repair {
        return client.call(OperatorClient::repair, RepairRequest { wait_ms, reason }).await;
    }
    client.call(OperatorClient::examine, ExamineRequest { wait_ms }).await
}

/// The conditions that affect pods and are not true. Empty: there are none.
fn pod_conditions(dpu: &Dpu, now: Timestamp) -> String {
    let conditions = dpu.conditions.iter().filter(|condition| condition.affects_pods);
    let conditions: Vec<_> = conditions.cloned().collect();
    if conditions.is_empty() { String::new() } else { condition_table(&conditions, now) }
}

/// Problems come first. What was checked matters only together with them.
fn text_of(diagnosis: &Diagnosis, conditions: &str, verbose: bool, wide: bool) -> String {
    let mut text = Description::default();
    text.field("DPU", &diagnosis.dpu);
    text.field("Checked", &checked(diagnosis, verbose));
    text.block("Conditions", conditions);
    text.block("", &finding_lines(diagnosis, conditions.is_empty()));
    text.block("Repaired in the last hour", &repair_lines(&diagnosis.repairs));
    if verbose {
        text.block("Hosts", &host_table(&diagnosis.hosts));
        text.block("VFs", &vf_table(&diagnosis.vfs, wide));
    }
    text.finish()
}

fn checked(diagnosis: &Diagnosis, verbose: bool) -> String {
    let Diagnosis { hosts, vfs, .. } = diagnosis;
    let examined = hosts.iter().filter(|host| host.problem.is_empty()).count();
    let hint = if verbose { "" } else { "; -v lists them" };
    format!("{examined} of {} hosts, {} VFs{hint}", hosts.len(), vfs.len())
}

fn host_table(hosts: &[DiagnosedHost]) -> String {
    let row = |host: &DiagnosedHost| {
        let state = if host.connected { "Connected" } else { "Disconnected" };
        let not_examined = match host.vfs_left_out {
            0 => or_dash(&host.problem).to_owned(),
            vfs => format!("{vfs} of its VFs (too many to report)"),
        };
        vec![host.name.clone(), state.into(), or_dash(&host.agent_version).into(), not_examined]
    };
    table(&["HOST", "STATE", "AGENT", "NOT EXAMINED"], hosts.iter().map(row))
}

fn vf_table(vfs: &[DiagnosedVf], wide: bool) -> String {
    let headings = [
        "VF",
        "HOST",
        "PLACE",
        "NETDEV",
        "STATE",
        "REPRESENTOR",
        "JOINED",
        "ATTACHMENT",
        "NETNS",
        "PCI ADDRESS",
        "USED BY HOST",
    ];
    let row = |vf: &DiagnosedVf| {
        let found = vf.found.clone().unwrap_or_default();
        let attachment = [&vf.attachment_id, &found.attachment_id];
        let attachment = attachment.into_iter().find(|id| !id.is_empty());
        vec![
            vf_name(found.vf.as_ref()),
            or_dash(&vf.host).into(),
            place(found.place()),
            or_dash(&found.netdev).into(),
            state(vf.state().as_str_name(), "VF_STATE_"),
            or_dash(&vf.representor).into(),
            if vf.joined { "yes" } else { "no" }.into(),
            or_dash(attachment.map_or("", |id| short_id(id))).into(),
            or_dash(&found.netns).into(),
            or_dash(found.vf.as_ref().map_or("", |vf| &vf.device)).into(),
            or_dash(&found.use_by_host).into(),
        ]
    };
    narrow_or_wide(&headings, 8, wide, vfs.iter().map(row))
}

fn place(place: VfPlace) -> String {
    match place {
        VfPlace::Unspecified => "-".into(),
        place => phrase(place.as_str_name(), "VF_PLACE_"),
    }
}

fn repair_lines(repairs: &[Repair]) -> String {
    let lately = repairs.iter().filter(|repair| repair.ago_s < LATELY_S);
    let line = |repair: &Repair| {
        let Repair { ago_s, subject, message, host } = repair;
        let whose = if host.is_empty() { "the DPU" } else { host };
        let subject = short_id(subject);
        printable(&format!("  {} ago, {whose}: {subject}: {message}", seconds(*ago_s))) + "\n"
    };
    lately.map(line).collect()
}

fn finding_lines(diagnosis: &Diagnosis, is_good: bool) -> String {
    let shown: String = diagnosis.findings.iter().map(finding).collect();
    match diagnosis.findings_left_out {
        0 if shown.is_empty() && is_good => "No problems found.\n".into(),
        0 => shown,
        more => format!("{shown}and {more} more (too many to report)\n"),
    }
}

fn finding(found: &Finding) -> String {
    let outcome = match found.state() {
        FindingState::Repaired => "repaired: ",
        FindingState::NotRepaired => "not repaired: ",
        _ => "",
    };
    let Finding { code, subject, message, host, .. } = found;
    let is_of_itself = host.is_empty() || host == subject;
    let host = if is_of_itself { String::new() } else { format!("{host}: ") };
    let mut text = format!("{code}  {outcome}{host}{}: {message}\n", short_id(subject));
    if !found.why.is_empty() {
        text += &format!("    why: {}\n", found.why);
    }
    if found.state() != FindingState::Repaired && !found.advice.is_empty() {
        text += &format!("    do: {}\n", found.advice);
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use offload_proto::{
        FindingCode,
        v1::{Condition, ConditionStatus, ConditionType},
    };

    use super::*;

    #[test]
    fn finding_has_repair_outcome_and_advice() {
        let found = Finding {
            code: "VF_ELSEWHERE".into(),
            subject: "pf0vf1".into(),
            message: "it is away".into(),
            state: FindingState::NotRepaired.into(),
            why: "in use".into(),
            advice: "stop it".into(),
            host: "node-1".into(),
        };
        let shown = "VF_ELSEWHERE  not repaired: node-1: pf0vf1: it is away";
        let expected = format!("{shown}\n    why: in use\n    do: stop it\n");
        assert_eq!(finding(&found), expected);
        let repaired =
            Finding { state: FindingState::Repaired.into(), why: String::new(), ..found };
        assert_eq!(finding(&repaired), "VF_ELSEWHERE  repaired: node-1: pf0vf1: it is away\n");
    }

    #[test]
    fn what_is_about_a_host_names_it_once() {
        let message = "not connected";
        let found = FindingCode::HostNotConnected.of("node-1", message);
        let found = Finding { host: "node-1".into(), advice: String::new(), ..found };
        assert_eq!(finding(&found), format!("HOST_NOT_CONNECTED  node-1: {message}\n"));
    }

    #[test]
    fn findings_precede_what_was_checked() {
        let host = DiagnosedHost { name: "node-1".into(), ..DiagnosedHost::default() };
        let findings = vec![FindingCode::VfDiffers.of("pf0vf1", "its MTU is 1400")];
        let hosts = vec![host];
        let diagnosis = Diagnosis { hosts, findings, ..Diagnosis::default() };
        let brief = text_of(&diagnosis, "", false, false);
        assert!(brief.contains("VF_DIFFERS") && !brief.contains("HOST"), "{brief}");
        let verbose = text_of(&diagnosis, "", true, false);
        let place = |text: &str| verbose.find(text).unwrap();
        assert!(place("VF_DIFFERS") < place("HOST "), "{verbose}");
    }

    #[test]
    fn conditions_that_affect_pods_are_problems() {
        let condition = |affects_pods| Condition {
            r#type: ConditionType::AttachesServed.into(),
            status: ConditionStatus::False.into(),
            reason: "VFS_EXHAUSTED".into(),
            affects_pods,
            ..Condition::default()
        };
        let shown = |affects_pods| {
            let dpu = Dpu { conditions: vec![condition(affects_pods)], ..Dpu::default() };
            let conditions = pod_conditions(&dpu, Timestamp::UNIX_EPOCH);
            text_of(&Diagnosis::default(), &conditions, false, false)
        };
        let (affected, harmless) = (shown(true), shown(false));
        assert!(
            affected.contains("VFS_EXHAUSTED") && !affected.contains("No problems"),
            "{affected}"
        );
        assert!(harmless.contains("No problems found."), "{harmless}");
    }

    #[test]
    fn omitted_findings_are_counted() {
        let findings = vec![FindingCode::VfDiffers.of("pf0vf1", "its MTU is 1400")];
        let diagnosis = Diagnosis { findings, findings_left_out: 7, ..Diagnosis::default() };
        let lines = finding_lines(&diagnosis, true);
        assert!(lines.contains("\nand 7 more"), "{lines}");
        assert_eq!(count_left(&diagnosis), 8);
        let host = DiagnosedHost { vfs_left_out: 9, ..DiagnosedHost::default() };
        assert!(host_table(&[host]).contains("9 of its VFs"));
    }

    #[test]
    fn repairs_of_long_ago_are_left_out() {
        let repair = |ago_s| Repair {
            ago_s,
            subject: "pf0vf1".into(),
            message: "restored".into(),
            host: "node-1".into(),
        };
        let lines = repair_lines(&[repair(LATELY_S), repair(65)]);
        assert_eq!(lines, "  1m5s ago, node-1: pf0vf1: restored\n");
    }

    #[test]
    fn places_read_well() {
        assert_eq!(place(VfPlace::HandedOver), "Handed over");
        assert_eq!(place(VfPlace::Unspecified), "-");
    }
}
