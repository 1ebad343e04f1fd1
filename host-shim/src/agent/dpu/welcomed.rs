//! That the DPU has welcomed this host since its boot: an agent that comes after another one has the
//! other's grace, so that its replacement while the DPU is away makes no node NotReady.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::whole_file;

/// A note in the agent's folder, which holds the boot's id.
#[derive(Debug)]
pub(super) struct Welcomed {
    path: PathBuf,
    boot_id: String,
}

impl Welcomed {
    pub(super) fn new(state_dir: &Path, boot_id: &str) -> Self {
        Self { path: state_dir.join("welcomed.boot"), boot_id: boot_id.to_owned() }
    }

    /// Whether it was noted in this boot.
    pub(super) fn is_noted(&self) -> bool {
        fs::read(&self.path).is_ok_and(|boot_id| boot_id == self.boot_id.as_bytes())
    }

    /// Notes it, once in a boot.
    pub(super) fn note(&self) {
        if self.is_noted() {
            return;
        }
        if let Err(error) = whole_file::replace(&self.path, self.boot_id.as_bytes()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot note that the DPU welcomed this host");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_is_known_to_the_next_agent_of_the_same_boot_alone() {
        let folder = tempfile::tempdir().unwrap();
        let of_boot = |id| Welcomed::new(folder.path(), id);
        assert!(!of_boot("a").is_noted());
        of_boot("a").note();
        assert!(of_boot("a").is_noted());
        assert!(!of_boot("b").is_noted());
        of_boot("b").note();
        assert!(of_boot("b").is_noted() && !of_boot("a").is_noted());
    }
}
