//! The tables by which `hack/test` chooses tests and tiers.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/tiers.rs"]
mod tables;

use std::{fs, process::Command};

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

/// A short form runs a part of what the tier does, and what a run without Open vSwitch omits is a part of it.
#[test]
fn each_profile_is_run_or_a_part_of_one() {
    let run: Vec<_> = profiles_of_tiers().into_iter().map(|profile| profile.name).collect();
    let others = profiles().into_iter().map(|profile| profile.name);
    let others: Vec<_> = others.filter(|name| !run.contains(name)).collect();
    let is_part = |name: &&String| !(name.ends_with("-short") || *name == "needs-ovs");
    assert_eq!(others.iter().filter(is_part).collect::<Vec<_>>(), [""; 0]);
    assert!(run.iter().any(|name| name == "vm") && run.iter().any(|name| name == "long"));
}

#[test]
fn contributing_shows_the_list_of_tiers() {
    let listed = Command::new(repository().join("hack/test")).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let page = fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    assert!(listed.lines().count() > 10 && page.contains(&listed), "the list is now:\n{listed}");
}
