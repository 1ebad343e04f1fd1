//! The cost of a pod over the gRPC API for workloads, and over CNI.

use e2e::{Lab, Netns, Settings};

use crate::{
    pods::Pods,
    sample::Sample,
    table::{Report, Row},
    timing::Pauses,
    turns::Network,
};

/// Pods of each API.
const PODS: usize = 50;

/// Measures both in turn.
pub(crate) fn print(report: &mut Report) {
    let lab = Lab::start(&Settings::with_vfs(u32::try_from(2 * PODS).unwrap()));
    let pods = Pods::new(&lab, PODS);
    let (caller, workloads) = (lab.workloads(), (0..PODS).map(|_| Netns::new("pod")));
    let workloads: Vec<_> = workloads.collect();
    let (mut added, mut deleted) = (Sample::default(), Sample::default());
    let (mut attached, mut detached) = (Sample::default(), Sample::default());
    let pauses = Pauses::apart(PODS);
    for (number, workload) in workloads.iter().enumerate() {
        pauses.time(number, &mut added, || pods.add(number));
        let _ = pauses.time(number, &mut attached, || caller.attach(workload, "eth0")).unwrap();
    }
    for (number, workload) in workloads.iter().enumerate() {
        pauses.time(number, &mut deleted, || pods.del(number));
        pauses.time(number, &mut detached, || caller.detach(workload.name(), None)).unwrap();
    }
    let title = format!("The plugin and the door without CNI, one caller, N={PODS} each, in turn");
    let columns = ["what", "p50 ms", "p99 ms", "per s", "times the plugin, p50"];
    let mut table = report.table(&title, &columns);
    for (plugin, call, by_plugin, by_call) in
        [("ADD", "Attach", &added, &attached), ("DEL", "Detach", &deleted, &detached)]
    {
        let mut row = |what: String, sample: &Sample| {
            let ratio = sample.p50() / by_plugin.p50();
            table.row(Row::of(what).and_all(sample.row()).and(ratio));
        };
        row(format!("{plugin}, by the plugin"), by_plugin);
        row(format!("{call}, by gRPC on the socket"), by_call);
    }
}
