//! The tables by which `hack/test` selects tests and tiers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "support/listing.rs"]
mod listing;
#[path = "support/tables.rs"]
mod tables;

use std::{fs, process::Command};

use listing::all_tests;
use regex::Regex;
use tables::{members, profiles, profiles_of_tiers, repository, table, tiers};

#[test]
fn each_member_has_a_line_of_tiers() {
    let lines = table("tiers-by-path");
    let has_line = |member: &String| lines.iter().any(|line| line[0] == *member);
    let without: Vec<_> = members().into_iter().filter(|member| !has_line(member)).collect();
    assert_eq!(without, [""; 0], "add them to hack/test.d/tiers-by-path");
}

#[test]
fn lines_name_paths_and_tiers() {
    let tiers = tiers();
    for line in table("tiers-by-path") {
        assert!(repository().join(&line[0]).exists(), "{line:?}: there is no such path");
        assert!(line.len() > 1, "{line:?}: no tier");
        for tier in &line[1..] {
            let is_known = tiers.contains(tier) || ["-", "every"].contains(&&**tier);
            assert!(is_known, "{line:?}: there is no tier {tier}");
        }
    }
}

/// A short form is a part of its tier, and so is the set of tests that a run without Open vSwitch omits.
#[test]
fn each_profile_runs_or_is_included() {
    let run: Vec<_> = profiles_of_tiers().into_iter().map(|profile| profile.name).collect();
    let others = profiles().into_iter().map(|profile| profile.name);
    let others: Vec<_> = others.filter(|name| !run.contains(name)).collect();
    let is_part = |name: &&String| !(name.ends_with("-short") || *name == "needs-ovs");
    assert_eq!(others.iter().filter(is_part).collect::<Vec<_>>(), [""; 0]);
    assert!(run.iter().any(|name| name == "vm") && run.iter().any(|name| name == "long"));
}

/// A test that is only in the profile of a short form would not be in `hack/test all`.
#[test]
fn each_test_is_run_by_some_tier() {
    let profiles = profiles_of_tiers();
    let is_run = |binary: &str, path: &str| profiles.iter().any(|it| it.selects(binary, path));
    let tests = all_tests();
    let left = tests.iter().filter(|(_, (binary, path))| !is_run(binary, path));
    let left: Vec<_> = left.map(|(name, _)| name).collect();
    assert_eq!(left, [""; 0], "add them to hack/test.d/selection");
}

/// All regular expressions that result from replacing each group by one of its alternatives.
fn alternatives(regex: &str) -> Vec<String> {
    let (before, group, after) = match regex.rsplit_once('(') {
        None => ("", regex, ""),
        Some((before, rest)) => {
            let (group, after) = rest.split_once(')').expect("the group ends");
            (before, group, after)
        }
    };
    let parts: Vec<_> = group.split('|').map(|part| format!("{before}{part}{after}")).collect();
    if parts.iter().any(|part| part.contains('(')) {
        return parts.iter().flat_map(|part| alternatives(part)).collect();
    }
    parts
}

/// Otherwise a renamed or moved test would silently drop out of a profile.
#[test]
fn each_alternative_of_selection_selects_a_test() {
    let tests = all_tests();
    let selects = |binaries: &Regex, paths: &Regex| {
        tests.values().any(|(binary, path)| binaries.is_match(binary) && paths.is_match(path))
    };
    let expanded = |regex: &Regex| -> Vec<_> {
        alternatives(regex.as_str()).iter().map(|part| Regex::new(part).unwrap()).collect()
    };
    let mut idle = Vec::new();
    for line in profiles().iter().flat_map(|profile| &profile.lines) {
        let binaries = expanded(&line.binaries);
        let paths = expanded(&line.paths);
        idle.extend(binaries.into_iter().filter(|part| !selects(part, &line.paths)));
        idle.extend(paths.into_iter().filter(|part| !selects(&line.binaries, part)));
    }
    let idle: Vec<_> = idle.iter().map(Regex::as_str).collect();
    assert_eq!(idle, [""; 0], "no test fits these parts of hack/test.d/selection");
}

#[test]
fn alternatives_are_found_in_each_group() {
    assert_eq!(alternatives("::(netns|vm)$"), ["::netns$", "::vm$"]);
    assert_eq!(alternatives("^(a::(b|c)|d)"), ["^a::b", "^d", "^a::c", "^d"]);
}

#[test]
fn contributing_shows_the_list_of_tiers() {
    let listed = Command::new(repository().join("hack/test")).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let page = fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    assert!(listed.lines().count() > 10 && page.contains(&listed), "the list is now:\n{listed}");
}
