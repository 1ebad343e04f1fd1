//! The parts that no ADD can avoid, each measured alone: the machine's share of an ADD's time.

use std::{fs::File, os::unix::fs::FileExt, path::Path, process::Command};

use e2e::{Lab, Stopwatch, program};

use crate::{
    floor::{Families, Floor},
    pods::Pods,
    sample::Sample,
    table::{Cell, Report, Row},
};

/// Measurements of each part.
const COUNT: usize = 100;

/// Bytes of the smallest durable write.
const PAGE: usize = 4096;

/// Each part is measured right after a move of the floor, because the parts of an ADD, too, find sleeping processors
/// and cold caches.
pub(crate) fn print(report: &mut Report, lab: &Lab) {
    let mut requests = Vec::new();
    let mut after_a_move = |work: &dyn Fn()| {
        let (floor, mut sample) = (Floor::new(COUNT, Families::Both), Sample::default());
        for number in 0..COUNT {
            let begun = Stopwatch::start();
            let moving = floor.attach(number);
            requests.push(begun.elapsed() - moving);
            sample.time(work);
        }
        sample
    };
    let process = after_a_move(&execute);
    let pods = Pods::new(lab, 1);
    let call = after_a_move(&|| pods.status());
    let file = page(lab.path());
    let write = after_a_move(&|| write(&file));
    let requests = Sample::of(requests.into_iter());
    let together = call.p50() + write.p50() + requests.p50();

    let title = format!("What an ADD's parts take alone, N={COUNT}");
    let mut table = report.table(&title, &["what", "p50 ms", "p99 ms"]);
    for (what, sample) in [
        ("a process: the plugin, executed to tell its version", &process),
        ("a call: STATUS from exec to exit, which asks the DPU", &call),
        ("a durable write: a page and its sync", &write),
        ("the kernel's requests: the floor but its move", &requests),
    ] {
        table.row(Row::of(what).and_all(sample.cells()));
    }
    table.row(
        Row::of("call, write and requests, one after the other").and(together).and(Cell::Nothing),
    );
}

fn execute() {
    let output = Command::new(program("host-shim")).arg("--version").output().unwrap();
    assert!(output.status.success());
}

fn page(folder: &Path) -> File {
    let file = File::create(folder.join("page")).unwrap();
    write(&file);
    file
}

fn write(file: &File) {
    file.write_all_at(&[7; PAGE], 0).unwrap();
    file.sync_data().unwrap();
}
