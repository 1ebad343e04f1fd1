//! A note that the DPU has accepted this host since its boot. An agent that replaces another one inherits its grace
//! period, so that a restart while the DPU is away does not make the node NotReady.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::whole_file;

/// A file in the agent's folder that contains the boot's id.
#[derive(Debug)]
pub(super) struct AcceptanceNote {
    path: PathBuf,
    boot_id: String,
}

impl AcceptanceNote {
    pub(super) fn new(state_dir: &Path, boot_id: &str) -> Self {
        Self { path: state_dir.join("welcomed.boot"), boot_id: boot_id.to_owned() }
    }

    /// Whether the DPU accepted this host in this boot.
    pub(super) fn is_noted(&self) -> bool {
        fs::read(&self.path).is_ok_and(|boot_id| boot_id == self.boot_id.as_bytes())
    }

    /// Writes the note, once per boot.
    pub(super) fn note(&self) {
        if self.is_noted() {
            return;
        }
        if let Err(error) = whole_file::replace(&self.path, self.boot_id.as_bytes()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot note that the DPU accepted this host");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_is_known_within_one_boot() {
        let folder = tempfile::tempdir().unwrap();
        let of_boot = |id| AcceptanceNote::new(folder.path(), id);
        assert!(!of_boot("a").is_noted());
        of_boot("a").note();
        assert!(of_boot("a").is_noted());
        assert!(!of_boot("b").is_noted());
        of_boot("b").note();
        assert!(of_boot("b").is_noted() && !of_boot("a").is_noted());
    }
}
