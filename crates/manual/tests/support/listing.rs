//! Finds the tests of the workspace in its sources, which rustfmt has formatted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{collections::BTreeMap, fs, path::Path};

use crate::tables::{manifest, members, repository};

/// The id of a test's binary in nextest, and the test's path in it.
pub(crate) type Place = (String, String);

/// All tests of the workspace by their names in the page.
pub(crate) fn all_tests() -> BTreeMap<String, Place> {
    members().iter().flat_map(|member| tests_of(&repository().join(member))).collect()
}

/// In the page, unit tests begin with their package's name, and others with their binary's.
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

/// The tests of a source, with the modules around them.
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

/// The tests of macros that create one for each given line, in each of their modules if they have any.
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
