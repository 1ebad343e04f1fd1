//! What a DPU takes for the calls of many hosts at once, which are played.

use std::time::{Duration, Instant};

use e2e::{Crowd, CrowdSize, Lab, Manners, Settings};

use crate::{
    footprint::resident_mib,
    sample::Sample,
    table::{Report, Row},
};

/// Each with one call under way at a time.
const HOSTS: [usize; 4] = [1, 4, 16, 64];
/// Pods of each.
const PODS: u32 = 4;
/// How long they come and go.
const TIME: Duration = Duration::from_secs(10);

const COLUMNS: [&str; 9] = [
    "hosts",
    "Attach p50 ms",
    "Attach p99 ms",
    "Attaches per s",
    "Detach p50 ms",
    "Detach p99 ms",
    "Detaches per s",
    "not granted",
    "the service's memory, MiB",
];

/// Prints a row for each number of hosts, and one of the most amid faults.
pub(crate) fn print(report: &mut Report) {
    let title = format!("Hosts that are played, {PODS} pods each, for {TIME:?}");
    let mut table = report.table(&title, &COLUMNS);
    let quiet = Manners { pause: Duration::ZERO, faults: false };
    let most = HOSTS[HOSTS.len() - 1];
    HOSTS.into_iter().for_each(|hosts| table.row(row(hosts.to_string(), hosts, quiet)));
    let what = format!("{most}, amid cut calls, torn sessions and reboots");
    table.row(row(what, most, Manners { faults: true, ..quiet }));
}

fn row(what: String, hosts: usize, manners: Manners) -> Row {
    let size = CrowdSize { hosts, pods: PODS };
    let lab = Lab::start(&Settings { service: size.sections(), ..Settings::default() });
    let mut crowd = Crowd::of_lab(&lab, size, 1);
    let end = Instant::now() + TIME;
    crowd.play(manners, || Instant::now() > end);
    let tally = crowd.take_tally();
    assert!(manners.faults || tally.failed == 0, "{:?}", tally.refusals);
    let memory = resident_mib(&lab.service);
    let figures = [tally.attaches, tally.detaches].map(|took| Sample::of_callers(took, TIME).row());
    crowd.leave();
    crowd.assert_kept(&lab);
    Row::of(what).and_all(figures.into_iter().flatten()).and(tally.failed).and(memory)
}
