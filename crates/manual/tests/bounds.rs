//! Tests must bound time with the stopwatch and the waits of `test-clock`, which do not count the time in which some
//! task of the machine waited for a processor. Clippy refuses `Instant::elapsed` in `tests/`; this test looks for upper
//! bounds of wall time in all crates.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// Tests with a virtual clock are exempt.
const VIRTUAL: [&str; 2] = ["start_paused = true", "time::pause()"];

/// An expression with wall time.
const WALL_TIME: &str =
    r"(?:[\w.]+\.elapsed\(\)|Instant::now\(\) - [\w.]+|[\w.()]+\.duration_since\([^)]*\))";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files in a folder and its subfolders, except build output and fetched code.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap_or_default();
            if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && name != "target" {
                sources(&path)
            } else if name.ends_with(".rs") {
                vec![path]
            } else {
                Vec::new()
            }
        })
        .collect()
}

/// The test code of a source: everything in test folders and files, otherwise the test modules at the end.
fn tests_in<'a>(path: &Path, source: &'a str) -> &'a str {
    if path
        .components()
        .any(|part| Path::new(&part).file_stem().is_some_and(|stem| stem == "tests"))
    {
        return source;
    }
    source.find("#[cfg(test)]").map_or("", |begin| &source[begin..])
}

/// The lines that bound wall time from above. A loop that runs for a fixed time is no bound.
fn bare_bounds(tests: &str) -> Vec<&str> {
    let regex = |text: String| Regex::new(&text).unwrap();
    let function = regex(r"^\s*(?:pub(?:\(\w+\))? )?(?:async )?fn ".into());
    let bound = regex(format!(
        r"{WALL_TIME}\)* <|[^-=]>=? {WALL_TIME}|(?:^|[^.\w])(?:time::)?timeout\((?:[^D]|Duration::[^Z])"
    ));
    let named = regex(format!(r"let (?:mut )?(\w+) = .*{WALL_TIME}"));
    let (mut found, mut names, mut is_exempt, mut is_virtual) =
        (Vec::new(), Vec::<Regex>::new(), false, false);
    for line in tests.lines() {
        if function.is_match(line) {
            names.clear();
            (is_exempt, is_virtual) = (is_virtual, false);
        }
        is_virtual |= line.contains(VIRTUAL[0]);
        is_exempt |= line.contains(VIRTUAL[1]);
        let is_bare = bound.is_match(line) || names.iter().any(|name| name.is_match(line));
        if is_bare && !is_exempt && !line.contains("while ") {
            found.push(line);
        }
        names.extend(named.captures(line).map(|it| regex(format!(r"\b{} <", &it[1]))));
    }
    found
}

#[test]
fn tests_bound_time_by_the_stopwatch() {
    let root = repository();
    let mut found = Vec::new();
    for path in sources(&root).into_iter().filter(|path| !path.ends_with(file!())) {
        let source = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let bare = bare_bounds(tests_in(&path, &source));
        found.extend(bare.into_iter().map(|line| format!("{name}: {}", line.trim())));
    }
    assert!(
        found.is_empty(),
        "a busy machine exceeds such bounds; use test_clock::within, wait_for, or the unstalled() of a Stopwatch:\n{}",
        found.join("\n")
    );
}

#[test]
fn bounds_are_found() {
    for bare in [
        "assert!(begun.elapsed() < LIMIT);",
        "assert!(LIMIT >= self.begun.elapsed());",
        "assert!(Instant::now() - begun < LIMIT);",
        "assert!(Instant::now().duration_since(begun) <= LIMIT);",
        "let taken = begun.elapsed();\nassert!(taken < LIMIT);",
        "#[tokio::test(start_paused = true)]\nasync fn a() {}\nfn b() {\nassert!(begun.elapsed() < LIMIT);",
        "timeout(Duration::from_secs(5), work).await.unwrap();",
        "let done = tokio::time::timeout(LIMIT, work).await;",
    ] {
        assert_eq!(bare_bounds(bare).len(), 1, "{bare}");
    }
    for fine in [
        "assert!(begun.unstalled() < LIMIT);",
        "assert!(begun.elapsed() >= LIMIT);",
        "assert!(age < begun.elapsed());",
        "let taken = begun.unstalled();\nassert!(taken < LIMIT);",
        "let taken = begun.elapsed();\n}\nfn other() {\nassert!(taken < LIMIT);",
        "#[tokio::test(start_paused = true)]\nasync fn a() {\nassert!(begun.elapsed() < LIMIT);",
        "while begun.elapsed() < LIMIT {",
        "timeout(Duration::ZERO, work).await;",
        "endpoint.timeout(LIMIT);",
    ] {
        assert_eq!(bare_bounds(fine), [""; 0], "{fine}");
    }
}

/// Clippy reads only the nearest file.
#[test]
fn the_tests_lints_include_all_others() {
    let lines = |file: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let is_setting = |line: &&str| !line.is_empty() && !line.starts_with('#');
        text.lines().filter(is_setting).map(str::to_owned).collect()
    };
    let (all, of_tests) = (lines("clippy.toml"), lines("tests/clippy.toml"));
    let missing: Vec<_> = all.difference(&of_tests).collect();
    assert!(missing.is_empty(), "tests/clippy.toml lacks {missing:?}");
    assert!(of_tests.difference(&all).any(|line| line.contains("Instant::elapsed")));
}
