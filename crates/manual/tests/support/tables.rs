//! Reads the tables of `hack/test.d` like `hack/test`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// The tests of a profile: those of its lines with `+`, without those of its lines with `-`.
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) lines: Vec<Line>,
}

pub(crate) struct Line {
    is_added: bool,
    pub(crate) binaries: Regex,
    pub(crate) paths: Regex,
}

impl Line {
    fn fits(&self, binary: &str, path: &str) -> bool {
        self.binaries.is_match(binary) && self.paths.is_match(path)
    }
}

impl Profile {
    pub(crate) fn selects(&self, binary: &str, path: &str) -> bool {
        let mut fits = self.lines.iter().filter(|line| line.fits(binary, path));
        let is_added = fits.clone().any(|line| line.is_added);
        is_added && fits.all(|line| line.is_added)
    }
}

/// All profiles of `hack/test.d/selection`.
pub(crate) fn profiles() -> Vec<Profile> {
    let mut profiles: Vec<Profile> = Vec::new();
    for fields in table("selection") {
        let [name, sign, binaries, paths] = &fields[..] else { panic!("{fields:?}") };
        assert!(["+", "-"].contains(&&**sign), "{fields:?}");
        let line = Line {
            is_added: sign == "+",
            binaries: Regex::new(binaries).unwrap(),
            paths: Regex::new(paths).unwrap(),
        };
        match profiles.iter_mut().find(|profile| profile.name == *name) {
            Some(profile) => profile.lines.push(line),
            None => profiles.push(Profile { name: name.clone(), lines: vec![line] }),
        }
    }
    profiles
}

/// The profiles that `hack/test all` runs: those that the functions of `hack/test.d/tiers.sh` pass to the test runner.
/// Their argument is the tier's own name.
pub(crate) fn profiles_of_tiers() -> Vec<Profile> {
    let script = fs::read_to_string(repository().join("hack/test.d/tiers.sh")).unwrap();
    let run: Vec<_> = tiers().into_iter().flat_map(|tier| profiles_in(&script, &tier)).collect();
    profiles().into_iter().filter(|profile| run.contains(&profile.name)).collect()
}

fn profiles_in(script: &str, tier: &str) -> Vec<String> {
    let begins = format!("tier_{tier}() {{");
    let function = script.lines().skip_while(|line| !line.starts_with(&begins));
    let body = function.take_while(|line| *line != "}" && !line.is_empty());
    let passes_on = |line: &&str| {
        ["run_tests ", "in_namespaces ", "at_once ", "profiles=("]
            .iter()
            .any(|word| line.contains(word))
    };
    let words = body
        .filter(passes_on)
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || "();\"".contains(c)));
    words.map(|word| word.replace("$1-1", tier).replace("$1", tier)).collect()
}

/// The names of all tiers.
pub(crate) fn tiers() -> Vec<String> {
    let text = fs::read_to_string(repository().join("hack/test.d/tiers")).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|row| row.split('|').next().unwrap().trim().to_owned()).collect()
}

/// The lines of a table of `hack/test.d`, split at blanks.
pub(crate) fn table(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(repository().join("hack/test.d").join(name)).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|row| row.split_whitespace().map(str::to_owned).collect()).collect()
}

/// The folders of the workspace's members.
pub(crate) fn members() -> Vec<String> {
    let workspace = manifest(&repository());
    let members = workspace["workspace"]["members"].as_array().unwrap().iter();
    members.map(|member| member.as_str().unwrap().to_owned()).collect()
}

pub(crate) fn manifest(folder: &Path) -> toml::Table {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap()
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
