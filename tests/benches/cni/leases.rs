//! The time of ADD and DEL by the number of leases.

use std::{fs, net::Ipv4Addr, path::Path};

use e2e::{Lab, Settings};
use journal::{Change, Journal, Outlives, Schema};
use netlink::MacAddress;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    floor::{Families, Floor},
    peers::{self, HOST_DEVICE, NOT_INSTALLED, Peer, folder_of, network, on_a_host, with_vfs},
    pictures::{self, OURS},
    pods::Pods,
    table::{Report, Table},
    timing::Timing,
    turns::{self, Load, Network, System},
};

/// Numbers of leases of other pods.
const HELD: [usize; 4] = [0, 1_000, 10_000, 50_000];
/// Operations for each number. With many leases an operation of host-local takes a second.
const COUNT: usize = 32;

/// The service's journal, as in `dpu-service/src/records.rs`.
const SCHEMA: Schema = Schema {
    name: "dpu-service",
    version: 2,
    tables: &[ATTACHMENTS, "networks", "cooling"],
    migrations: &[|_| unreachable!("the service itself has just written it")],
};
const ATTACHMENTS: &str = "attachments";
const JOURNAL: &str = "service/journal.redb";

/// A host without a session, so that the service does not ask it about its pods.
const OTHER_HOST: &str = "[[host]]\nname = \"node-2\"\npfs = [\"c1p0\"]\n";

/// Prints the floor, the plugin, and host-device with host-local.
pub(crate) fn print(report: &mut Report) {
    let columns = [&[pictures::HELD], &turns::COLUMNS[..]].concat();
    let mut table = report.table(pictures::LEASES, &columns);
    for held in HELD {
        on_a_host(|| compare(&mut table, held));
    }
    if folder_of(HOST_DEVICE).is_none() {
        println!("\nPeers: {NOT_INSTALLED}");
    }
}

fn compare(table: &mut Table<'_>, held: usize) {
    let load = Load::new(COUNT, 1);
    let settings = Settings {
        networks: network(Families::V4),
        service: format!("[limits]\nattachments = 65536\n{OTHER_HOST}"),
        ..with_vfs(load.pods())
    };
    let mut lab = Lab::start(&settings);
    if held > 0 {
        hold(&mut lab, held);
    }
    let (floor, ours) = (Floor::new(load.pods(), Families::V4), Pods::new(&lab, load.pods()));
    let peer = folder_of(HOST_DEVICE).map(|folder| {
        let peer = Peer::host_device(folder, load.pods());
        peer.hold(held);
        peer
    });
    let mut systems =
        vec![System { name: Floor::NAME, network: &floor }, System { name: OURS, network: &ours }];
    systems.extend(peer.as_ref().map(|network| System { name: HOST_DEVICE, network }));
    let figures = load.measure(&systems, 1, Timing::Apart);
    turns::rows(held, 1, &systems, &figures).for_each(|(row, _)| table.row(row));
}

/// Writes leases into the service's journal, of copies of a pod's attachment. They are being released, and their VFs
/// are not reported home by the other host, so the service has no ports to program or repair for them.
fn hold(lab: &mut Lab, held: usize) {
    let record = record_of_a_pod(lab);
    lab.service.stop();
    let changes =
        (0..).zip(peers::addresses(peers::OURS_AT)).take(held).map(|(number, address)| {
            let id = Uuid::from_u128(u128::from(number) + 1);
            let record = like(&record, id, number, address);
            Change::put(ATTACHMENTS, *id.as_bytes(), record.to_string())
        });
    let journal = open_journal(&lab.path().join(JOURNAL));
    journal.commit(changes.collect()).wait().unwrap();
    drop(journal);
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(held_in_pool(lab), held);
}

fn held_in_pool(lab: &Lab) -> usize {
    let networks = lab.operator().get("networks");
    networks[0]["subnets"][0]["held"].as_u64().unwrap().try_into().unwrap()
}

/// The record of a deleted pod, from a copy of the journal, because the service has the original open.
fn record_of_a_pod(lab: &Lab) -> Value {
    let (pods, copy) = (Pods::new(lab, 1), lab.path().join("copy.redb"));
    pods.add(0);
    fs::copy(lab.path().join(JOURNAL), &copy).unwrap();
    pods.del(0);
    let rows = open_journal(&copy).read_all(ATTACHMENTS).unwrap();
    serde_json::from_slice(&rows[0].1).unwrap()
}

fn open_journal(path: &Path) -> Journal {
    Journal::open(path, SCHEMA, Outlives::Machine).unwrap()
}

/// A copy of the record for a VF of that number, of a PF of the other host.
fn like(record: &Value, id: Uuid, number: u16, address: Ipv4Addr) -> Value {
    let mut record = record.clone();
    let [high, low] = number.to_be_bytes();
    record["id"] = json!(id);
    record["phase"] = json!("releasing");
    record["key"]["host"] = json!("node-2");
    record["key"]["container_id"] = json!(format!("other-pod-{number}"));
    record["vf"] = json!({ "controller": 1, "pf": 0, "vf": number });
    record["device"] = json!(format!("other-{number}"));
    record["mac"] = json!(MacAddress([2, 0xff, 0, 0, high, low]));
    record["leases"][0]["address"] = json!(format!("{address}/16"));
    record
}
