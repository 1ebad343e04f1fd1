//! The cost of an attach, compared with the bare netlink calls of the same work in the same run.
//! `hack/bench` runs it in private namespaces, with release builds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark: a failure is a panic at its place, and its product is what it prints"
)]

mod apis;
mod arm;
mod behind;
mod callers;
mod churn;
mod contest;
mod delegates;
mod dpu_like;
mod floor;
mod footprint;
mod hosts;
mod leases;
mod machine;
mod peers;
mod phases;
mod pictures;
mod pods;
mod sample;
mod sandboxes;
mod several;
mod table;
mod timing;
mod turns;
mod wrong;

use std::path::PathBuf;

use e2e::Settings;

use crate::{dpu_like::Labs, table::Report};

const VFS: u32 = 200;

/// Measures a part.
type Part = fn(&mut Report);

/// Parts that only run when named: two need `hack/runtimes` or `hack/arm-dpu`, and one takes long.
const BY_NAME: [(&str, Part); 3] =
    [("sandboxes", sandboxes::print), ("arm", arm::print), ("churn", churn::print)];

/// The other parts, by their names as arguments. All run if none is named.
const PARTS: [(&str, Part); 11] = [
    ("attach", attach),
    ("behind", behind::print),
    ("wrong", wrong::print),
    ("several", several::print),
    ("delegates", delegates::print),
    ("apis", apis::print),
    ("peers", peers::print),
    ("leases", leases::print),
    ("hosts", hosts::print),
    ("burst", hosts::print_beside_burst),
    ("large", footprint::print_large_service),
];

/// Option with the file to which each row is appended as a line of JSON.
const JSON: &str = "--json";
/// Option with the folder into which charts of the tables are drawn.
const PICTURES: &str = "--pictures";

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without `--bench`: there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let [rows, folder] = [JSON, PICTURES].map(|option| take_path(&mut arguments, option));
    arguments.retain(|argument| argument != "--bench");
    let mut report = Report::to(rows.as_deref());
    println!("Machine: {}", sample::machine());
    let is_named = |name: &str| arguments.iter().any(|argument| argument == name);
    let parts = PARTS.iter().filter(|(name, _)| arguments.is_empty() || is_named(name));
    for (_, print) in parts.chain(BY_NAME.iter().filter(|(name, _)| is_named(name))) {
        print(&mut report);
    }
    if let Some(folder) = folder {
        pictures::draw(&folder, report.rows());
    }
}

fn take_path(arguments: &mut Vec<String>, option: &str) -> Option<PathBuf> {
    let place = arguments.iter().position(|argument| argument == option)?;
    arguments.remove(place);
    assert!(place < arguments.len(), "{option} needs a path");
    Some(arguments.remove(place).into())
}

fn attach(report: &mut Report) {
    let labs = Labs::start(&Settings::with_vfs(VFS));
    contest::print(report, &labs.named());
    if let Some(slow) = labs.slow() {
        slow.print(report);
    }
    machine::print(report, labs.ours());
    footprint::print(report, labs.ours());
}
