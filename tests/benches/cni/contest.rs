//! Systems side by side in one run: ADDs and DELs of each, alone and mixed, by one caller and by many.

use e2e::Lab;
use serde_json::Value;

use crate::{
    callers::{Crew, Work, at_once},
    dpu_like::DpuLike,
    floor::Floor,
    phases::{self, Log},
    pods::Pods,
    sample::Sample,
    table::{Report, Row, Table},
    timing::{Pauses, Timing},
};

/// ADDs alone and DELs alone of each system in a round; mixed, there are half as many of either.
const COUNT: usize = 96;
/// Rounds of each number of callers, with the systems in turn, so that all meet the same moods of the machine.
const ROUNDS: usize = 2;
/// Pods of each system.
const PODS: usize = COUNT + COUNT / 2;
const CALLERS: [usize; 3] = [1, 8, 16];

/// What is measured, by its place in [`Figures`]. One caller does not mix.
const KINDS: [&str; 4] =
    ["ADD", "DEL", "ADD while as many callers delete", "DEL while as many callers add"];

const COLUMNS: [&str; 14] = [
    "callers",
    "what",
    "of",
    "N",
    "p50 ms",
    "p99 ms",
    "per s",
    "times the floor, p50",
    "times the floor, p99",
    "locked: N",
    "locked: p50 ms",
    "locked: p99 ms",
    "locked: times the floor, p50",
    "locked: times the floor, p99",
];

/// What attaches and detaches pods by their numbers.
struct System<'a> {
    name: &'static str,
    add: Work<'a>,
    del: Work<'a>,
}

type Figures = [Sample; KINDS.len()];

/// What the agents logged of the ADDs at random phases.
pub(crate) struct Logged {
    pub(crate) callers: usize,
    pub(crate) of: &'static str,
    pub(crate) lines: Vec<Value>,
    /// From exec to exit, of one caller, in the order of the lines.
    pub(crate) adds: Option<Sample>,
}

/// Prints the floor, ours, and ours with a DPU that is slow where real ones are, where that can be had.
pub(crate) fn print(report: &mut Report, lab: &Lab, slow: Option<&DpuLike>) {
    let (floor, pods) = (Floor::new(PODS), Pods::new(lab, PODS));
    let slow_pods = slow.map(|slow| Pods::new(slow.lab(), PODS));
    let floor_add = |number| {
        floor.attach(number);
    };
    let floor_del = |number| floor.detach(number);
    let (add, del) = (|number| pods.add(number), |number| pods.del(number));
    let slow_add = |number| slow_pods.iter().for_each(|pods| pods.add(number));
    let slow_del = |number| slow_pods.iter().for_each(|pods| pods.del(number));
    let mut systems = vec![
        System { name: "floor: bare netlink", add: &floor_add, del: &floor_del },
        System { name: "ours", add: &add, del: &del },
    ];
    let mut logs = vec![Log::of(lab)];
    if let Some(slow) = slow {
        systems.push(System { name: "ours, DPU-like", add: &slow_add, del: &slow_del });
        logs.push(Log::of(slow.lab()));
    }

    let mut table = report.table("ADD and DEL, at random phases and locked", &COLUMNS);
    let mut logged = Vec::new();
    for callers in CALLERS {
        let apart = measure(&systems, callers, Timing::Apart);
        for ((system, log), figures) in systems[1..].iter().zip(&mut logs).zip(&apart[1..]) {
            let adds = (callers == 1).then(|| figures[0].clone());
            logged.push(Logged { callers, of: system.name, lines: log.fresh(), adds });
        }
        let locked = measure(&systems, callers, Timing::Locked);
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
    let kinds = if callers == 1 { 2 } else { KINDS.len() };
    for (kind, what) in KINDS.iter().enumerate().take(kinds) {
        for (number, system) in systems.iter().enumerate() {
            let of =
                |figures: &[Figures]| (figures[number][kind].clone(), figures[0][kind].clone());
            let ((apart, apart_floor), (locked, locked_floor)) = (of(apart), of(locked));
            table.row(
                Row::of(callers)
                    .and(*what)
                    .and(system.name)
                    .and(apart.durations().len())
                    .and_all(apart.row())
                    .and_all(apart.times(&apart_floor))
                    .and(locked.durations().len())
                    .and_all(locked.cells())
                    .and_all(locked.times(&locked_floor)),
            );
        }
    }
}

/// All rounds of so many callers, by the systems' places.
fn measure(systems: &[System<'_>], callers: usize, timing: Timing) -> Vec<Figures> {
    let mut all: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
    for _ in 0..ROUNDS {
        if callers == 1 {
            one_after_the_other(systems, timing, &mut all);
        } else {
            by_callers(systems, callers, timing, &mut all);
        }
    }
    all
}

fn one_after_the_other(systems: &[System<'_>], timing: Timing, all: &mut [Figures]) {
    let pauses = Pauses::draw(timing, COUNT);
    for number in 0..COUNT {
        for (system, [add, ..]) in systems.iter().zip(&mut *all) {
            pauses.time(number, add, || (system.add)(number));
        }
    }
    for number in 0..COUNT {
        for (system, [_, del, ..]) in systems.iter().zip(&mut *all) {
            pauses.time(number, del, || (system.del)(number));
        }
    }
}

/// The first pods are added, half of them deleted while others are added, and then all others deleted.
fn by_callers(systems: &[System<'_>], callers: usize, timing: Timing, all: &mut [Figures]) {
    let half = COUNT / 2;
    let pauses = Pauses::draw(timing, PODS);
    for (system, [add, ..]) in systems.iter().zip(&mut *all) {
        let [added] = at_once([Crew::new(callers, 0..COUNT, system.add)], &pauses);
        add.append(added);
    }
    for (system, [_, _, add, del]) in systems.iter().zip(&mut *all) {
        let adding = Crew::new(callers / 2, COUNT..PODS, system.add);
        let deleting = Crew::new(callers / 2, 0..half, system.del);
        let [added, deleted] = at_once([adding, deleting], &pauses);
        add.append(added);
        del.append(deleted);
    }
    for (system, [_, del, ..]) in systems.iter().zip(&mut *all) {
        let [deleted] = at_once([Crew::new(callers, half..PODS, system.del)], &pauses);
        del.append(deleted);
    }
}
