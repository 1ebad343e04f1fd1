//! Output of benchmark results: rows of a file, and pictures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests may, and tables are printed"
)]
#![allow(dead_code, reason = "modules of the benchmark, of which it uses its part")]

#[path = "../../benches/cni/pictures.rs"]
mod pictures;
#[path = "../../benches/cni/table.rs"]
mod table;

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use pictures::{LEASES, PEERS, PHASES};
use table::{Cell, Report, Row};

#[test]
fn benchmark_rows_are_appended_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows");
    for number in [1_usize, 2] {
        let mut report = Report::to(Some(&file));
        let mut table = report.table("a title", &["what", "N", "p50 ms", "else"]);
        table.row(Row::of("ADD").and(number).and(1.25).and(Cell::Nothing));
    }
    let lines = fs::read_to_string(file).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |number| json!({ "table": "a title", "what": "ADD", "N": number, "p50 ms": 1.25, "else": null });
    assert_eq!(rows, [row(1), row(2)]);
}

#[test]
fn benchmark_pictures_match_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let [(_, v4), (_, both)] = PEERS;
    let ratio = |table: &str, callers: u32, of: &str, ratio: f64| {
        json!({
            "table": table, "callers": callers, "what": "ADD", "of": of, "times the floor, p50": ratio
        })
    };
    let held = |held: u32, of: &str, ms: f64| json!({ "table": LEASES, "leases held": held, "what": "DEL", "of": of, "p50 ms": ms });
    let phase = |phase: &str, begin: Value, ms: f64| json!({ "table": PHASES, "phase": phase, "begins after ms": begin, "p50 ms": ms });
    let rows = [
        ratio(v4, 1, "ours", 1.51),
        ratio(both, 1, "a < b & c", 0.82),
        ratio(both, 8, "ours", 7.77),
        held(0, "ours", 28.4),
        held(50_000, "ours", 29.6),
        held(50_000, "host-device", 812.3),
        phase("the kernel's move", json!(0.5), 20.25),
        phase("all but the move", Value::Null, 9.75),
    ];
    pictures::draw(folder.path(), &rows);
    let texts = |name: &str| texts(&folder.path().join(name));
    let ratios = texts("ratios.svg");
    has(&ratios, &["ADD, IPv4: ours", "1.51", "ADD, dual stack: a < b & c", "0.82"]);
    assert!(!ratios.contains(&"7.77".to_owned()), "{ratios:?}");
    has(&texts("leases.svg"), &["DEL, ours 29.6", "DEL, host-device 812.3", "leases held"]);
    let phases = texts("add.svg");
    has(&phases, &["the kernel's move", "20.25"]);
    assert!(!phases.contains(&"9.75".to_owned()), "{phases:?}");
}

#[test]
fn missing_table_keeps_its_picture() {
    let folder = tempfile::tempdir().unwrap();
    pictures::draw(folder.path(), &[]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn has(texts: &[String], wanted: &[&str]) {
    for text in wanted {
        assert!(texts.iter().any(|it| it == text), "no {text:?} in {texts:?}");
    }
}

/// Texts of a picture, read by another parser.
fn texts(picture: &Path) -> Vec<String> {
    let script = "import json, sys, xml.etree.ElementTree as tree\n\
        texts = tree.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}text')\n\
        print(json.dumps([text.text.strip() for text in texts]))";
    let output =
        Command::new("/usr/bin/python3").args(["-c", script]).arg(picture).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
