//! The phases of an ADD, from the agent's log.

use std::{collections::BTreeSet, time::Duration};

use e2e::Program;
use serde_json::Value;

use crate::{
    contest::Logged,
    pictures::{BEGIN, OURS, P50, PHASE, PHASES as PICTURED},
    sample::Sample,
    table::{Cell, Report, Row},
};

/// Fields of the agent's log with the phases in microseconds, and their descriptions.
const PHASES: [(&str, &str); 7] = [
    (BEFORE_AHEAD, "choosing an offered VF, looking at it, recording that"),
    (AHEAD, "the kernel's move between namespaces, ahead of the answer"),
    (CALL, "the call to the DPU at the same time: reserve, then commit and program"),
    (RECORD, "the agent's record"),
    (MOVE, "the name, or the kernel's move of another VF"),
    (CONFIGURE, "MAC, MTU, addresses, routes, up"),
    (CARRIER, "waiting for the carrier"),
];
const BEFORE_AHEAD: &str = "speculative_wait_us";
const AHEAD: &str = "speculative_move_us";
const CALL: &str = "rpc_us";
const RECORD: &str = "record_us";
const MOVE: &str = "move_us";
const CONFIGURE: &str = "configure_us";
const CARRIER: &str = "carrier_us";
/// From the plugin's call to the answer.
const TOTAL: &str = "total_us";
/// Columns of ADDs without the move.
const COLUMNS: [&str; 8] = [
    "callers",
    "of",
    "before the move, p50 ms",
    "before the move, p99 ms",
    "all but the move, p50 ms",
    "all but the move, p99 ms",
    "in no phase, p50 ms",
    "in no phase, p99 ms",
];
/// Suffix of the names of durations.
const UNIT: &str = "_us";

/// Prints the phases of each system with one caller, and ADDs without the move by number of callers.
pub(crate) fn print(report: &mut Report, logged: &[Logged<'_>]) {
    for logged in logged {
        if let Some(adds) = &logged.adds {
            print_all(report, logged, adds);
        }
    }
    let title =
        "What the agent's part of an ADD takes without the kernel's move, of ADDs alone and mixed";
    let mut table = report.table(title, &COLUMNS);
    for Logged { callers, of, lines, .. } in logged {
        let sample = |besides: fn(&Value) -> Duration| Sample::of(lines.iter().map(besides));
        table.row(
            Row::of(*callers)
                .and(*of)
                .and_all(sample(before_the_move).cells())
                .and_all(sample(but_the_move).cells())
                .and_all(sample(in_no_phase).cells()),
        );
    }
}

fn is_ahead(fields: &Value) -> bool {
    fields[AHEAD].as_u64().is_some_and(|ahead| ahead > 0)
}

fn before_the_move(fields: &Value) -> Duration {
    let of = |key| microseconds(fields, key);
    if is_ahead(fields) { of(BEFORE_AHEAD) } else { of(CALL) + of(RECORD) }
}

fn the_move(fields: &Value) -> Duration {
    microseconds(fields, if is_ahead(fields) { AHEAD } else { MOVE })
}

fn but_the_move(fields: &Value) -> Duration {
    microseconds(fields, TOTAL).saturating_sub(the_move(fields))
}

/// Time for thread switches and in queues. The call and the move ahead overlap.
fn in_no_phase(fields: &Value) -> Duration {
    let of = |key| microseconds(fields, key);
    let at_once = of(CALL).max(of(BEFORE_AHEAD) + of(AHEAD));
    let phases = at_once + of(RECORD) + of(MOVE) + of(CONFIGURE) + of(CARRIER);
    of(TOTAL).saturating_sub(phases)
}

/// Prints ADDs whose durations from exec to exit are known.
fn print_all(report: &mut Report, Logged { of, lines, .. }: &Logged<'_>, adds: &Sample) {
    assert_eq!(lines.len(), adds.durations().len(), "ADDs and lines of the agent's log");
    let without = |part: fn(&Value) -> Duration| {
        let pairs = adds.durations().iter().zip(lines);
        Sample::of(pairs.map(|(whole, fields)| whole.saturating_sub(part(fields))))
    };
    let agents = |fields: &Value| microseconds(fields, TOTAL);
    let title = format!("{}{of}", PICTURED.strip_suffix(OURS).unwrap());
    let mut table = report.table(&title, &[PHASE, BEGIN, P50, "p99 ms"]);
    let begin = |key| Sample::of(lines.iter().filter_map(|fields| begin(fields, key))).median();
    // Its second half stands for the whole.
    let plugin = Row::of("the plugin: exec, socket, answer, exit").and_some(begin(TOTAL));
    table.row(plugin.and_all(without(agents).cells()));
    for (key, what) in PHASES.into_iter().chain(further(lines)) {
        let phase = Sample::of(lines.iter().filter_map(|fields| duration(fields, key)));
        if !phase.durations().is_empty() {
            table.row(Row::of(what).and_some(begin(key)).and_all(phase.cells()));
        }
    }
    let rest = Row::of("all but the move").and(Cell::Nothing);
    table.row(rest.and_all(without(the_move).cells()));
}

/// Time from the plugin's call to the beginning of a phase, or to the answer.
fn begin(fields: &Value, key: &str) -> Option<Duration> {
    let of = |key| microseconds(fields, key);
    let ahead = of(BEFORE_AHEAD) + of(AHEAD);
    let behind = [RECORD, MOVE, CONFIGURE, CARRIER];
    match key {
        BEFORE_AHEAD | CALL => Some(Duration::ZERO),
        AHEAD => Some(of(BEFORE_AHEAD)),
        TOTAL => Some(of(TOTAL)),
        _ => {
            let before = behind.iter().position(|it| *it == key)?;
            Some(ahead.max(of(CALL)) + behind[..before].iter().map(|key| of(key)).sum::<Duration>())
        }
    }
}

/// Other durations in the agent's log, by their names.
fn further(lines: &[Value]) -> impl Iterator<Item = (&str, &str)> {
    let keys = lines.iter().filter_map(Value::as_object).flat_map(|fields| fields.keys());
    let is_known = |key: &str| key == TOTAL || PHASES.iter().any(|(known, _)| *known == key);
    let further: BTreeSet<_> =
        keys.map(String::as_str).filter(|key| key.ends_with(UNIT) && !is_known(key)).collect();
    further.into_iter().map(|key| (key, key))
}

/// The lines about attachments in an agent's log.
pub(crate) struct Log<'a> {
    agent: &'a Program,
    seen: usize,
}

impl<'a> Log<'a> {
    pub(crate) fn of(agent: &'a Program) -> Self {
        Self { agent, seen: logged(agent, "attached").len() }
    }

    /// Skips the lines since the last call.
    pub(crate) fn skip(&mut self) {
        self.fresh();
    }

    /// The lines since the last call.
    pub(crate) fn fresh(&mut self) -> Vec<Value> {
        let lines = logged(self.agent, "attached").split_off(self.seen);
        self.seen += lines.len();
        lines
    }
}

/// The fields of each line with that message in the agent's log.
pub(crate) fn logged(agent: &Program, message: &str) -> Vec<Value> {
    let log = agent.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

pub(crate) fn microseconds(fields: &Value, key: &str) -> Duration {
    duration(fields, key).unwrap_or_else(|| panic!("no {key} in {fields}"))
}

fn duration(fields: &Value, key: &str) -> Option<Duration> {
    fields[key].as_u64().map(Duration::from_micros)
}
