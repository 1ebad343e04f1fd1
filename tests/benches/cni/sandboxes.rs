//! Whole sandboxes of containerd, in turn with this plugin and with Debian's plugins, if `hack/runtimes` has them.

use e2e::{
    Lab, Settings,
    runtime::{Containerd, PodOptions, Runtime, write_conflist},
};
use serde_json::{Value, json};

use crate::{
    sample::Sample,
    table::{Report, Row},
};

const COUNT: usize = 60;
/// Sandboxes that are not counted, so that one-time work is done.
const WARM_UP: usize = 3;

/// What is compared, by the name of the runtime in containerd's configuration.
const KINDS: [(&str, &str); 3] = [
    ("", "ours, both families"),
    ("ptp", "ptp with host-local, IPv4 only"),
    ("bridge", "bridge with host-local, IPv4 only"),
];

const COLUMNS: [&str; 7] = [
    "network",
    "start: p50 ms",
    "start: p99 ms",
    "start: times ptp, p50",
    "end: p50 ms",
    "end: p99 ms",
    "end: times ptp, p50",
];

pub(crate) fn print(report: &mut Report) {
    let lab = Lab::start(&Settings::default());
    let [ptp, bridge] = [("ptp", "10.8.0.0/16"), ("bridge", "10.9.0.0/16")].map(|peer| {
        let (plugin, subnet) = peer;
        let file = format!("{plugin}.d/10-{plugin}.conflist");
        write_conflist(&lab, &file, |shipped| *shipped = conflist(&lab, plugin, subnet))
    });
    let containerd = Containerd::install_with(&lab, "", &[("ptp", &ptp), ("bridge", &bridge)]);
    let (major, minor) = Containerd::version();
    let samples = measure(&containerd);
    let [_, (ptp_start, ptp_end), _] = &samples;
    let title = format!("containerd {major}.{minor}, N={COUNT}, in turn");
    let mut table = report.table(&title, &COLUMNS);
    for ((_, what), (start, end)) in KINDS.iter().zip(&samples) {
        table.row(
            Row::of(*what)
                .and_all(start.cells())
                .and(start.p50() / ptp_start.p50())
                .and_all(end.cells())
                .and(end.p50() / ptp_end.p50()),
        );
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
            let asked = PodOptions { handler, ..PodOptions::default() };
            let pod = start.time(|| containerd.run_as("pod", &asked).unwrap());
            end.time(|| containerd.remove(&pod).unwrap());
        }
    }
    samples
}

/// The example from containerd's documentation, except for the folder of the leases.
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
