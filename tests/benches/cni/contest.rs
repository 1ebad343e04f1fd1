//! The plugin and the floor, with a fast DPU and with a DPU-like one.

use e2e::Lab;
use serde_json::Value;

use crate::{
    floor::{Families, Floor},
    phases::{self, Log},
    pictures,
    pods::Pods,
    sample::Sample,
    table::{Report, Table},
    timing::Timing,
    turns::{self, Figures, Load, System},
};

const COUNT: usize = 96;
const ROUNDS: usize = 2;
const CALLERS: [usize; 3] = [1, 8, 16];

/// Columns in addition to those of random phases.
const LOCKED: [&str; 5] = [
    "locked: N",
    "locked: p50 ms",
    "locked: p99 ms",
    "locked: times the floor, p50",
    "locked: times the floor, p99",
];

/// The agents' log of the ADDs at random phases.
pub(crate) struct Logged<'a> {
    pub(crate) callers: usize,
    pub(crate) of: &'a str,
    pub(crate) lines: Vec<Value>,
    /// Durations from exec to exit of one caller, in the order of the lines.
    pub(crate) adds: Option<Sample>,
}

/// Prints the floor and the plugin in each of these labs.
pub(crate) fn print(report: &mut Report, labs: &[(&str, &Lab)]) {
    let load = Load::new(COUNT, ROUNDS);
    let floor = Floor::new(load.pods(), Families::Both);
    let ours = labs.iter().map(|(name, lab)| (*name, Pods::new(lab, load.pods())));
    let ours: Vec<_> = ours.collect();
    let mut logs: Vec<_> = labs.iter().map(|(_, lab)| Log::of(&lab.agent)).collect();
    let mut systems = vec![System { name: Floor::NAME, network: &floor }];
    systems.extend(ours.iter().map(|(name, network)| System { name, network }));

    let columns = [&[pictures::CALLERS], &turns::COLUMNS[..], &LOCKED].concat();
    let mut table = report.table("ADD and DEL, at random phases and locked", &columns);
    let mut logged = Vec::new();
    for callers in CALLERS {
        let apart = load.measure(&systems, callers, Timing::Apart);
        for ((system, log), figures) in systems[1..].iter().zip(&mut logs).zip(&apart[1..]) {
            let adds = (callers == 1).then(|| figures[0].clone());
            logged.push(Logged { callers, of: system.name, lines: log.fresh(), adds });
        }
        let locked = load.measure(&systems, callers, Timing::Locked);
        logs.iter_mut().for_each(Log::skip);
        print_rows(&mut table, callers, &systems, [&apart, &locked]);
    }
    phases::print(report, &logged);
}

fn print_rows(
    table: &mut Table<'_>,
    callers: usize,
    systems: &[System<'_>],
    [apart, locked]: [&[Figures]; 2],
) {
    for (row, [kind, system]) in turns::rows(callers, callers, systems, apart) {
        let (locked, floor) = (&locked[system][kind], &locked[0][kind]);
        table.row(
            row.and(locked.durations().len()).and_all(locked.cells()).and_all(locked.times(floor)),
        );
    }
}
