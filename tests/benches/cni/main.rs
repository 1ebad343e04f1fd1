//! What an attach costs, side by side with the bare netlink calls of the same work, in one run.
//! `hack/bench` runs it inside private namespaces, with release programs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark: a failure is a panic at its place, and its product is what it prints"
)]

mod callers;
mod contest;
mod delegates;
mod doors;
mod dpu_like;
mod floor;
mod footprint;
mod machine;
mod peers;
mod phases;
mod pods;
mod sample;
mod sandboxes;
mod several;
mod table;
mod timing;

use std::path::PathBuf;

use e2e::{Lab, Settings};

use crate::{dpu_like::DpuLike, table::Report};

const VFS: u32 = 200;

/// The part that needs `hack/runtimes`, and is there by its name only.
const SANDBOXES: &str = "sandboxes";

/// Makes a part's figures.
type Part = fn(&mut Report);

/// The other parts, by the names that arguments choose them with; all where none is named.
const PARTS: [(&str, Part); 6] = [
    ("attach", attach),
    ("several", several::print),
    ("delegates", delegates::print),
    ("doors", doors::print),
    ("peers", peers::print),
    ("large", footprint::print_large_service),
];

/// Before the file to which each row is appended as a line of JSON.
const JSON: &str = "--json";

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without `--bench`: nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let rows = take_file(&mut arguments);
    arguments.retain(|argument| argument != "--bench");
    let mut report = Report::to(rows.as_deref());
    println!("Machine: {}", sample::machine());
    if arguments.iter().any(|argument| argument == SANDBOXES) {
        return sandboxes::print(&mut report);
    }
    let is_chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|a| a == name);
    for (_, print) in PARTS.iter().filter(|(name, _)| is_chosen(name)) {
        print(&mut report);
    }
}

fn take_file(arguments: &mut Vec<String>) -> Option<PathBuf> {
    let option = arguments.iter().position(|argument| argument == JSON)?;
    arguments.remove(option);
    assert!(option < arguments.len(), "{JSON} needs a file");
    Some(arguments.remove(option).into())
}

fn attach(report: &mut Report) {
    let settings = Settings::with_vfs(VFS);
    let lab = Lab::start(&settings);
    let slow = DpuLike::start(&settings);
    if let Err(reason) = &slow {
        println!("\n**NO FIGURES OF A DPU-LIKE SET-UP: {reason}**");
        eprintln!("NO FIGURES OF A DPU-LIKE SET-UP: {reason}");
    }
    contest::print(report, &lab, slow.as_ref().ok());
    if let Ok(slow) = slow {
        slow.print(report);
    }
    machine::print(report, &lab);
    footprint::print(report, &lab);
}
