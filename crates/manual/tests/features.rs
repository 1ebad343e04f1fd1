//! docs/FEATURES.md names for each row the test that shows it, or says why there is none; each test that it names is in
//! a profile that a tier of `hack/test` runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "support/tiers.rs"]
mod tiers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use tiers::{Profile, manifest, members, repository};

/// How many rows are about features, and how many about what has gone wrong elsewhere, whose ids begin with a T.
const ROWS: (usize, usize) = (91, 44);

/// What a row says that no test shows, or not all of it.
const REASONS: [&str; 3] = ["planned: ", "no test yet: ", "does not apply: "];

struct Row<'a> {
    id: &'a str,
    text: &'a str,
    shown_by: &'a str,
}

/// The rows of all tables: a letter and a number, what is wanted, what is here, what shows it.
fn rows(page: &str) -> Vec<Row<'_>> {
    let row = |text| {
        let mut cells = str::split(text, '|').map(str::trim);
        let id = cells.nth(1).filter(|id| id.ends_with(|last: char| last.is_ascii_digit()))?;
        Some(Row { id, text, shown_by: cells.nth(2)? })
    };
    page.lines().filter_map(row).collect()
}

/// The tests that are named there: whatever is in backticks and has `::` in it.
fn tests_named_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::"))
}

/// What is wrong with a page where these tests are there.
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

/// The id of a test's binary, as nextest has it, and the test's path in it.
type Place = (String, String);

/// All tests of the workspace by their names on the page.
fn all_tests() -> BTreeMap<String, Place> {
    members().iter().flat_map(|member| tests_of(&repository().join(member))).collect()
}

/// On the page, unit tests begin with their package's name, and others with their binary's.
fn tests_of(folder: &Path) -> Vec<(String, Place)> {
    let package = manifest(folder)["package"]["name"].as_str().unwrap().to_owned();
    let (sources, binaries) = (folder.join("src"), folder.join("tests"));
    let of_binary = |name: String| {
        let (binary, path) = name.split_once("::").expect("a binary and a path");
        let place = (format!("{package}::{binary}"), path.to_owned());
        (name, place)
    };
    let unit_tests = tests_below(&sources, &[]).into_iter();
    let unit_tests = unit_tests.map(|path| (format!("{package}::{path}"), (package.clone(), path)));
    let others = binaries.exists().then(|| tests_below(&binaries, &[])).into_iter().flatten();
    unit_tests.chain(others.map(of_binary)).collect()
}

fn tests_below(folder: &Path, modules: &[String]) -> Vec<String> {
    let mut tests = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_root = ["lib", "main", "mod"].contains(&name.as_str());
        let inner = if is_root { modules.to_vec() } else { [modules, &[name]].concat() };
        if path.is_dir() {
            tests.extend(tests_below(&path, &inner));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let found = written_in(&source).into_iter().chain(made_by_macros_in(&source));
            tests.extend(found.map(|test| [&inner[..], &[test]].concat().join("::")));
        }
    }
    tests
}

/// The tests of a source as rustfmt has it, with the modules in it that they are in.
fn written_in(source: &str) -> Vec<String> {
    let (mut modules, mut tests, mut is_test) = (Vec::new(), Vec::new(), false);
    for line in source.lines() {
        let code = line.trim_start();
        let depth = line.len() - code.len();
        match word_after("mod ", code) {
            Some(module) if code.ends_with('{') => modules.push((depth, module)),
            _ if code == "}" => modules.retain(|(begun, _)| *begun < depth),
            _ => (),
        }
        is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
        if let Some(function) = word_after("fn ", code).filter(|_| is_test) {
            let path = modules.iter().map(|(_, module)| *module).chain([function]);
            tests.push(path.collect::<Vec<_>>().join("::"));
            is_test = false;
        }
    }
    tests
}

/// The tests of macros that make one for each line that they are given, in each of their modules, if they have any.
fn made_by_macros_in(source: &str) -> Vec<String> {
    let made = source.split("\nmacro_rules! ").skip(1).flat_map(|rest| {
        let (body, rest) = rest.split_once("\n}\n").unwrap();
        let name = word_after("", body).unwrap();
        let given = rest.split_once(&format!("\n{name}!")).filter(|_| body.contains("#[test]"));
        let given = given.map_or("", |(_, given)| given.split(['}', ']']).next().unwrap());
        let functions = given.lines().skip(1).filter_map(|line| word_after("", line.trim_start()));
        let modules: Vec<_> = body.lines().filter_map(|line| word_after("mod ", line)).collect();
        functions.flat_map(move |function| match &modules[..] {
            [] => vec![function.to_owned()],
            modules => modules.iter().map(|module| format!("{module}::{function}")).collect(),
        })
    });
    made.collect()
}

fn word_after<'a>(keyword: &str, code: &'a str) -> Option<&'a str> {
    let (_, rest) = code.split_once(keyword)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then_some(&rest[..end])
}

#[test]
fn every_row_names_tests_that_there_are_or_a_reason() {
    let page = fs::read_to_string(repository().join("docs/FEATURES.md")).unwrap();
    assert_eq!(mistakes(&page, &all_tests()), [""; 0]);
    let (troubles, features): (Vec<_>, Vec<_>) =
        rows(&page).into_iter().partition(|row| row.id.starts_with('T'));
    assert_eq!((features.len(), troubles.len()), ROWS);
}

#[test]
fn a_row_that_names_no_test_or_one_that_is_not_there_is_found_out() {
    let page = "| | what is wanted | here | shown by |\n\
                | --- | --- | --- | --- |\n\
                | A1 | a | b | `e2e::pods::two_interfaces_of_one_network_are_in_one_pod` |\n\
                | A2 | a | b | `e2e::pods::no_such`, `host-shim::pods::no_such`; planned: c |\n\
                | A3 | a | | |\n\
                | A3 | a | | planned: b |\n\
                | A4 | a | b | does not apply: c, but `runtime::on_podman::no_such` |\n";
    let expected = [
        "A3 twice",
        "A3: nothing",
        "A2: no test e2e::pods::no_such",
        "A2: no test host-shim::pods::no_such",
        "A4: no test runtime::on_podman::no_such",
    ];
    assert_eq!(mistakes(page, &all_tests()), expected);
}

/// The tests named on a page that none of these profiles runs.
fn never_run<'a>(page: &'a str, profiles: &[Profile]) -> Vec<&'a str> {
    let tests = all_tests();
    let is_run = |name: &str| {
        tests
            .get(name)
            .is_none_or(|(binary, path)| profiles.iter().any(|it| it.selects(binary, path)))
    };
    tests_named_in(page).filter(|name| !is_run(name)).collect()
}

#[test]
fn each_named_test_is_run_by_some_tier() {
    let page = fs::read_to_string(repository().join("docs/FEATURES.md")).unwrap();
    let mut profiles = tiers::profiles_of_tiers();
    assert_eq!(never_run(&page, &profiles), [""; 0]);
    profiles.retain(|profile| profile.name != "long");
    let without_long = never_run(&page, &profiles);
    assert!(without_long.iter().any(|name| name.starts_with("e2e::kills::")), "{without_long:?}");
}
