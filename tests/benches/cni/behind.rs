//! What an ADD takes that comes while DELs wait for their turn, beside one that comes alone.

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

/// DELs that are called at once.
const LEAVING: usize = 16;
/// The pod that comes.
const COMING: usize = LEAVING;
const ROUNDS: usize = 24;

/// Prints both, in turn, of ours and of ours with DPUs that are slow where real ones are. The ADD comes a moment after
/// the DELs, within the time of half a move.
pub(crate) fn print(report: &mut Report) {
    let labs = Labs::start(&Settings::with_vfs(u32::try_from(LEAVING + 1).unwrap()));
    let title = format!("An ADD that comes while {LEAVING} DELs wait, N={ROUNDS} each, in turn");
    let columns = ["of", "what", "p50 ms", "p99 ms", "per s", "ms more, p50"];
    let mut table = report.table(&title, &columns);
    for (name, lab) in labs.named() {
        let [alone, behind] = measure(&Pods::new(lab, LEAVING + 1));
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
        pauses.time(round, &mut alone, || pods.add(COMING));
        pods.del(COMING);
        (0..LEAVING).for_each(|pod| pods.add(pod));
        thread::scope(|scope| {
            (0..LEAVING).for_each(|pod| drop(scope.spawn(move || pods.del(pod))));
            pauses.time(round, &mut behind, || pods.add(COMING));
        });
        pods.del(COMING);
    }
    [alone, behind]
}
