//! What a pod costs by the door without CNI, beside the plugin.

use e2e::{Lab, Netns, Settings};

use crate::{pods::Pods, sample::Sample};

/// Pods of each door.
const PODS: usize = 50;

/// Prints both, in turn.
pub(crate) fn print() {
    let lab = Lab::start(&Settings::with_vfs(u32::try_from(2 * PODS).unwrap()));
    let pods = Pods::new(&lab, PODS);
    let (caller, workloads) = (lab.workloads(), (0..PODS).map(|_| Netns::new("pod")));
    let workloads: Vec<_> = workloads.collect();
    let (mut added, mut deleted) = (Sample::default(), Sample::default());
    let (mut attached, mut detached) = (Sample::default(), Sample::default());
    for (number, workload) in workloads.iter().enumerate() {
        added.time_apart(|| pods.add(number));
        let _ = attached.time_apart(|| caller.attach(workload, "eth0")).unwrap();
    }
    for (number, workload) in workloads.iter().enumerate() {
        deleted.time_apart(|| pods.del(number));
        detached.time_apart(|| caller.detach(workload.name(), None)).unwrap();
    }
    println!("\n### The plugin and the door without CNI, one caller, N={PODS} each, in turn\n");
    println!("| what | p50 ms | p99 ms | per s | times the plugin, p50 |");
    println!("|---|---|---|---|---|");
    for (plugin, call, by_plugin, by_call) in
        [("ADD", "Attach", &added, &attached), ("DEL", "Detach", &deleted, &detached)]
    {
        println!("| {plugin}, by the plugin | {} | 1 |", by_plugin.row());
        let ratio = by_call.p50() / by_plugin.p50();
        println!("| {call}, by gRPC on the socket | {} | {ratio:.2} |", by_call.row());
    }
}
