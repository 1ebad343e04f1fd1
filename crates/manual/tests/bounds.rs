//! Tests bound the time by the stopwatch of `test-clock`, which does not count while the machine has no processor for
//! them. Clippy sees to that in `tests/`; here are the tests of the other crates.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Tests whose clock is virtual are exempt.
const VIRTUAL: &str = "start_paused = true";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files of Rust in a folder and those in it, but for what is built and fetched.
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

/// What of a source is only compiled for tests.
fn tests_in<'a>(path: &Path, source: &'a str) -> &'a str {
    if path.components().any(|part| part.as_os_str() == "tests") {
        return source;
    }
    source.find("#[cfg(test)]").map_or("", |begin| &source[begin..])
}

/// The lines that ask an `Instant` for what has elapsed.
fn bare_bounds(tests: &str) -> Vec<&str> {
    if tests.contains(VIRTUAL) {
        return Vec::new();
    }
    let is_instant = |name: &str| {
        let mut begins = tests.lines().filter(|line| line.contains("Instant::now()"));
        begins.any(|line| words(line).any(|word| word == name))
    };
    let is_bare = |line: &&str| {
        let mut receivers = line.split(".elapsed()").map(|before| words(before).last());
        let receivers = receivers.by_ref().take(line.matches(".elapsed()").count()).flatten();
        receivers.into_iter().any(|name| is_instant(name) || !tests.contains("Stopwatch"))
    };
    tests.lines().filter(is_bare).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

#[test]
fn tests_bound_time_by_the_stopwatch() {
    let root = repository();
    let mut found = Vec::new();
    for path in sources(&root) {
        let source = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let bare = bare_bounds(tests_in(&path, &source));
        found.extend(bare.into_iter().map(|line| format!("{name}: {}", line.trim())));
    }
    assert!(
        found.is_empty(),
        "a busy machine exceeds such bounds; use test_clock::Stopwatch, its elapsed() for upper bounds and its wall() for \
         anything else:\n{}",
        found.join("\n")
    );
}

#[test]
fn bounds_are_found() {
    for bare in [
        "assert!(begun.elapsed() < LIMIT);",
        "assert!(age < begun.elapsed());",
        "let begun = Instant::now();\nlet other = Stopwatch::start();\nlet taken = begun.elapsed();",
        "let (begun, told) = (Instant::now(), None);\nlet other = Stopwatch::start();\nbegun.elapsed()",
    ] {
        assert_eq!(bare_bounds(bare).len(), 1, "{bare}");
    }
    for fine in [
        "let begun = Stopwatch::start();\nlet now = Instant::now();\nassert!(begun.elapsed() < LIMIT);",
        "#[tokio::test(start_paused = true)]\nassert!(begun.elapsed() < LIMIT);",
    ] {
        assert_eq!(bare_bounds(fine), [""; 0], "{fine}");
    }
}

/// Clippy reads the nearest file alone.
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
