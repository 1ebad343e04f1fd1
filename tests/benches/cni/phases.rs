//! Where an ADD's time goes, by the agent's own log.

use std::time::Duration;

use e2e::Lab;
use serde_json::Value;

use crate::sample::Sample;

/// The phases that the agent logs, in microseconds, and what they are.
const PHASES: [(&str, &str); 5] = [
    ("rpc_us", "the call to the DPU: reserve, then commit and program at once"),
    ("record_us", "looking at the VF, the agent's record"),
    ("move_us", "the kernel's move between namespaces"),
    ("configure_us", "name, MAC, MTU, addresses, routes, up"),
    ("carrier_us", "waiting for the carrier"),
];

/// Of the ADDs whose durations from exec to exit these are, in the order they were made.
pub(crate) fn print(lab: &Lab, adds: &Sample) {
    let logged = logged(lab, "attached");
    assert_eq!(logged.len(), adds.durations().len(), "ADDs and lines of the agent's log");
    let phase = |key: &str| Sample::of(logged.iter().map(|fields| microseconds(fields, key)));
    let pairs = || adds.durations().iter().zip(&logged);
    let outside =
        pairs().map(|(whole, fields)| whole.saturating_sub(microseconds(fields, "total_us")));
    let but_the_move =
        pairs().map(|(whole, fields)| whole.saturating_sub(microseconds(fields, "move_us")));

    println!("\n### Where an ADD's time goes\n\n| phase | p50 ms | p99 ms |\n|---|---|---|");
    println!("| the plugin: exec, socket, answer, exit | {} |", Sample::of(outside).cells());
    for (key, what) in PHASES {
        println!("| {what} | {} |", phase(key).cells());
    }
    println!("| all but the move | {} |", Sample::of(but_the_move).cells());
}

/// The fields of each line of the agent's log that says that.
pub(crate) fn logged(lab: &Lab, message: &str) -> Vec<Value> {
    let log = lab.agent.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

pub(crate) fn microseconds(fields: &Value, key: &str) -> Duration {
    Duration::from_micros(fields[key].as_u64().unwrap_or_else(|| panic!("no {key} in {fields}")))
}
