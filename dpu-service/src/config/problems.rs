//! The problems of a configuration.

use std::path::Path;

/// All problems of a configuration: one sentence each, with key, value and way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// One line for each problem, with the file's path.
    pub(super) fn with_path(&self, path: &Path) -> String {
        let line = |problem: &String| format!("{}: {problem}", path.display());
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
