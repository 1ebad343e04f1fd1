//! What a user would run instead: host-device with host-local, where they are installed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::Netns;
use serde_json::{Value, json};

use crate::{floor::Floor, pods::run, sample::Sample};

/// Where distributions put the plugins of containernetworking.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const V4: usize = 100;
/// Few: host-device waits for duplicate address detection, seconds each.
const DUAL_STACK: usize = 10;

pub(crate) fn print() {
    println!("\n### host-device with host-local\n");
    let Some(folder) = folder_of("host-device") else {
        println!("Not installed here (containernetworking-plugins).");
        return;
    };
    println!("| what | p50 ms | p99 ms | per s | times the floor, p50 |");
    println!("|---|---|---|---|---|");
    compare(folder, "IPv4 only", V4, &["10.8.0.0/16"]);
    compare(folder, "dual stack", DUAL_STACK, &["10.8.0.0/16", "fd00:8::/64"]);
}

/// Where that plugin is installed, if it is.
pub(crate) fn folder_of(plugin: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| Path::new(folder).join(plugin).exists())
}

fn compare(folder: &str, what: &str, count: usize, subnets: &[&str]) {
    let (peer, floor) = (Peer::new(folder, count, subnets), Floor::new(count));
    let (mut add, mut del) = (Sample::default(), Sample::default());
    let (mut attach, mut detach) = (Sample::default(), Sample::default());
    for number in 0..count {
        attach.time(|| floor.attach(number));
        add.time(|| peer.call("ADD", number));
    }
    for number in 0..count {
        detach.time(|| floor.detach(number));
        del.time(|| peer.call("DEL", number));
    }
    println!("| ADD, {what} | {} | {:.2} |", add.row(), add.p50() / attach.p50());
    println!("| DEL, {what} | {} | {:.2} |", del.row(), del.p50() / detach.p50());
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
