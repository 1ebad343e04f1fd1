//! An Open vSwitch that is slow, answers malformed messages, cannot write, or is full of other programs' ports.
//! Checked with `ovs-vsctl` and `ovs-ofctl`.

use std::{fs, sync::Arc, time::Duration};

use bootstrap::Chain;
use drivers::{
    driver::{Fault, Refused},
    fabric::{
        BridgeSettings,
        ovs::{OvsFabric, OvsSettings, Vswitch},
    },
};
use ovsdb::{Database, Datum, Operation};
use parking_lot::Mutex;
use tempfile::TempDir;
use test_clock::{Stopwatch, wait_until};
use tokio::sync::watch;

use crate::{
    relay::{Answers, Relay},
    veth_dpu::{BRIDGE, Dpu, On, OpenVswitch, Pod, at_once},
};

/// The fabric's timeout of an answer.
const ANSWER: Duration = Duration::from_secs(3);

/// A DPU whose fabric reaches Open vSwitch through two relays.
struct Relayed {
    dpu: Dpu,
    database: Relay,
    bridge: Relay,
    _folder: TempDir,
}

impl Relayed {
    fn start() -> Self {
        let mut dpu = Dpu::on(On::OpenVswitch, &[]);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let database = Relay::start(&path("db.sock"), dpu.vswitch().socket());
        let management = format!("{BRIDGE}.mgmt");
        let bridge = Relay::start(&path(&management), dpu.vswitch().management(BRIDGE));
        dpu.fabric = Arc::new(open(&dpu, path("db.sock")));
        dpu.prepare().unwrap();
        Self { dpu, database, bridge, _folder: folder }
    }

    fn plug(&self, numbers: std::ops::Range<u16>) -> Vec<Pod> {
        numbers.map(|number| self.dpu.plug(number)).collect()
    }

    /// Joins all of them at once, and returns the refusals.
    fn refusals(&self, pods: &[Pod]) -> Vec<Refused> {
        let refusals = Mutex::new(Vec::new());
        at_once(pods, |pod| {
            let joined = self.dpu.fabric.join(&self.dpu.representor(pod), &pod.settings);
            refusals.lock().extend(joined.err());
        });
        refusals.into_inner()
    }
}

fn open(dpu: &Dpu, database: std::path::PathBuf) -> OvsFabric {
    let bridge = BridgeSettings { name: BRIDGE.into(), ..BridgeSettings::default() };
    let datapath = serde_json::from_value(OpenVswitch::datapath().into()).unwrap();
    let settings = OvsSettings { bridge, datapath };
    let database = Arc::new(Vswitch::at(database));
    dpu.netns.netns.run(|| OvsFabric::open(&settings, &database)).unwrap().unwrap()
}

/// The refusal with its cause. It must not blame a port.
fn reported(refused: &Refused) -> String {
    assert_ne!(refused.fault(), Fault::Port, "{refused}");
    Chain(refused).to_string()
}

/// Checks that exactly these pods have ports, and flows under their ports' numbers.
fn assert_ports(dpu: &mut Dpu, pods: &[Pod]) {
    let ports = dpu.vswitch().vsctl(&format!("list-ports {BRIDGE}"));
    let mut expected: Vec<_> = pods.iter().map(|pod| pod.settings.vf.to_string()).collect();
    expected.sort();
    assert_eq!(ports.lines().collect::<Vec<_>>(), expected);
    let shown = dpu.vswitch().flows(BRIDGE);
    for name in expected {
        let number = dpu.vswitch().vsctl(&format!("get interface {name} ofport"));
        let port = format!("in_port={},", number.trim());
        assert!(shown.contains(&port), "{name} has no flows in {shown}");
    }
    let cookies: std::collections::BTreeSet<_> =
        shown.lines().filter_map(|line| line.split(',').next()).collect();
    assert_eq!(cookies.len(), pods.len() + 1, "stale flows: {shown}");
}

#[test]
fn silent_database_delays_calls_briefly() {
    let mut at = Relayed::start();
    let mut pods = at.plug(0..16);
    let others = pods.split_off(2);
    pods.iter().for_each(|pod| at.dpu.program(pod));
    at.database.set(Answers::HeldBack);
    let begun = Stopwatch::start();
    let refusals = at.refusals(&others);
    assert!(begun.unstalled() < ANSWER * 2, "{:?}", begun.unstalled());
    assert_eq!(refusals.len(), others.len());
    let expected = "ovsdb-server";
    let refusals: Vec<_> = refusals.iter().map(reported).collect();
    assert!(refusals.iter().all(|it| it.contains(expected)), "{refusals:?}");
    assert!(refusals.iter().all(|it| it.contains("3000 ms")), "{refusals:?}");

    // The next calls do not wait as long as the first one.
    let begun = Stopwatch::start();
    for pod in &others {
        assert!(at.dpu.fabric.join(&at.dpu.representor(pod), &pod.settings).is_err());
    }
    assert!(begun.unstalled() < ANSWER, "{:?}", begun.unstalled());
    pods[0].reaches("10.9.0.2");

    // All calls wait together for a connection in progress.
    at.database.set(Answers::Halved);
    wait_until("the connection ends", || at.dpu.fabric.members().is_err());
    at.database.set(Answers::HeldBack);
    let begun = Stopwatch::start();
    let refusals = at.refusals(&others);
    assert!(begun.unstalled() < ANSWER * 2, "{:?}", begun.unstalled());
    assert_eq!(refusals.len(), others.len());
    refusals.iter().for_each(|refused| {
        let reported = reported(refused);
        assert!(reported.contains("Open vSwitch's database"), "{reported}");
    });

    at.database.set(Answers::Whole);
    pods.extend(others);
    at_once(&pods, |pod| at.dpu.program(pod));
    pods[0].reaches("10.9.0.16");
    assert_ports(&mut at.dpu, &pods);
}

#[test]
fn malformed_database_answer_is_reported() {
    const WRONG_ID: &[u8] = br#"{"id":1000000,"result":[],"error":null}"#;
    const ROWS: &[u8] = br#"{"method":"update","id":null,"params":["replica",{"Port":7}]}"#;
    let mut at = Relayed::start();
    let pods = at.plug(0..7);
    pods.iter().take(2).for_each(|pod| at.dpu.program(pod));
    for (pod, (answers, expected)) in pods[2..].iter().zip([
        (Answers::Replaced(b"HTTP/1.1 400 Bad Request\r\n"), "the server sent an invalid message"),
        (Answers::Halved, "has ended"),
        (Answers::Replaced(ROWS), "sent an invalid table update"),
        (Answers::Replaced(WRONG_ID), "answered a call that was never made"),
        (Answers::Endless(b"[\"", b'x'), ""),
    ]) {
        at.database.set(answers.clone());
        let begun = Stopwatch::start();
        let joined = at.dpu.fabric.join(&at.dpu.representor(pod), &pod.settings);
        let refused = reported(&joined.unwrap_err());
        assert!(refused.contains(expected), "{answers:?}: {refused}");
        assert!(begun.unstalled() < ANSWER * 2, "{answers:?}: {:?}", begun.unstalled());
        pods[0].reaches("10.9.0.2");

        at.database.set(Answers::Whole);
        wait_until("it is connected to again", || {
            at.dpu.fabric.join(&at.dpu.representor(pod), &pod.settings).is_ok()
        });
        at.dpu.program(pod);
        pod.reaches("10.9.0.1");
    }
    at_once(&pods, |pod| at.dpu.program(pod));
    assert_ports(&mut at.dpu, &pods);
}

#[test]
fn slow_or_malformed_switch_is_reported() {
    let mut at = Relayed::start();
    let pods = at.plug(0..2);
    pods.iter().for_each(|pod| at.dpu.program(pod));
    let looks = |at: &Relayed| {
        let port = at.dpu.representor(&pods[0]);
        at.dpu.fabric.guard(&port, &pods[0].settings)
    };
    for (answers, expected) in [
        (Answers::HeldBack, "3000 ms"),
        (Answers::Halved, "connection"),
        (Answers::Replaced(&[4, 0, 0, 7, 0, 0, 0, 1]), "shorter"),
        (Answers::Replaced(&[1, 0, 0, 8, 0, 0, 0, 1]), "`protocols`"),
    ] {
        at.bridge.set(answers.clone());
        let begun = Stopwatch::start();
        let refused = reported(&looks(&at).unwrap_err());
        assert!(refused.contains(expected), "{answers:?}: {refused}");
        let port = at.dpu.representor(&pods[1]);
        assert!(at.dpu.fabric.set_guard(&port, &pods[1].settings).is_err(), "{answers:?}");
        assert!(begun.unstalled() < ANSWER * 2, "{answers:?}: {:?}", begun.unstalled());
        pods[0].reaches("10.9.0.2");

        at.bridge.set(Answers::Whole);
        wait_until("it is connected to again", || looks(&at).is_ok_and(|found| found.in_place));
    }
    assert_ports(&mut at.dpu, &pods);
}

#[test]
fn full_database_disk_refuses_joins() {
    let mut dpu = Dpu::on_small_disk();
    dpu.prepare().unwrap();
    let mut pods: Vec<_> = (0..3).map(|number| dpu.plug(number)).collect();
    pods.iter().take(2).for_each(|pod| dpu.program(pod));
    dpu.vswitch().fill_disk();
    let representor = |number: usize| dpu.representor(&pods[number]);
    let begun = Stopwatch::start();
    let joined = dpu.fabric.join(&representor(2), &pods[2].settings);
    let left = dpu.fabric.leave(&representor(0));
    for refused in [joined.unwrap_err(), left.unwrap_err()] {
        let refused = reported(&refused);
        assert!(refused.contains("No space left on device"), "{refused}");
    }
    dpu.prepare().unwrap();
    assert!(begun.unstalled() < ANSWER, "{:?}", begun.unstalled());
    pods[0].reaches("10.9.0.2");
    let guarded = dpu.fabric.guard(&representor(0), &pods[0].settings).unwrap();
    assert!(guarded.in_place, "it has not left");

    // The daemon carries out what was written before the disk was full, and cannot report it.
    dpu.vswitch().empty_disk();
    dpu.vswitch().signal_daemon("STOP");
    let port = dpu.representor(&pods[2]);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| dpu.fabric.join(&port, &pods[2].settings));
        let vswitch = dpu.vswitch.as_ref().unwrap();
        let is_written = || vswitch.vsctl(&format!("list-ports {BRIDGE}")).contains("pf0vf2");
        wait_until("the port is written", is_written);
        vswitch.fill_disk();
        vswitch.signal_daemon("CONT");
        let refused = reported(&joining.join().unwrap().unwrap_err());
        assert!(refused.contains("ovs-vswitchd"), "{refused}");
    });
    dpu.vswitch().empty_disk();
    // Until the daemon has reported, each call waits 50 ms for it.
    wait_until("the daemon tells what it has done", || {
        dpu.fabric.join(&port, &pods[2].settings).is_ok()
    });
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[2].reaches("10.9.0.1");
    dpu.fabric.leave(&dpu.representor(&pods[0])).unwrap();
    pods.remove(0);
    assert_ports(&mut dpu, &pods);
}

/// Deletes the fabric's bridge, and waits until the fabric notices. Returns the fabric's reports of changes.
fn delete_bridge(dpu: &mut Dpu) -> watch::Receiver<u64> {
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    changes.mark_unchanged();
    dpu.vswitch().vsctl(&format!("del-br {BRIDGE}"));
    wait_until("the fabric notices", || changes.has_changed().unwrap());
    changes
}

#[test]
fn deleted_own_bridge_is_created_again() {
    let mut dpu = Dpu::on(On::OpenVswitch, &[]);
    dpu.prepare().unwrap();
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    delete_bridge(&mut dpu);
    assert_eq!(dpu.fabric.members().unwrap().len(), 0);
    dpu.prepare().unwrap();
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[0].reaches("10.9.0.2");
    assert_ports(&mut dpu, &pods);
}

#[test]
fn deleted_foreign_bridge_is_not_created() {
    let mut dpu = Dpu::on(On::OpenVswitch, &[]);
    let datapath = OpenVswitch::datapath();
    let make = format!("add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type={datapath}");
    dpu.vswitch().vsctl(&make);
    dpu.prepare().unwrap();
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    let mut changes = delete_bridge(&mut dpu);

    let refused = reported(&dpu.prepare().unwrap_err());
    let expected = format!("bridge {BRIDGE} is gone from Open vSwitch");
    assert!(refused.contains(&expected), "{refused}");
    let port = dpu.representor(&pods[0]);
    let refused = reported(&dpu.fabric.join(&port, &pods[0].settings).unwrap_err());
    assert!(refused.ends_with(&format!("no bridge {BRIDGE}")), "{refused}");
    dpu.fabric.leave(&dpu.representor(&pods[1])).unwrap();
    assert_eq!(dpu.vswitch().vsctl("list-br"), "", "the service does not create it");

    changes.mark_unchanged();
    dpu.vswitch().vsctl(&make);
    wait_until("its return is noticed", || changes.has_changed().unwrap());
    let bridge = dpu.vswitch().vsctl(&format!("get bridge {BRIDGE} fail_mode external_ids"));
    dpu.prepare().unwrap();
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[0].reaches("10.9.0.2");
    assert_eq!(dpu.vswitch().vsctl(&format!("get bridge {BRIDGE} fail_mode external_ids")), bridge);
}

/// The memory of this process in kB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn ten_thousand_rows_of_others_cost_little() {
    const OTHERS: usize = 10_000;
    let mut dpu = Dpu::on(On::OpenVswitch, &[]);
    let pods = [dpu.plug(0), dpu.plug(1)];
    insert_rows(dpu.vswitch(), OTHERS);
    let before = memory();
    let begun = Stopwatch::start();
    dpu.prepare().unwrap();
    pods.iter().for_each(|pod| dpu.program(pod));
    assert!(begun.unstalled() < ANSWER, "{:?}", begun.unstalled());
    let taken = memory().saturating_sub(before);
    assert!(taken < 64 << 20, "{taken} bytes");
    pods[0].reaches("10.9.0.2");
    assert_ports(&mut dpu, &pods);
    let rows = dpu.vswitch().vsctl("--bare --columns=_uuid find qos type=linux-htb");
    assert_eq!(rows.split_whitespace().count(), OTHERS);
}

/// Inserts rows of a table that the service reads, too.
fn insert_rows(vswitch: &OpenVswitch, count: usize) {
    let settings = ovsdb::Settings {
        socket: vswitch.socket(),
        database: "Open_vSwitch".into(),
        tables: Vec::new(),
        deadline: Duration::from_secs(30),
    };
    let row = |number: usize| {
        let marks = Datum::map([("owner", "somebody"), ("purpose", "limits what a tenant sends")]);
        let columns = [("type", Datum::text("linux-htb")), ("external_ids", marks)];
        Operation::insert("QoS", &format!("row{number}"), columns)
    };
    let rows: Vec<_> = (0..count).map(row).collect();
    Database::open(&settings).unwrap().transact(&rows).unwrap();
}
