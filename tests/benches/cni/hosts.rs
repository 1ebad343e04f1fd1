//! The latency of a DPU's answers to many simulated hosts.

use std::time::{Duration, Instant};

use e2e::{BURST, Crowd, CrowdBehaviour, CrowdSize, Lab, Settings};

use crate::{
    footprint::resident_mib,
    sample::Sample,
    table::{Report, Row},
};

/// Numbers of hosts, each with one call at a time.
const HOSTS: [usize; 4] = [1, 4, 16, 64];
/// Pods of each host.
const PODS: u32 = 4;
/// Duration of a measurement.
const TIME: Duration = Duration::from_secs(10);
/// Duration of a measurement whose 99th percentile is compared.
const LONG_TIME: Duration = Duration::from_secs(30);

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

const BESIDE_BURST: [&str; 6] =
    ["the other host", "p50 ms", "p99 ms", "Attaches per s", "p50 / alone", "p99 / alone"];

/// Prints a row for each number of hosts, and one of the highest number with faults.
pub(crate) fn print(report: &mut Report) {
    let title = format!("Hosts that are played, {PODS} pods each, for {TIME:?}");
    let mut table = report.table(&title, &COLUMNS);
    let quiet = CrowdBehaviour { pause: Duration::ZERO, faults: false };
    let most = HOSTS[HOSTS.len() - 1];
    HOSTS.into_iter().for_each(|hosts| table.row(row(hosts.to_string(), hosts, quiet)));
    let what = format!("{most}, amid cut calls, torn sessions and reboots");
    table.row(row(what, most, CrowdBehaviour { faults: true, ..quiet }));
}

/// Prints the duration of an Attach of one host alone, and next to a host that sends a burst of them each second.
pub(crate) fn print_beside_burst(report: &mut Report) {
    let title = format!("Attaches of one host, for {LONG_TIME:?}");
    let mut table = report.table(&title, &BESIDE_BURST);
    let mut alone = None;
    let size = CrowdSize { hosts: 2, pods: 2 * u32::try_from(BURST).expect("few") };
    let behaviour = CrowdBehaviour { pause: Duration::from_millis(20), faults: false };
    for (what, is_beside) in [("no attaches", false), ("16 at once, in each second", true)] {
        let lab = Lab::start(&Settings { service: size.sections(), ..Settings::default() });
        let mut crowd = Crowd::of_lab(&lab, size, 1);
        let end = Instant::now() + LONG_TIME;
        let over = || Instant::now() > end;
        if is_beside {
            crowd.play_with_burst(behaviour, over);
        } else {
            crowd.play_all_but_first(behaviour, over);
        }
        let tally = crowd.take_tally();
        assert_eq!(tally.failed, 0, "{:?}", tally.refusals);
        crowd.leave();
        crowd.assert_kept(&lab);
        let sample = Sample::of_callers(tally.attaches, LONG_TIME);
        let times = sample.times(alone.as_ref().unwrap_or(&sample));
        table.row(Row::of(what).and_all(sample.row()).and_all(times));
        alone.get_or_insert(sample);
    }
}

fn row(what: String, hosts: usize, behaviour: CrowdBehaviour) -> Row {
    let size = CrowdSize { hosts, pods: PODS };
    let lab = Lab::start(&Settings { service: size.sections(), ..Settings::default() });
    let mut crowd = Crowd::of_lab(&lab, size, 1);
    let end = Instant::now() + TIME;
    crowd.play(behaviour, || Instant::now() > end);
    let tally = crowd.take_tally();
    assert!(behaviour.faults || tally.failed == 0, "{:?}", tally.refusals);
    let memory = resident_mib(&lab.service);
    let figures = [tally.attaches, tally.detaches].map(|took| Sample::of_callers(took, TIME).row());
    crowd.leave();
    crowd.assert_kept(&lab);
    Row::of(what).and_all(figures.into_iter().flatten()).and(tally.failed).and(memory)
}
