//! What an attach costs, side by side with the bare netlink calls of the same work, in one run.
//! `hack/bench` runs it inside private namespaces, with release programs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark: a failure is a panic at its place, and its product is what it prints"
)]

mod delegates;
mod doors;
mod floor;
mod footprint;
mod machine;
mod peers;
mod phases;
mod pods;
mod sample;
mod sandboxes;
mod several;

use e2e::{Lab, Settings};

use crate::{floor::Floor, pods::Pods, sample::Sample};

/// Attachments of each kind measured one after the other.
const SEQUENTIAL: usize = 200;
/// Calls at the same time, as a busy runtime makes.
const CALLERS: usize = 16;

/// The part that needs `hack/runtimes`, and is there by its name only.
const SANDBOXES: &str = "sandboxes";

/// The other parts, by the names that arguments choose them with; all where none is named.
const PARTS: [(&str, fn()); 6] = [
    ("attach", attach),
    ("several", several::print),
    ("delegates", delegates::print),
    ("doors", doors::print),
    ("peers", peers::print),
    ("large", footprint::print_large_service),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without `--bench`: nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    println!("Machine: {}", sample::machine());
    if arguments.iter().any(|argument| argument == SANDBOXES) {
        return sandboxes::print();
    }
    let is_chosen = |name: &str| arguments.len() == 1 || arguments.iter().any(|a| a == name);
    for (_, print) in PARTS.iter().filter(|(name, _)| is_chosen(name)) {
        print();
    }
}

fn attach() {
    let lab = Lab::start(&Settings::with_vfs(u32::try_from(SEQUENTIAL).unwrap()));
    let (ours, floor) = one_after_the_other(&lab);
    println!("\n### One caller, N={SEQUENTIAL}, product and floor in turn\n");
    compare(&ours, &floor);
    phases::print(&lab, &ours.attach);
    machine::print(&lab);
    println!("\n### {CALLERS} callers, N={SEQUENTIAL}\n");
    let (ours, floor) = at_once(&lab);
    compare(&ours, &floor);
    footprint::print(&lab);
}

/// Attach and detach of one kind.
struct Both {
    attach: Sample,
    detach: Sample,
}

/// Product and floor in turn, so that both meet the same moods of the machine.
fn one_after_the_other(lab: &Lab) -> (Both, Both) {
    let (pods, floor) = (Pods::new(lab, SEQUENTIAL), Floor::new(SEQUENTIAL));
    let mut ours = Both { attach: Sample::default(), detach: Sample::default() };
    let mut theirs = Both { attach: Sample::default(), detach: Sample::default() };
    for number in 0..SEQUENTIAL {
        theirs.attach.time(|| floor.attach(number));
        ours.attach.time(|| pods.add(number));
    }
    for number in 0..SEQUENTIAL {
        theirs.detach.time(|| floor.detach(number));
        ours.detach.time(|| pods.del(number));
    }
    (ours, theirs)
}

fn at_once(lab: &Lab) -> (Both, Both) {
    let (pods, floor) = (Pods::new(lab, SEQUENTIAL), Floor::new(SEQUENTIAL));
    let by_all = |work: &(dyn Fn(usize) + Sync)| Sample::by_callers(CALLERS, SEQUENTIAL, work);
    let theirs_attach = by_all(&|number| {
        floor.attach(number);
    });
    let ours_attach = by_all(&|number| pods.add(number));
    let theirs_detach = by_all(&|number| floor.detach(number));
    let ours_detach = by_all(&|number| pods.del(number));
    (
        Both { attach: ours_attach, detach: ours_detach },
        Both { attach: theirs_attach, detach: theirs_detach },
    )
}

fn compare(ours: &Both, floor: &Both) {
    println!("| what | p50 ms | p99 ms | per s | times the floor, p50 |");
    println!("|---|---|---|---|---|");
    for (what, ours, floor) in
        [("ADD", &ours.attach, &floor.attach), ("DEL", &ours.detach, &floor.detach)]
    {
        println!("| {what} | {} | {:.2} |", ours.row(), ours.p50() / floor.p50());
        println!("| {what}, floor: bare netlink | {} | 1 |", floor.row());
    }
}
