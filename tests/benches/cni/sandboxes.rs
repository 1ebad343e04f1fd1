//! Whole sandboxes of containerd, with our plugin and with Debian's own ones, in turn, where `hack/runtimes` has them.

use e2e::{
    Lab, Settings,
    runtime::{Asked, Containerd, Runtime, write_conflist},
};
use serde_json::{Value, json};

use crate::sample::Sample;

const COUNT: usize = 60;
/// Before those that count, so that what is made once has been made.
const WARM_UP: usize = 3;

/// What is compared, by the name of the runtime in containerd's configuration.
const KINDS: [(&str, &str); 3] = [
    ("", "ours, both families"),
    ("ptp", "ptp with host-local, IPv4 only"),
    ("bridge", "bridge with host-local, IPv4 only"),
];

pub(crate) fn print() {
    let lab = Lab::start(&Settings::default());
    let [ptp, bridge] = [("ptp", "10.8.0.0/16"), ("bridge", "10.9.0.0/16")].map(|peer| {
        let (plugin, subnet) = peer;
        let file = format!("{plugin}.d/10-{plugin}.conflist");
        write_conflist(&lab, &file, |shipped| *shipped = conflist(&lab, plugin, subnet))
    });
    let containerd = Containerd::install_with(&lab, "", &[("ptp", &ptp), ("bridge", &bridge)]);
    let (major, minor) = Containerd::version();
    println!("\n### containerd {major}.{minor}, N={COUNT}, in turn\n");
    let samples = measure(&containerd);
    let [_, (ptp_start, ptp_end), _] = &samples;
    println!(
        "| network | start: p50 ms | p99 ms | times ptp, p50 | end: p50 ms | p99 ms | times ptp, p50 |"
    );
    println!("|---|---|---|---|---|---|---|");
    for ((_, what), (start, end)) in KINDS.iter().zip(&samples) {
        let [of_start, of_end] = [start.p50() / ptp_start.p50(), end.p50() / ptp_end.p50()];
        println!("| {what} | {} | {of_start:.2} | {} | {of_end:.2} |", start.cells(), end.cells());
    }
}

/// Starts (RunPodSandbox) and ends (StopPodSandbox, RemovePodSandbox) of each kind.
fn measure(containerd: &Containerd) -> [(Sample, Sample); 3] {
    let mut samples: [(Sample, Sample); 3] = Default::default();
    for number in 0..WARM_UP + COUNT {
        if number == WARM_UP {
            samples = Default::default();
        }
        for ((handler, _), (start, end)) in KINDS.iter().zip(&mut samples) {
            let asked = Asked { handler, ..Asked::default() };
            let pod = start.time(|| containerd.run_as("pod", &asked).unwrap());
            end.time(|| containerd.remove(&pod).unwrap());
        }
    }
    samples
}

/// As containerd's own example has it, but for where the leases are.
fn conflist(lab: &Lab, plugin: &str, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": plugin,
        "plugins": [{
            "type": plugin,
            "isGateway": true,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": lab.path().join("leases"),
                "ranges": [[{ "subnet": subnet }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}
