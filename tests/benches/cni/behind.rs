//! The time of an ADD that comes while DELs are queued, and of an ADD alone.

use std::thread;

use e2e::Settings;

use crate::{
    dpu_like::Labs,
    pods::Pods,
    sample::Sample,
    table::{Report, Row},
    timing::Pauses,
    turns::Network,
};

/// Number of concurrent DELs.
const DELETED: usize = 16;
/// The pod that is added.
const ADDED: usize = DELETED;
const ROUNDS: usize = 24;

/// Measures both in turn, with a fast DPU and with DPU-like ones. The ADD starts shortly after the DELs, within half
/// the time of a move.
pub(crate) fn print(report: &mut Report) {
    let labs = Labs::start(&Settings::with_vfs(u32::try_from(DELETED + 1).unwrap()));
    let title = format!("An ADD that comes while {DELETED} DELs wait, N={ROUNDS} each, in turn");
    let columns = ["of", "what", "p50 ms", "p99 ms", "per s", "ms more, p50"];
    let mut table = report.table(&title, &columns);
    for (name, lab) in labs.named() {
        let [alone, behind] = measure(&Pods::new(lab, DELETED + 1));
        for (what, sample) in [("alone", &alone), ("while DELs wait", &behind)] {
            let more = sample.p50() - alone.p50();
            table.row(Row::of(name).and(what).and_all(sample.row()).and(more));
        }
    }
}

fn measure(pods: &Pods<'_>) -> [Sample; 2] {
    let (mut alone, mut behind) = (Sample::default(), Sample::default());
    let pauses = Pauses::apart(ROUNDS);
    for round in 0..ROUNDS {
        pauses.time(round, &mut alone, || pods.add(ADDED));
        pods.del(ADDED);
        (0..DELETED).for_each(|pod| pods.add(pod));
        thread::scope(|scope| {
            (0..DELETED).for_each(|pod| drop(scope.spawn(move || pods.del(pod))));
            pauses.time(round, &mut behind, || pods.add(ADDED));
        });
        pods.del(ADDED);
    }
    [alone, behind]
}
