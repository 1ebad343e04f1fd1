//! Failures and how they show: each row of the table in docs/CONDITIONS.md is caused by a test.

use std::{fs, path::Path, time::Duration};

use e2e::{
    FabricKind, FaultAction, Lab, METRICS, Netns, OpenVswitch, Settings, Stopwatch, outside_of,
    run, scenarios::pods::addresses, wait_for,
};
use e2e::{Fault, openmetrics};
use mtls::Role;
use nix::sys::signal::Signal;
use offload_proto::{ConditionReason, v1::ConditionStatus};
use serde_json::Value;

use crate::{
    disks::{attach_until_refused, lab_with_small_disk_of_agent, lab_with_small_disk_of_service},
    events::number_of_events,
    gateway::nft,
};

/// Timeout of a wait. The row's own limit is shorter.
const LIMIT: Duration = Duration::from_secs(75);

/// Placeholder in the table for no indication.
const NONE: &str = "-";

/// How `dpuctl status` shows a failure.
#[derive(Clone, Copy, Debug)]
enum Status {
    /// A condition is false with this reason.
    Turns(ConditionReason),
    /// The service repairs it, so that all conditions are true again.
    Repaired,
    /// `dpuctl` gets no answer and exits with this code.
    Exits(i32),
}
use Status::{Exits, Repaired, Turns};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Breakage {
    what: &'static str,
    status: Status,
    finding: &'static str,
    event: &'static str,
    alert: &'static str,
    /// Limit in seconds until status, event and metric show it.
    within: u64,
}

const fn row(
    what: &'static str,
    status: Status,
    finding: &'static str,
    event: &'static str,
    alert: &'static str,
    within: u64,
) -> Breakage {
    Breakage { what, status, finding, event, alert, within }
}

#[rustfmt::skip]
const BREAKAGES: [Breakage; 30] = [
    row("an uplink has no carrier", Turns(ConditionReason::UplinkWithoutCarrier), "UPLINK_WITHOUT_CARRIER", "ConditionFalse", "UplinkDown", 5),
    row("an uplink is renamed", Turns(ConditionReason::UplinkMissing), "UPLINK_MISSING", "ConditionFalse", "UplinkDown", 5),
    row("a pool has no free VF, and refuses an ADD", Turns(ConditionReason::VfsExhausted), NONE, "AttachRefused", "AttachesRefused", 5),
    row("a subnet has no free address, and refuses an ADD", Turns(ConditionReason::AddressesExhausted), NONE, "AttachRefused", "AttachesRefused", 5),
    row("free representors are in a foreign bridge, and an ADD fails", Turns(ConditionReason::ProgrammingFailed), "REPRESENTOR_TAKEN", "AttachRefused", "AttachesRefused", 5),
    row("the VFs of a pool are in quarantine", Turns(ConditionReason::PoolQuarantined), "VF_QUARANTINED", "VfQuarantined", "ConditionNotTrue", 5),
    row("the disk of `state_dir` is full, and an ADD fails", Turns(ConditionReason::JournalNotWritable), "SERVICE_PROBLEM", "ConditionFalse", "JournalNotWritable", 5),
    row("the disk of the agent's `state_dir` is full, and an ADD fails", Turns(ConditionReason::RecordsUnavailable), NONE, "AttachRefused", "AttachesRefused", 5),
    row("the journal is lost, or older than the pods", Turns(ConditionReason::AttachmentUnrecorded), "ATTACHMENT_UNRECORDED", "ConditionFalse", "PodsNotConnected", 15),
    row("an attachment stays in Releasing", Turns(ConditionReason::ReleaseStuck), "RELEASE_PENDING", "ConditionFalse", "ConditionNotTrue", 40),
    row("a pod lacks the route to its own subnet, with `reconcile_s = 1`", Turns(ConditionReason::PodDiffers), "POD_DIFFERS", "PodDiffers", "PodsNotConnected", 10),
    row("`ovsdb-server` is dead", Turns(ConditionReason::FabricUnavailable), NONE, "FabricFailed", "FabricNotReady", 10),
    row("`ovs-vswitchd` is dead", Turns(ConditionReason::FabricUnavailable), NONE, "FabricFailed", "FabricNotReady", 10),
    row("`ovsdb-server` is suspended", Turns(ConditionReason::FabricUnavailable), NONE, "FabricFailed", "FabricNotReady", 10),
    row("`ovs-vswitchd` is suspended", Turns(ConditionReason::FabricUnavailable), NONE, "FabricFailed", "FabricNotReady", 10),
    row("another program's Linux bridge runs STP", Turns(ConditionReason::FabricIncomplete), "SERVICE_PROBLEM", "FabricFailed", "FabricNotReady", 5),
    row("the port of a pod is isolated in its Linux bridge", Repaired, NONE, "Repaired", NONE, 5),
    row("the port of a pod is set to `no-forward` in Open vSwitch", Repaired, NONE, "Repaired", NONE, 70),
    row("the flows of Open vSwitch are deleted", Repaired, NONE, "Repaired", NONE, 70),
    row("an uplink is switched off", Repaired, NONE, "Repaired", NONE, 5),
    row("nftables is flushed", Repaired, NONE, "Repaired", NONE, 5),
    row("the link of a gateway is deleted", Repaired, NONE, "Repaired", NONE, 5),
    row("the bridge is deleted", Repaired, NONE, "Repaired", NONE, 10),
    row("a changed configuration file has a mistake", Turns(ConditionReason::ConfigurationRefused), "SERVICE_PROBLEM", "ConfigurationRefused", "ConditionNotTrue", 10),
    row("a changed configuration file of an agent has a mistake", Turns(ConditionReason::HostConfigurationRefused), "SERVICE_PROBLEM", "ConfigurationRefused", "ConditionNotTrue", 10),
    row("the clock is an hour slow, and the certificate is replaced", Turns(ConditionReason::CertificateRefused), "SERVICE_PROBLEM", "CertificateRefused", "ConditionNotTrue", 15),
    row("the certificate of the DPU expires", Exits(4), NONE, "CertificateExpired", "CertificateNotValid", 5),
    row("the management link is cut", Turns(ConditionReason::HostNotConnected), "HOST_NOT_CONNECTED", "HostDisconnected", "HostNotConnected", 20),
    row("the agent is suspended", Turns(ConditionReason::HostNotConnected), "HOST_NOT_CONNECTED", "HostDisconnected", "HostNotConnected", 20),
    row("`dpu-service` is killed", Exits(3), NONE, "ServiceStopUnclean", "DpuAway", 5),
];

impl Breakage {
    /// What shows it, as the cells of the documentation have it.
    fn shown(&self) -> String {
        let status = match self.status {
            Turns(reason) => format!("`{reason}`"),
            Repaired => "repaired".to_owned(),
            Exits(code) => format!("`dpuctl` exits with {code}"),
        };
        let finding = match self.finding {
            NONE => NONE.to_owned(),
            code => format!("`{code}`"),
        };
        format!("{status} | {finding} | {} s", self.within)
    }

    /// What a scrape shows.
    fn metric(&self) -> &'static str {
        match self.status {
            Turns(_) | Exits(4) => "dpu_offload_service_condition",
            Repaired => "dpu_offload_service_events_total",
            Exits(_) => "dpu_offload_agent_session_connected",
        }
    }
}

/// A failure that is about to happen.
struct Watched {
    row: Breakage,
    events: u64,
    clock: Stopwatch,
}

impl Watched {
    fn new(lab: &Lab, what: &str) -> Self {
        let row = *BREAKAGES.iter().find(|row| row.what == what).expect("a row");
        Self { row, events: number_of_events(lab, row.event), clock: Stopwatch::start() }
    }

    /// Waits until status, event and metric show it in time, and then asks the doctor.
    #[track_caller]
    fn is_shown(&self, lab: &Lab) {
        let Breakage { what, event, finding, .. } = self.row;
        match self.row.status {
            Turns(reason) => self.is_condition(lab, reason),
            Repaired => self.is_counted(lab),
            Exits(_) => panic!("{what}: no one answers"),
        }
        wait_for(event, LIMIT, || (number_of_events(lab, event) > self.events).then_some(()));
        self.is_in_time();
        println!("doctor: {:?}", findings(lab));
        if finding != NONE {
            let is_found = || findings(lab).iter().any(|code| code == finding).then_some(());
            wait_for(finding, LIMIT, is_found);
        }
    }

    #[track_caller]
    fn is_condition(&self, lab: &Lab, reason: ConditionReason) {
        let shown = wait_for(reason.as_str(), LIMIT, || lab.operator().fault(reason.as_str()));
        let object = shown["object"].as_str().unwrap();
        let kind = reason.condition().name();
        let is_scraped = || condition(lab, kind, object, reason.status()).then_some(());
        wait_for("the metric", LIMIT, is_scraped);
        assert_eq!(shown["affectsPods"], reason.affects_pods());
        let exit = lab.operator().dpuctl(&["status"]).status.code();
        let expected = if pods_are_affected(lab) { 5 } else { 0 };
        assert_eq!(exit, Some(expected), "{}", self.row.what);
    }

    #[track_caller]
    fn is_counted(&self, lab: &Lab) {
        wait_for("the metric", LIMIT, || (counted(lab, self.row.event) > 0.0).then_some(()));
    }

    #[track_caller]
    fn is_in_time(&self) {
        let (took, limit) = (self.clock.unstalled(), Duration::from_secs(self.row.within));
        assert!(took <= limit, "{}: {took:?}", self.row.what);
        println!("{}: {took:?} of {limit:?}", self.row.what);
    }
}

fn pods_are_affected(lab: &Lab) -> bool {
    let faults = lab.operator().faults();
    faults
        .iter()
        .any(|fault| fault["affectsPods"] == true && fault["status"] == "CONDITION_STATUS_FALSE")
}

/// Codes of the doctor's findings.
fn findings(lab: &Lab) -> Vec<String> {
    let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let found = diagnosis["findings"].as_array().into_iter().flatten();
    found.map(|found| found["code"].as_str().unwrap().to_owned()).collect()
}

fn value(lab: &Lab, name: &str, suffix: &str, labels: &[(&str, &str)]) -> Option<f64> {
    openmetrics::value(&openmetrics::scrape(&lab.card.dpu)?, name, suffix, labels)
}

/// Whether the condition's metric has this status.
fn condition(lab: &Lab, kind: &str, object: &str, status: ConditionStatus) -> bool {
    let status = status.name().to_lowercase();
    let labels = [("type", kind), ("object", object), ("status", status.as_str())];
    value(lab, "dpu_offload_service_condition", "", &labels) == Some(1.0)
}

/// Number of events of this kind in the metric.
fn counted(lab: &Lab, kind: &str) -> f64 {
    value(lab, "dpu_offload_service_events", "_total", &[("kind", kind)]).unwrap_or_default()
}

/// A lab with the uplink `uplink`, and the namespace of its other end.
fn lab_with_uplink() -> (Lab, Netns) {
    let fabric = "uplinks = [\"uplink\"]".to_owned();
    let lab = Lab::start(&Settings { fabric, ..Settings::default() });
    let outside = Netns::new("outside");
    let peer = ["peer", "name", "eth0", "netns", outside.name()];
    lab.card.dpu.ip(&[&["link", "add", "uplink", "type", "veth"][..], &peer].concat());
    outside.ip(&["link", "set", "eth0", "up"]);
    wait_for("all conditions to be true", LIMIT, || {
        lab.operator().faults().is_empty().then_some(())
    });
    (lab, outside)
}

/// A pod of `blue`.
fn pod(lab: &Lab) -> Netns {
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    pod
}

/// An attach of another pod that must fail.
fn refused(lab: &Lab, code: u64) {
    lab.add("blue", &Netns::new("other"), "eth0").fails(code, &[]);
}

mod uplinks {
    use super::*;

    #[test]
    fn uplink_switched_off_is_repaired() {
        let (lab, _outside) = lab_with_uplink();
        let watched = Watched::new(&lab, "an uplink is switched off");
        lab.card.dpu.ip(&["link", "set", "uplink", "down"]);
        watched.is_shown(&lab);
    }

    #[test]
    fn uplink_without_carrier_is_shown() {
        let (lab, outside) = lab_with_uplink();
        let watched = Watched::new(&lab, "an uplink has no carrier");
        outside.ip(&["link", "set", "eth0", "down"]);
        watched.is_shown(&lab);
    }

    #[test]
    fn renamed_uplink_is_shown() {
        let (lab, _outside) = lab_with_uplink();
        let watched = Watched::new(&lab, "an uplink is renamed");
        lab.card.dpu.ip(&["link", "set", "uplink", "down"]);
        lab.card.dpu.ip(&["link", "set", "uplink", "name", "renamed", "up"]);
        watched.is_shown(&lab);
    }
}

mod attaches {
    use super::*;

    #[test]
    fn pool_without_free_vfs_is_shown() {
        let lab = Lab::start(&Settings::with_vfs(1));
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, "a pool has no free VF, and refuses an ADD");
        refused(&lab, 102);
        watched.is_shown(&lab);
    }

    #[test]
    fn subnet_without_free_addresses_is_shown() {
        let networks = "[[network]]\nname = \"blue\"\ndefault = true\n\
            subnets = [{ cidr = \"10.1.0.0/24\", ranges = [{ start = \"10.1.0.2\", end = \"10.1.0.2\" }] }]\n";
        let lab = Lab::start(&Settings { networks: networks.into(), ..Settings::default() });
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, "a subnet has no free address, and refuses an ADD");
        refused(&lab, 103);
        watched.is_shown(&lab);
    }

    #[test]
    fn representors_in_a_foreign_bridge_are_shown() {
        let settings = Settings { kind_of_fabric: FabricKind::Bridge, ..Settings::with_vfs(1) };
        let lab = Lab::start(&settings);
        let what = "free representors are in a foreign bridge, and an ADD fails";
        let watched = Watched::new(&lab, what);
        let dpu = &lab.card.dpu;
        dpu.ip(&["link", "add", "br-foreign", "type", "bridge"]);
        dpu.ip(&["link", "set", "pf0vf0", "master", "br-foreign"]);
        refused(&lab, 115);
        watched.is_shown(&lab);
    }

    #[test]
    fn quarantined_vfs_are_shown() {
        let lab = Lab::start(&Settings { quarantine_after: 1, ..Settings::with_vfs(1) });
        let watched = Watched::new(&lab, "the VFs of a pool are in quarantine");
        lab.arm("dpu-service", FaultAction::Fail, "fabric-join");
        refused(&lab, 115);
        watched.is_shown(&lab);
    }
}

mod records {
    use super::*;

    #[test]
    fn full_disk_is_shown() {
        let (mut lab, disk) = lab_with_small_disk_of_service();
        let watched = Watched::new(&lab, "the disk of `state_dir` is full, and an ADD fails");
        disk.fill();
        attach_until_refused(&lab, 114);
        watched.is_shown(&lab);
        disk.empty();
        lab.service.stop();
    }

    #[test]
    fn full_disk_of_the_agent_is_shown() {
        let (mut lab, disk) = lab_with_small_disk_of_agent();
        let what = "the disk of the agent's `state_dir` is full, and an ADD fails";
        let watched = Watched::new(&lab, what);
        disk.fill();
        attach_until_refused(&lab, 131);
        watched.is_shown(&lab);
        disk.empty();
        lab.agent.stop();
    }

    #[test]
    fn lost_journal_is_shown() {
        let mut lab = Lab::start(&Settings::default());
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, "the journal is lost, or older than the pods");
        lab.lose_journal();
        lab.wait_until_good();
        watched.is_shown(&lab);
    }

    #[test]
    fn attachment_that_stays_in_releasing_is_shown() {
        let lab = Lab::start(&Settings::default());
        let pod = pod(&lab);
        let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
        let watched = Watched::new(&lab, "an attachment stays in Releasing");
        keep_in_pod(&pod);
        let _ = lab.operator().output(&["release", &id, "--reason", "a test", "--yes"]);
        watched.is_shown(&lab);
    }

    /// Hides the pod's VF where the agent does not find it.
    fn keep_in_pod(pod: &Netns) {
        let hidden = Netns::new("hidden");
        pod.ip(&["link", "set", "eth0", "netns", hidden.name()]);
        std::mem::forget(hidden);
    }
}

mod pods {
    use super::*;

    #[test]
    fn pod_without_its_subnets_route_is_shown() {
        let settings = Settings { timeouts: "reconcile_s = 1".into(), ..Settings::default() };
        let lab = Lab::start(&settings);
        let pod = pod(&lab);
        let what = "a pod lacks the route to its own subnet, with `reconcile_s = 1`";
        let watched = Watched::new(&lab, what);
        pod.ip(&["route", "del", "10.1.0.0/16", "dev", "eth0"]);
        pod.ip(&["route", "add", "unreachable", "10.1.0.0/16"]);
        watched.is_shown(&lab);
    }
}

mod fabric {
    use super::*;

    fn lab_on(kind_of_fabric: FabricKind) -> Lab {
        Lab::start(&Settings { kind_of_fabric, ..Settings::default() })
    }

    #[test]
    fn dead_ovsdb_server_is_shown() {
        let mut lab = lab_on(FabricKind::OpenVswitch);
        let watched = Watched::new(&lab, "`ovsdb-server` is dead");
        lab.vswitch.as_mut().unwrap().kill_database();
        watched.is_shown(&lab);
    }

    #[test]
    fn dead_daemon_of_open_vswitch_is_shown() {
        let mut lab = lab_on(FabricKind::OpenVswitch);
        let watched = Watched::new(&lab, "`ovs-vswitchd` is dead");
        lab.vswitch.as_mut().unwrap().kill_daemon();
        watched.is_shown(&lab);
        lab.vswitch.as_mut().unwrap().start_daemon();
        all_is_well(&lab);
    }

    /// Suspends a daemon of Open vSwitch by `signal` until the row's failure shows.
    fn suspended_daemon_is_shown(row: &str, signal: impl Fn(&OpenVswitch, &str)) {
        let lab = lab_on(FabricKind::OpenVswitch);
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, row);
        let vswitch = lab.vswitch.as_ref().unwrap();
        signal(vswitch, "STOP");
        watched.is_shown(&lab);
        signal(vswitch, "CONT");
        all_is_well(&lab);
    }

    #[test]
    fn suspended_ovsdb_server_is_shown() {
        suspended_daemon_is_shown("`ovsdb-server` is suspended", OpenVswitch::signal_database);
    }

    #[test]
    fn suspended_daemon_of_open_vswitch_is_shown() {
        suspended_daemon_is_shown("`ovs-vswitchd` is suspended", OpenVswitch::signal_daemon);
    }

    #[test]
    fn stp_of_a_foreign_bridge_is_shown() {
        let lab = lab_on(FabricKind::Bridge);
        // The service recognises it by its alias.
        lab.card.dpu.ip(&["link", "set", "dev", "br-offload", "alias", ""]);
        let watched = Watched::new(&lab, "another program's Linux bridge runs STP");
        set_stp(&lab, "1");
        watched.is_shown(&lab);
        set_stp(&lab, "0");
        all_is_well(&lab);
    }

    fn set_stp(lab: &Lab, state: &str) {
        let stp = ["type", "bridge", "stp_state", state];
        lab.card.dpu.ip(&[&["link", "set", "dev", "br-offload"][..], &stp].concat());
    }

    #[test]
    fn isolated_port_is_repaired() {
        let lab = lab_on(FabricKind::Bridge);
        let _pod = pod(&lab);
        let port = port_of_the_pod(&lab);
        let watched = Watched::new(&lab, "the port of a pod is isolated in its Linux bridge");
        let mut bridge = lab.card.dpu.command("bridge");
        let isolated = run(bridge.args(["link", "set", "dev", &port, "isolated", "on"]));
        assert!(isolated.status.success(), "{isolated:?}");
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    #[test]
    fn port_set_not_to_forward_is_repaired() {
        let lab = lab_on(FabricKind::OpenVswitch);
        let _pod = pod(&lab);
        let port = port_of_the_pod(&lab);
        let what = "the port of a pod is set to `no-forward` in Open vSwitch";
        let watched = Watched::new(&lab, what);
        let vswitch = lab.vswitch.as_ref().unwrap();
        let _ = vswitch.ofctl(&["mod-port"], "br-offload", &[&port, "no-forward"]);
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    /// Representor of the only attachment.
    fn port_of_the_pod(lab: &Lab) -> String {
        let vf = &lab.operator().get("attachments")[0]["vf"]["vf"];
        format!("pf0vf{vf}")
    }

    #[test]
    fn deleted_flows_are_repaired() {
        let lab = lab_on(FabricKind::OpenVswitch);
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, "the flows of Open vSwitch are deleted");
        let _ = lab.vswitch.as_ref().unwrap().ofctl(&["del-flows"], "br-offload", &[]);
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    #[test]
    fn deleted_bridge_is_repaired() {
        let lab = lab_on(FabricKind::Bridge);
        let (one, other) = (pod(&lab), Netns::new("other"));
        let held = addresses(&lab.add("blue", &other, "eth0").result());
        let watched = Watched::new(&lab, "the bridge is deleted");
        lab.card.dpu.ip(&["link", "delete", "br-offload"]);
        watched.is_shown(&lab);
        let reaches = || held.iter().all(|address| one.pings(address)).then_some(());
        wait_for("the pods' traffic", LIMIT, reaches);
        all_is_well(&lab);
    }

    #[test]
    fn deleted_bridge_without_ports_is_repaired() {
        let lab = lab_on(FabricKind::Bridge);
        all_is_well(&lab);
        let watched = Watched::new(&lab, "the bridge is deleted");
        lab.card.dpu.ip(&["link", "delete", "br-offload"]);
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    #[test]
    fn flushed_nftables_is_repaired() {
        let lab = lab_on(FabricKind::Bridge);
        let _pod = pod(&lab);
        let watched = Watched::new(&lab, "nftables is flushed");
        nft(&lab.card.dpu, &["flush", "ruleset"]);
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    #[test]
    fn deleted_link_of_a_gateway_is_repaired() {
        let lab = Lab::start(&Settings::with_gateways());
        let _outside = outside_of(&lab);
        all_is_well(&lab);
        let watched = Watched::new(&lab, "the link of a gateway is deleted");
        lab.card.dpu.ip(&["link", "delete", "gw-nated"]);
        watched.is_shown(&lab);
        all_is_well(&lab);
    }

    fn all_is_well(lab: &Lab) {
        wait_for("all conditions to be true", LIMIT, || {
            lab.operator().faults().is_empty().then_some(())
        });
    }
}

mod service {
    use super::*;

    #[test]
    fn bad_reload_is_shown() {
        let lab = Lab::start(&Settings::default());
        let watched = Watched::new(&lab, "a changed configuration file has a mistake");
        let path = lab.path().join("dpu-service.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\nnonsense = 1\n")).unwrap();
        watched.is_shown(&lab);
    }

    #[test]
    fn bad_reload_of_an_agent_is_shown() {
        let lab = Lab::start(&Settings::default());
        let what = "a changed configuration file of an agent has a mistake";
        let watched = Watched::new(&lab, what);
        let path = lab.path().join("host-shim.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n[nonsense]\n")).unwrap();
        lab.agent.signal(Signal::SIGHUP);
        watched.is_shown(&lab);
    }

    #[test]
    fn certificate_of_the_future_is_shown() {
        let lab = Lab::start(&Settings::default());
        let what = "the clock is an hour slow, and the certificate is replaced";
        let watched = Watched::new(&lab, what);
        lab.pki.postdate(Role::Dpu, "dpu-1");
        watched.is_shown(&lab);
    }

    /// No `dpuctl` accepts the certificate, so only metrics, log and a later event can show it.
    #[test]
    fn expired_certificate_is_shown() {
        let lab = Lab::start(&Settings::default());
        let what = "the certificate of the DPU expires";
        lab.pki.issue_for(Duration::from_secs(15), Role::Dpu, "dpu-1");
        let expiring = ConditionReason::CertificateExpiring.as_str();
        wait_for("the new certificate", LIMIT, || lab.operator().fault(expiring));
        let before = number_of_events(&lab, "CertificateExpired");
        let ends = || (status_exit(&lab) == Some(4)).then_some(());
        wait_for("the end of the certificate", LIMIT, ends);
        let row = *BREAKAGES.iter().find(|row| row.what == what).expect("a row");
        let watched = Watched { row, events: before, clock: Stopwatch::start() };
        let is_scraped =
            || condition(&lab, "CertificatesValid", "dpu", ConditionStatus::False).then_some(());
        wait_for("the metric", LIMIT, is_scraped);
        wait_for("the event in the log", LIMIT, || {
            lab.service.log().contains(row.event).then_some(())
        });
        watched.is_in_time();
        lab.pki.issue("dpu", "dpu-1");
        wait_for("a valid certificate", LIMIT, || (status_exit(&lab) == Some(0)).then_some(()));
        assert!(number_of_events(&lab, row.event) > before);
    }

    #[test]
    fn killed_service_is_shown() {
        let settings = Settings { has_metrics: true, ..Settings::default() };
        let mut lab = Lab::start(&settings);
        wait_for("events in their file", LIMIT, || {
            let file = fs::read_to_string(lab.path().join("service/events.jsonl")).ok()?;
            file.contains("HostConnected").then_some(())
        });
        let watched = Watched::new(&lab, "`dpu-service` is killed");
        lab.service.crash();
        wait_for("the exit code", LIMIT, || (status_exit(&lab) == Some(3)).then_some(()));
        let is_away = || (session(&lab) == Some(0.0)).then_some(());
        wait_for("the metric of the agent", LIMIT, is_away);
        watched.is_in_time();
        lab.start_service();
        lab.wait_until_good();
        assert!(number_of_events(&lab, watched.row.event) > watched.events);
    }

    fn status_exit(lab: &Lab) -> Option<i32> {
        let mut command = lab.operator().command();
        run(command.args(["status", "--timeout", "2"])).status.code()
    }

    fn session(lab: &Lab) -> Option<f64> {
        let get = "GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n";
        let page = openmetrics::ask_at(&lab.card.host, METRICS, get).ok()?;
        let line =
            page.lines().find(|line| line.starts_with("dpu_offload_agent_session_connected"));
        line?.rsplit_once(' ')?.1.parse().ok()
    }
}

mod hosts {
    use super::*;

    #[test]
    fn cut_management_link_is_shown() {
        let lab = Lab::start(&Settings { proxied: true, ..Settings::default() });
        let watched = Watched::new(&lab, "the management link is cut");
        lab.proxy().strike(Fault::Hold);
        watched.is_shown(&lab);
        lab.proxy().heal();
    }

    #[test]
    fn suspended_agent_is_shown() {
        let lab = Lab::start(&Settings::default());
        let watched = Watched::new(&lab, "the agent is suspended");
        lab.agent.signal(Signal::SIGSTOP);
        watched.is_shown(&lab);
        lab.agent.signal(Signal::SIGCONT);
    }
}

mod table {
    use super::*;

    fn read(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        fs::read_to_string(root.join(path)).unwrap()
    }

    /// The row of breakages that are shown alike.
    fn line(alike: &[Breakage]) -> String {
        let what: Vec<_> = alike.iter().map(|row| row.what).collect();
        format!("| {} | {} |", what.join("; "), alike[0].shown())
    }

    #[test]
    fn documentation_has_each_breakage_as_tested() {
        let page = read("docs/CONDITIONS.md");
        let section = page.split("\n## What shows a breakage\n").nth(1).expect("the section");
        let section = section.split("\n## ").next().unwrap();
        let rows: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        let expected: Vec<_> =
            BREAKAGES.chunk_by(|one, next| one.shown() == next.shown()).map(line).collect();
        assert_eq!(rows, expected, "the table as it must be:\n{}", expected.join("\n"));
    }

    /// Finds the alert whose expression selects the row's metric.
    #[test]
    fn each_alert_watches_what_its_row_says() {
        let rules = read("configs/prometheus/dpu-offload.rules.yml");
        let rules: Value = serde_norway::from_str(&rules).unwrap();
        let groups = rules["groups"].as_array().unwrap().iter();
        let all: Vec<_> = groups.flat_map(|group| group["rules"].as_array().unwrap()).collect();
        for row in BREAKAGES.iter().filter(|row| row.alert != NONE) {
            let rule = all.iter().find(|rule| rule["alert"] == row.alert).expect(row.alert);
            let expression = rule["expr"].as_str().unwrap();
            let selects = |part: &str| expression.contains(part);
            assert!(selects(row.metric()), "{}: {expression}", row.what);
            if let Turns(reason) = row.status {
                let is_of_type = selects(&format!("type=\"{}\"", reason.condition().name()));
                assert_eq!(is_of_type, reason.affects_pods(), "{}: {expression}", row.what);
            }
        }
    }
}
