//! Changes over a long time of ADDs and DELs.

use std::{
    array, env, fs,
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use e2e::{Lab, Program, Stopwatch};

use crate::{
    footprint::resident_mib,
    peers::with_vfs,
    pods::Pods,
    sample::Sample,
    table::{Cell, Report, Row},
    turns::Network,
};

const CALLERS: usize = 8;
/// Pods of each caller, which adds all of them before it deletes them.
const PODS: usize = 4;

/// Environment variable with a duration in seconds, instead of [`LONG`].
const SECONDS: &str = "OFFLOAD_BENCH_CHURN_SECONDS";
const LONG: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

const COLUMNS: [&str; 12] = [
    "after s",
    "operations per s",
    "ADD p50 ms",
    "ADD p99 ms",
    "DEL p50 ms",
    "DEL p99 ms",
    "service: memory MiB",
    "service: open descriptors",
    "service: journal MiB",
    "agent: memory MiB",
    "agent: open descriptors",
    "agent: journal MiB",
];

/// A finished operation: its index in a [`Minute`], and its duration.
type Done = (usize, Duration);

/// Prints a row for each minute, and the growth from the first to the last.
pub(crate) fn print(report: &mut Report) {
    let lab = Lab::start(&with_vfs(CALLERS * PODS));
    let pods = Pods::new(&lab, CALLERS * PODS);
    let long = env::var(SECONDS).map_or(LONG, |it| Duration::from_secs(it.parse().unwrap()));
    // There are at least two.
    let minute = MINUTE.min(long / 2);
    let mut table = report.table(&format!("Churn by {CALLERS} callers"), &COLUMNS);
    let (begun, is_over) = (Stopwatch::start(), AtomicBool::new(false));
    let (sender, receiver) = channel();
    let mut minutes = Vec::new();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (sender, pods, is_over) = (sender.clone(), &pods, &is_over);
            scope.spawn(move || come_and_go(pods, caller, is_over, &sender));
        }
        while begun.elapsed() + minute / 2 < long {
            let minute = Minute::of(&receiver, minute, &lab);
            table.row(minute.row(begun.elapsed()));
            minutes.push(minute);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (first, last) = (&minutes[0], &minutes[minutes.len() - 1]);
    let growth = array::from_fn(|place| last.figures[place] - first.figures[place]);
    table.row(Row::of("growth").and_all([(); 5].map(|()| Cell::Nothing)).and_all(cells(growth)));
}

/// Adds and deletes a caller's pods until the end, which leaves none.
fn come_and_go(pods: &Pods<'_>, caller: usize, is_over: &AtomicBool, done: &Sender<Done>) {
    let works: [&dyn Fn(usize); 2] = [&|pod| pods.add(pod), &|pod| pods.del(pod)];
    while !is_over.load(Ordering::Relaxed) {
        for (kind, work) in works.iter().enumerate() {
            for pod in caller * PODS..(caller + 1) * PODS {
                let begun = Stopwatch::start();
                work(pod);
                done.send((kind, begun.elapsed())).unwrap();
            }
        }
    }
}

/// The operations of a minute, and the programs' figures at its end.
struct Minute {
    added: Sample,
    deleted: Sample,
    rate: f64,
    figures: [f64; 6],
}

impl Minute {
    fn of(done: &Receiver<Done>, long: Duration, lab: &Lab) -> Self {
        let (begun, mut times) = (Stopwatch::start(), [Vec::new(), Vec::new()]);
        while let Ok((kind, took)) = done.recv_timeout(long.saturating_sub(begun.elapsed())) {
            times[kind].push(took);
        }
        let rate = times.iter().map(Vec::len).sum::<usize>() as f64 / begun.elapsed().as_secs_f64();
        let [added, deleted] = times.map(|times| Sample::of(times.into_iter()));
        let service = figures(&lab.service, lab.path().join("service/journal.redb"));
        let agent = figures(&lab.agent, lab.path().join("agent/records.redb"));
        let figures = [service, agent].concat().try_into().unwrap();
        Self { added, deleted, rate, figures }
    }

    fn row(&self, after: Duration) -> Row {
        Row::of(Cell::Whole(after.as_secs_f64()))
            .and(Cell::Whole(self.rate))
            .and_all(self.added.cells())
            .and_all(self.deleted.cells())
            .and_all(cells(self.figures))
    }
}

/// Cells of both programs' figures. Descriptors are integers.
fn cells(figures: [f64; 6]) -> impl Iterator<Item = Cell> {
    let is_count = |place: usize| place % 3 == 1;
    let cell = move |(place, it)| if is_count(place) { Cell::Whole(it) } else { it.into() };
    figures.into_iter().enumerate().map(cell)
}

/// Memory in MiB, open descriptors, and the journal's size on disk in MiB.
fn figures(program: &Program, journal: PathBuf) -> [f64; 3] {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap().count();
    let bytes = fs::metadata(journal).unwrap().len();
    [resident_mib(program), descriptors as f64, bytes as f64 / (1 << 20) as f64]
}
