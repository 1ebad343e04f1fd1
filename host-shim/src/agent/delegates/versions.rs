//! Which version of the specification a chain of plugins is spoken to in.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::cni::version::Version;

/// The versions that programs have said they speak, as long as they are not replaced.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<PathBuf, (SystemTime, Vec<Version>)>>);

impl Known {
    /// Those of a program. `None`: it has not been asked, or was replaced since.
    pub(super) fn of(&self, program: &Path) -> Option<Vec<Version>> {
        let changed = changed(program)?;
        let known = self.0.lock();
        let (then, versions) = known.get(program)?;
        (*then == changed).then(|| versions.clone())
    }

    /// Remembers what a program has answered.
    pub(super) fn learn(&self, program: &Path, versions: Vec<Version>) {
        if let Some(changed) = changed(program) {
            self.0.lock().insert(program.to_owned(), (changed, versions));
        }
    }
}

fn changed(program: &Path) -> Option<SystemTime> {
    fs::metadata(program).ok()?.modified().ok()
}

/// Those of ours that are in an answer to VERSION.
pub(super) fn supported(answer: Option<&Value>) -> Vec<Version> {
    let listed = answer.and_then(|answer| answer["supportedVersions"].as_array());
    listed.into_iter().flatten().filter_map(Value::as_str).filter_map(Version::parse).collect()
}

/// The version that all of them speak: the newest that the configuration says, or else the newest before that. A
/// configuration that says none that is ours leaves it to the plugins.
pub(super) fn common(declared: &[String], spoken: &[Vec<Version>]) -> Option<Version> {
    let is_common = |version: &Version| spoken.iter().all(|versions| versions.contains(version));
    let declared: Vec<_> = declared.iter().filter_map(|text| Version::parse(text)).collect();
    let newest = declared.iter().copied().max().unwrap_or(Version::NEWEST);
    let chosen = declared.into_iter().filter(is_common).max();
    chosen.or_else(|| {
        Version::ALL.into_iter().rev().filter(|version| *version <= newest).find(is_common)
    })
}

#[cfg(test)]
mod tests {
    use std::slice;

    use serde_json::json;

    use super::*;

    #[test]
    fn newest_common_cni_version_is_used() {
        let old = vec![Version::V0_3_1, Version::V0_4_0];
        let new = vec![Version::V0_4_0, Version::V1_0_0, Version::V1_1_0];
        let all = [old.clone(), new.clone()];
        let declared = |texts: &[&str]| Vec::from_iter(texts.iter().map(|text| (*text).to_owned()));
        assert_eq!(common(&declared(&["1.0.0"]), slice::from_ref(&new)), Some(Version::V1_0_0));
        assert_eq!(common(&declared(&["1.0.0", "0.4.0"]), &all), Some(Version::V0_4_0));
        assert_eq!(common(&declared(&["1.0.0"]), &all), Some(Version::V0_4_0));
        assert_eq!(common(&declared(&["0.3.1"]), &all), None);
        assert_eq!(common(&declared(&[]), &[new]), Some(Version::V1_1_0));
        assert_eq!(common(&declared(&["0.2.0"]), &[old]), Some(Version::V0_4_0));
    }

    #[test]
    fn plugin_version_answer_is_parsed() {
        let answer = json!({"supportedVersions": ["0.1.0", "0.4.0", 7, "2.0.0"]});
        assert_eq!(supported(Some(&answer)), [Version::V0_4_0]);
        assert!(supported(None).is_empty());
        assert!(supported(Some(&json!({}))).is_empty());
    }

    #[test]
    fn replaced_plugin_is_asked_for_versions_again() {
        let folder = tempfile::tempdir().unwrap();
        let (program, known) = (folder.path().join("plugin"), Known::default());
        fs::write(&program, "").unwrap();
        assert_eq!(known.of(&program), None);
        known.learn(&program, vec![Version::V1_0_0]);
        assert_eq!(known.of(&program), Some(vec![Version::V1_0_0]));
        let file = fs::File::options().write(true).open(&program).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(known.of(&program), None);
    }
}
