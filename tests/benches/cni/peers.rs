//! What a user would run instead: host-device with host-local, where they are installed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::Netns;
use serde_json::{Value, json};

use crate::{
    floor::Floor,
    pods::run,
    sample::Sample,
    table::{Report, Row, Table},
    timing::{Pauses, Timing},
};

/// Where distributions put the plugins of containernetworking.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const V4: usize = 100;
/// Few: host-device waits for duplicate address detection, seconds each.
const DUAL_STACK: usize = 10;

const COLUMNS: [&str; 10] = [
    "what",
    "p50 ms",
    "p99 ms",
    "per s",
    "times the floor, p50",
    "times the floor, p99",
    "locked: p50 ms",
    "locked: p99 ms",
    "locked: times the floor, p50",
    "locked: times the floor, p99",
];

pub(crate) fn print(report: &mut Report) {
    let title = "host-device with host-local, at random phases and locked";
    let Some(folder) = folder_of("host-device") else {
        println!("\n### {title}\n\nNot installed here (containernetworking-plugins).");
        return;
    };
    let mut table = report.table(title, &COLUMNS);
    compare(&mut table, folder, ("IPv4 only", V4, &["10.8.0.0/16"]));
    compare(&mut table, folder, ("dual stack", DUAL_STACK, &["10.8.0.0/16", "fd00:8::/64"]));
}

/// Where that plugin is installed, if it is.
pub(crate) fn folder_of(plugin: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| Path::new(folder).join(plugin).exists())
}

fn compare(table: &mut Table<'_>, folder: &str, (what, count, subnets): (&str, usize, &[&str])) {
    let (peer, floor) = (Peer::new(folder, count, subnets), Floor::new(count));
    let [apart, locked] =
        [Timing::Apart, Timing::Locked].map(|timing| measure(&peer, &floor, count, timing));
    for (verb, apart, locked) in
        [("ADD", &apart.add, &locked.add), ("DEL", &apart.del, &locked.del)]
    {
        table.row(
            Row::of(format!("{verb}, {what}"))
                .and_all(apart.peer.row())
                .and_all(apart.peer.times(&apart.floor))
                .and_all(locked.peer.cells())
                .and_all(locked.peer.times(&locked.floor)),
        );
    }
}

/// Peer and floor.
#[derive(Default)]
struct Pair {
    peer: Sample,
    floor: Sample,
}

#[derive(Default)]
struct Both {
    add: Pair,
    del: Pair,
}

/// One after the other, in turn.
fn measure(peer: &Peer, floor: &Floor, count: usize, timing: Timing) -> Both {
    let (mut both, pauses) = (Both::default(), Pauses::draw(timing, count));
    for number in 0..count {
        pauses.time(number, &mut both.add.floor, || floor.attach(number));
        pauses.time(number, &mut both.add.peer, || peer.call("ADD", number));
    }
    for number in 0..count {
        pauses.time(number, &mut both.del.floor, || floor.detach(number));
        pauses.time(number, &mut both.del.peer, || peer.call("DEL", number));
    }
    both
}

struct Peer {
    folder: PathBuf,
    host: Netns,
    pods: Vec<Netns>,
    leases: tempfile::TempDir,
    ranges: Value,
}

impl Peer {
    fn new(folder: &str, count: usize, subnets: &[&str]) -> Self {
        let host = Netns::new("peer-host");
        for number in 0..count {
            let (end, peer) = (format!("h{number}"), format!("r{number}"));
            let arguments = ["link", "add", &end, "type", "veth", "peer", "name", &peer];
            host.ip(&arguments);
            host.ip(&["link", "set", &peer, "up"]);
        }
        let pods = (0..count).map(|_| Netns::new("peer-pod")).collect();
        let ranges = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        Self { folder: folder.into(), host, pods, leases: tempfile::tempdir().unwrap(), ranges }
    }

    fn call(&self, verb: &str, number: usize) {
        let pod = &self.pods[number];
        let configuration = json!({
            "cniVersion": "1.0.0",
            "name": "peer",
            "type": "host-device",
            "device": format!("h{number}"),
            "ipam": { "type": "host-local", "dataDir": self.leases.path(), "ranges": self.ranges },
        });
        let mut command: Command = self.host.command(self.folder.join("host-device"));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod.name())
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        run(command, &configuration.to_string());
    }
}
