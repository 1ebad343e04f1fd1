//! docs/FEATURES.md names for each row the test that shows it, or the reason why there is none. `tiers.rs` shows that a
//! tier of `hack/test` runs each test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "support/listing.rs"]
mod listing;
#[path = "support/tables.rs"]
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use listing::{Place, all_tests};
use tables::repository;

/// The text of a row about what no test shows.
const REASONS: [&str; 3] = ["planned: ", "no test yet: ", "does not apply: "];

struct Row<'a> {
    id: &'a str,
    text: &'a str,
    shown_by: &'a str,
}

/// The rows of all tables: a letter and a number, the feature, the tests that show it.
fn rows(page: &str) -> Vec<Row<'_>> {
    let row = |text| {
        let mut cells = str::split(text, '|').map(str::trim);
        let id = cells.nth(1).filter(|id| id.ends_with(|last: char| last.is_ascii_digit()))?;
        Some(Row { id, text, shown_by: cells.nth(1)? })
    };
    page.lines().filter_map(row).collect()
}

/// The named tests: everything in backticks with `::`.
fn tests_named_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::"))
}

/// The mistakes of a page if `tests` exist.
fn mistakes(page: &str, tests: &BTreeMap<String, Place>) -> Vec<String> {
    let rows = rows(page);
    let mut ids = BTreeSet::new();
    let twice =
        rows.iter().filter(|row| !ids.insert(row.id)).map(|row| format!("{} twice", row.id));
    let is_shown = |row: &&Row<'_>| {
        tests_named_in(row.shown_by).next().is_some()
            || REASONS.iter().any(|reason| row.shown_by.starts_with(reason))
    };
    let unshown =
        rows.iter().filter(|row| !is_shown(row)).map(|row| format!("{}: nothing", row.id));
    let unknown = rows.iter().flat_map(|row| {
        let unknown = tests_named_in(row.text).filter(|name| !tests.contains_key(*name));
        unknown.map(|name| format!("{}: no test {name}", row.id))
    });
    twice.chain(unshown).chain(unknown).collect()
}

#[test]
fn every_row_names_tests_or_a_reason() {
    let page = fs::read_to_string(repository().join("docs/FEATURES.md")).unwrap();
    assert_eq!(mistakes(&page, &all_tests()), [""; 0]);
}

#[test]
fn row_without_existing_test_is_found() {
    let page = "| | feature | tests |\n\
                | --- | --- | --- |\n\
                | A1 | a | `e2e::pods::pod_has_two_interfaces_in_one_network` |\n\
                | A2 | a | `e2e::pods::no_such`, `host-shim::pods::no_such`; planned: c |\n\
                | A3 | a | |\n\
                | A3 | a | planned: b |\n\
                | A4 | a | does not apply: c, but `runtime::on_podman::no_such` |\n";
    let expected = [
        "A3 twice",
        "A3: nothing",
        "A2: no test e2e::pods::no_such",
        "A2: no test host-shim::pods::no_such",
        "A4: no test runtime::on_podman::no_such",
    ];
    assert_eq!(mistakes(page, &all_tests()), expected);
}
