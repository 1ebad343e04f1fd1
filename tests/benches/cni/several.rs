//! The cost of a pod with several networks, compared with as many moves of the floor.

use std::fmt::Write;

use e2e::{Lab, Settings};

use crate::{
    floor::{Families, Floor},
    phases::{logged, microseconds},
    pods::Pods,
    sample::Sample,
    table::{Cell, Report, Row, Table},
    timing::Pauses,
    turns::Network,
};

/// Pods of each number of networks.
const PODS: usize = 20;
/// Numbers of networks of a pod.
const NETWORKS: [usize; 4] = [1, 2, 3, 8];
/// The highest number.
const MOST: usize = 8;

const COLUMNS: [&str; 9] = [
    "networks",
    "ADD p50 ms",
    "floor p50 ms",
    "rest of the ADD, ms",
    "times the floor",
    "the call to the DPU",
    "looking at the VFs, the agent's records",
    "DEL p50 ms",
    "DEL, floor p50 ms",
];

/// Prints ADD and DEL of pods with several networks, in turn with the floor.
pub(crate) fn print(report: &mut Report) {
    let vfs = u32::try_from(PODS * MOST).unwrap();
    let mut settings = Settings::with_vfs(vfs);
    for number in 1..MOST {
        let (name, subnet) = (name(number), format!("10.{}.0.0/16", 20 + number));
        write!(
            settings.networks,
            "\n[[network]]\nname = {name:?}\n[[network.subnets]]\ncidr = {subnet:?}\n\
             [[network.subnets]]\ncidr = \"fd00:20:{number}::/64\"\n"
        )
        .unwrap();
    }
    let lab = Lab::start(&settings);
    let title =
        format!("Pods of several networks, one caller, N={PODS} each, product and floor in turn");
    let mut table = report.table(&title, &COLUMNS);
    for count in NETWORKS {
        print_row(&mut table, &lab, count);
    }
}

fn name(number: usize) -> String {
    format!("bench-{number}")
}

fn print_row(table: &mut Table<'_>, lab: &Lab, count: usize) {
    let pods = Pods::on_networks(lab, PODS, (1..count).map(name).collect());
    let floor = Floor::new(PODS * count, Families::Both);
    let moves = |pod: usize| pod * count..(pod + 1) * count;
    let (mut added, mut deleted) = (Sample::default(), Sample::default());
    let (mut floor_added, mut floor_deleted) = (Sample::default(), Sample::default());
    let pauses = Pauses::apart(PODS);
    for pod in 0..PODS {
        pauses.time(pod, &mut floor_added, || moves(pod).map(|number| floor.attach(number)).max());
        pauses.time(pod, &mut added, || pods.add(pod));
    }
    for pod in 0..PODS {
        pauses.time(pod, &mut floor_deleted, || moves(pod).for_each(|number| floor.detach(number)));
        pauses.time(pod, &mut deleted, || pods.del(pod));
    }
    let (ours, theirs) = (added.p50(), floor_added.p50());
    let [call, look] = ["rpc_us", "record_us"].map(|phase| phase_of_pods(lab, count, phase).p50());
    let figures = [ours, theirs, ours - theirs, ours / theirs, call, look];
    let of_dels = [deleted.p50(), floor_deleted.p50()];
    table.row(Row::of(count).and_all(figures.into_iter().chain(of_dels).map(Cell::from)));
}

/// Durations of a phase in the last pods' ADDs, each for all interfaces of a pod.
fn phase_of_pods(lab: &Lab, count: usize, phase: &str) -> Sample {
    let logged = logged(&lab.agent, "attached");
    let of_these = &logged[logged.len() - PODS * count..];
    Sample::of(of_these.chunks(count).map(|pod| microseconds(&pod[0], phase)))
}
